"""Which files a directory has to send: git says so in a repository, and `default_exclusions` does elsewhere.

Everything here is names; whether there is a file of that name on the disk is for `selection` to see.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from launcher.errors import UsageError
from launcher.escapes import shown
from launcher.node.code.listing import parents
from launcher.sync import launchignore
from launcher.sync.default_exclusions import (
    CACHE,
    CACHES,
    ENVIRONMENT,
    IGNORED,
    LAUNCHIGNORE,
    SECRET_FILES,
    VERSION_CONTROL,
    classify,
    is_environment,
)
from launcher.sync.git import Absence, Repository, find_repository, list_ignored, list_names
from launcher.sync.launchignore import exclude_options, seen_from_above, seen_from_inside

# What tools make for themselves, as .gitignore files for Python name it: no run saves there.
_OF_TOOLS = (
    ".*", "__*__", "env", "ENV", "venv", "*.bak", "build", "develop-eggs", "dist", "downloads", "eggs", "lib", "lib64",
    "parts", "sdist", "var", "wheels", "share", "htmlcov", "cover", "instance", "_build", "target", "profile_default",
    "cython_debug", "marimo", "site",
)  # fmt: skip
_PLAIN_FOLDER = re.compile(rb"/?([^\s\\*?\[\]!#/][^\\*?\[\]/\r\n]*(?:/[^\\*?\[\]/\r\n]+)*)/\s*")
_GITLINK = "160000"  # the mode of a submodule
_SKIPPED = "S"  # the tag of a file that a sparse checkout omits


@dataclass(frozen=True, slots=True)
class Candidates:
    """The names below one directory, with `/` between their parts.

    names: files and links that may be sent; left_out: what is not sent, a directory with a slash at its end, and the
    reason; sparse: files that a sparse checkout may omit; uninitialized: submodules without files; nested:
    repositories that are no submodules; untracked: those of the names that git doesn't track, in a repository.
    """

    names: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    sparse: set[str] = field(default_factory=set)
    uninitialized: set[str] = field(default_factory=set)
    nested: set[str] = field(default_factory=set)
    untracked: set[str] = field(default_factory=set)

    def add_below(self, folder: str, other: Candidates) -> None:
        """Add what was found in a directory below this one."""
        self.left_out.update({f"{folder}/{name}": reason for name, reason in other.left_out.items()})
        for mine, others in (
            (self.names, other.names),
            (self.sparse, other.sparse),
            (self.uninitialized, other.uninitialized),
            (self.nested, other.nested),
            (self.untracked, other.untracked),
        ):
            mine.update(f"{folder}/{name}" for name in others)


def find_candidates(root: Path, place: Repository | Absence) -> Candidates:
    """List what the directory has to send, by the rules of the place where it is; raise UsageError."""
    patterns = launchignore.read_patterns(root)
    if isinstance(place, Repository):
        return _list_repository(root, place, patterns)
    if not patterns:
        return _walk(root, is_complete=True)
    if place is Absence.NO_GIT:
        fix = f"install git on this machine, or remove {launchignore.NAME}"
        raise UsageError(f"{shown(root / launchignore.NAME)} needs git, which is not installed", fix)
    return _filter_without_repository(root, _walk(root, is_complete=False).left_out, patterns)


def find_named_folders(root: Path, place: Repository, inside: str = "") -> list[str]:
    """Return the directories that a line such as `outputs/` or `/runs/new/` in .gitignore names, and git ignores.

    They need not exist: a run may be the first to save there. What tools make for themselves is none of them.
    inside: the directory below the root where the ranks run, for which `outputs/` is a name as well.
    """
    names = {name: None for line in _read_lines(root) if (name := _read_folder(line))}
    if place.prefix:
        for line in _read_lines(place.root):
            name = _read_folder(line)
            is_anchored = "/" in name or line.startswith(b"/")
            names[name.removeprefix(f"{place.prefix}/") if is_anchored else name] = None
    if inside:
        own = map(_read_folder, _read_lines(root / inside))
        names |= {f"{inside}/{name}": None for name in (*names, *own) if name}
    kept = {pattern.removeprefix("!").strip("/") for pattern in launchignore.read_patterns(root) if pattern[0] == "!"}
    wanted = [f"{name}/" for name in names if name and kept.isdisjoint((name, *parents(name)))]
    return [name.rstrip("/") for name in list_ignored(root, wanted)]


def _read_lines(folder: Path) -> list[bytes]:
    try:
        return launchignore.read_small(folder / ".gitignore").splitlines()
    except OSError:
        return []


def _read_folder(line: bytes) -> str:
    """Return the directory that a line of .gitignore names; empty for a pattern, and for what is a tool's."""
    found = _PLAIN_FOLDER.fullmatch(line)
    name = os.fsdecode(found[1]) if found else ""
    parts = name.split("/")
    is_of_tool = any(fnmatchcase(part, pattern) for part in parts for pattern in (*_OF_TOOLS, *CACHES))
    return "" if is_of_tool else name


# ---- in a repository ------------------------------------------------------------------------------------------------


def _list_repository(folder: Path, place: Repository, patterns: Sequence[str]) -> Candidates:
    """Ask git about a directory, and about each submodule in it: git doesn't list untracked files of submodules."""
    found = Candidates()
    excludes = exclude_options(seen_from_above(patterns, place.prefix))
    omitted = set(list_names(folder, "ls-files", "-z", "-c", "-i", *excludes)) if excludes else set[str]()
    found.left_out.update(dict.fromkeys(omitted, LAUNCHIGNORE))
    submodules = []
    for line in list_names(folder, "ls-files", "-z", "-s", "-t"):
        facts, _, name = line.partition("\t")
        if name in omitted:
            continue
        if f" {_GITLINK} " in facts:
            submodules.append(name)
            continue
        found.names.add(name)
        if facts.startswith(_SKIPPED):
            found.sparse.add(name)
    others = list_names(folder, "ls-files", "-z", "-o", "--exclude-standard", *excludes)
    left_out = _find_untracked_defaults(others)
    found.left_out.update(left_out)
    others = [name for name in others if not any(f"{above}/" in left_out for above in parents(name.rstrip("/")))]
    found.names.update(name for name in others if not name.endswith("/"))
    found.untracked.update(name for name in others if not name.endswith("/"))
    found.nested.update(name.rstrip("/") for name in others if name.endswith("/"))
    found.left_out.update(_list_ignored(folder, excludes))
    for name in submodules:
        _add_submodule(found, folder, name, patterns)
    return found


def _find_untracked_defaults(names: Sequence[str]) -> dict[str, str]:
    """Return the caches and virtual environments among untracked files: without a .gitignore git would send them."""
    found = {}
    for name in names:
        above = list(parents(name.rstrip("/")))
        found.update({f"{folder}/": CACHE for folder in above if classify(f"{folder}/") == CACHE})
        if above and name.rpartition("/")[2] == "pyvenv.cfg":
            found[f"{name.rpartition('/')[0]}/"] = ENVIRONMENT
    return found


def _list_ignored(folder: Path, excludes: Sequence[str]) -> Mapping[str, str]:
    """Return what isn't tracked and isn't sent, and why: the repository ignores it, or `.launchignore` does."""
    command = ("ls-files", "-z", "-o", "-i", "--directory", "--exclude-standard")
    own = set(list_names(folder, *command, is_complete=False))
    names = list_names(folder, *command, *excludes, is_complete=False) if excludes else own
    reasons = {}
    for name in names:
        is_own = name in own or any(f"{folder}/" in own for folder in parents(name.rstrip("/")))
        reasons[name] = CACHE if classify(name) == CACHE else IGNORED if is_own else LAUNCHIGNORE
    return reasons


def _add_submodule(found: Candidates, folder: Path, name: str, patterns: Sequence[str]) -> None:
    path = folder / name
    place = find_repository(path) if os.path.lexists(path / ".git") else Absence.NO_REPOSITORY
    if not isinstance(place, Repository) or place.prefix:  # an empty .git leads git to the repository above
        found.uninitialized.add(name)
    else:
        found.add_below(name, _list_repository(path, place, seen_from_inside(patterns, name)))


# ---- without a repository -------------------------------------------------------------------------------------------


def _walk(root: Path, *, is_complete: bool) -> Candidates:
    """Find all files of a directory, except version control, virtual environments, caches and secrets.

    is_complete: whether it is an error if a directory can't be read.
    """
    found, waiting = Candidates(), [""]
    while waiting:
        below = waiting.pop()
        for entry in _scan(root / below, is_complete=is_complete):
            if entry.name in VERSION_CONTROL:
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            name = below + entry.name + ("/" if is_folder else "")
            reason = ENVIRONMENT if is_folder and is_environment(Path(entry.path)) else classify(name)
            if reason is not None:
                found.left_out[name] = reason
            elif is_folder:
                waiting.append(name)
            else:
                found.names.add(name)
    return found


def _scan(folder: Path, *, is_complete: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not is_complete:  # removed meanwhile
            return []
        fix = f"make it readable, or leave it out with {launchignore.NAME}"
        raise UsageError(f"can't open the directory {shown(folder)}: {error.strerror}", fix) from None


def _filter_without_repository(root: Path, defaults: Mapping[str, str], patterns: Sequence[str]) -> Candidates:
    """Ask git what the defaults and then `.launchignore` leave of a directory, with an empty repository elsewhere."""
    first = [*SECRET_FILES, *(f"{name}/" for name in (*CACHES, *VERSION_CONTROL))]
    first += [f"/{launchignore.quote_path(name)}" for name, reason in defaults.items() if reason == ENVIRONMENT]
    with tempfile.TemporaryDirectory(prefix="launch-git-") as empty:
        list_names(root, "init", "-q", "--bare", "--template=", empty)
        found = _list_outside(root, Path(empty), (*first, *patterns))
    for name in found.left_out:
        found.left_out[name] = defaults.get(name) or classify(name) or LAUNCHIGNORE
    for name in [name for name in found.left_out if name.rstrip("/").rpartition("/")[2] in VERSION_CONTROL]:
        del found.left_out[name]
    return found


def _list_outside(folder: Path, empty: Path, patterns: Sequence[str]) -> Candidates:
    """List a directory and, as parts of it, the repositories below it."""
    found = Candidates()
    command = (f"--git-dir={empty}", f"--work-tree={folder}", "ls-files", "-z", "-o", *exclude_options(patterns))
    for name in list_names(folder, *command):
        if name.endswith("/"):
            inside = seen_from_inside(patterns, name.rstrip("/"))
            found.add_below(name.rstrip("/"), _list_outside(folder / name, empty, inside))
        else:
            found.names.add(name)
    ignored = list_names(folder, *command, "-i", "--directory", is_complete=False)
    found.left_out.update(dict.fromkeys(ignored, ""))
    return found
