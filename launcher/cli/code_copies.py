"""Give back the code of an earlier run, as the machine keeps it where the run was started."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from launcher.cli.error_lines import tell
from launcher.cli.repetition import read_origin, read_version
from launcher.errors import EXIT_FAILED, LauncherError, UsageError
from launcher.escapes import listed_names
from launcher.private_files import open_private
from launcher.runs.run_list import LISTING, PATCH, RunList
from launcher.wording import count


def fetch_code(run_id: str, folder: Path | None) -> int:
    """Write the files that a run sent to a new directory, or the patch against its commit; return the exit code."""
    runs = RunList.of_user(os.environ)
    folder = folder or Path(f"{run_id}-code")
    listing = runs.read_kept(run_id, LISTING)
    if listing is not None:
        return _copy_tree(run_id, listing, folder)
    version = read_version(runs, run_id)
    if version is None:
        text = f"the code of run {run_id} isn't kept on this machine"
        raise UsageError(text, "run launch fetch --code where it was started; it keeps what --sync sends or git has")
    commit, patch, directory = version.commit, runs.read_kept(run_id, PATCH), read_origin(runs, run_id)["directory"]
    tell(f"launch: run {run_id} ran commit {commit}{'' if patch is None else ', with changes'}; to get it back:")
    print(f"  git -C {shlex.quote(directory)} worktree add {shlex.quote(str(folder.absolute()))} {commit}")
    if patch is None:
        return 0
    path = Path(f"{run_id}.patch").absolute()
    _write(path, patch)
    print(f"  git -C {shlex.quote(str(folder.absolute()))} apply {shlex.quote(str(path))}")
    for line in patch.split(b"diff --git ", 1)[0].decode("utf-8", "replace").splitlines():
        if line.startswith("# missing: "):
            tell(f"launch: not in the patch: {line.removeprefix('# missing: ')}")
    return 0


def _copy_tree(run_id: str, listing: bytes, folder: Path) -> int:
    from launcher.sync.kept_code import KeptTree, write_tree

    kept = KeptTree.read(listing)
    try:
        lacking = write_tree(kept, folder, os.environ)
    except FileExistsError:
        raise UsageError(f"{folder} exists", f"name another directory: launch fetch --code {run_id} DIR") from None
    except OSError as error:
        raise LauncherError(f"can't write {folder}: {error.strerror}") from None
    tell(f"launch: copied the code of run {run_id} ({count(len(kept.entries) - len(lacking), 'file')}) to {folder}")
    if lacking:
        tell(f"launch: not kept any more: {listed_names(lacking)}")
    return EXIT_FAILED if lacking else 0


def _write(path: Path, patch: bytes) -> None:
    try:
        if path.is_file() and path.read_bytes() == patch:
            return
        with open(path, "xb", opener=open_private) as file:
            file.write(patch)
    except FileExistsError:
        raise UsageError(f"{path} exists", "move it away, or go to another directory") from None
    except OSError as error:
        raise LauncherError(f"can't write {path}: {error.strerror}") from None
