"""The code of earlier runs, as this machine keeps it: files by their hash, and the listing of each run's tree."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from launcher.errors import LauncherError, UsageError
from launcher.escapes import listed_names
from launcher.job.tree import Tree
from launcher.node.code.folders import copy_file, find_base, make_base, write_file
from launcher.node.code.listing import LINK, Entry, decode, hash_file
from launcher.private_files import make_private
from launcher.sync.contents import Contents, path_of

_KEPT_S = 30 * 86400.0  # after the last run that has sent it


def read_listing(listing: bytes) -> list[Entry]:
    """Return the files of an earlier run; raise LauncherError if their listing is damaged."""
    try:
        return decode(listing)
    except ValueError as error:
        raise LauncherError(f"the listing of the run's code is damaged: {error}") from None


def keep_contents(tree: Tree, variables: Mapping[str, str]) -> None:
    """Keep the files of a tree by their hash, beside those of earlier runs; raise OSError if that fails.

    A file that has changed since it was listed is not kept. variables: of this process.
    """
    base, contents = find_base(variables), Contents(tree, variables)
    make_base(base, "content")
    _remove_older(base, time.time() - _KEPT_S)
    for entry in decode(tree.listing):
        path = Path(path_of(base, entry.content))
        if entry.kind == LINK:
            continue
        if path.is_file() and path.stat().st_size == entry.size:
            os.utime(path)  # it is in use
            continue
        try:
            found = contents.find(entry)
        except UsageError:
            continue
        make_base(base, f"content/{path.parent.name}")
        fresh = f"{path}.{os.urandom(8).hex()}"
        if write_file(fresh, entry, [found]) if isinstance(found, bytes) else copy_file(found, entry, fresh):
            Path(fresh).rename(path)


def _remove_older(base: str, limit: float) -> None:
    """Remove what no run has used for long, and what was never whole."""
    for path in Path(base, "content").glob("*/*"):
        with contextlib.suppress(OSError):  # another process was faster
            if path.stat().st_mtime < limit:
                path.unlink()


def refuse_lacking(entries: Iterable[Entry], tree: Tree, run_id: str, variables: Mapping[str, str]) -> None:
    """Raise UsageError if this machine lacks files of an earlier run; tree: that of now, which may have them."""
    contents, lacking = Contents(tree, variables), []
    for entry in entries:
        if entry.kind != LINK:
            try:
                contents.find(entry)
            except UsageError:
                lacking.append(entry.path)
    if lacking:
        text = f"the code of run {run_id} isn't kept any more: {listed_names(lacking)}"
        raise UsageError(text, "omit --same-code to run the code of now")


def write_tree(entries: Sequence[Entry], folder: Path, variables: Mapping[str, str]) -> list[str]:
    """Write the files of a tree to a new directory; return the paths of those that this machine keeps no more.

    Raise OSError if it can't be written.
    """
    base, lacking = find_base(variables), []
    folder.mkdir(mode=0o700)
    for entry in entries:
        path = folder / entry.path
        if path.parent != folder:
            make_private(path.parent, folder, exist_ok=True)
        if entry.kind == LINK:
            continue
        if not copy_file(path_of(base, entry.content), entry, str(path)):
            lacking.append(entry.path)
    for entry in entries:  # last, so that nothing is written through one
        if entry.kind == LINK:
            (folder / entry.path).symlink_to(entry.content)
    return lacking


def hash_path(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hash_file(file.fileno(), path.stat().st_size)
