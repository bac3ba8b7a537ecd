"""Which files of a directory are sent, and what stays on this machine, with the reasons.

A file is sent if git tracks it or would let it be added, unless the default exclusions or `.launchignore` say
otherwise. The contents are those on the disk, not those of a commit.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.escapes import listed_names, shown
from launcher.node.code.listing import is_inside, parents
from launcher.sync.candidates import (
    CACHE,
    ENVIRONMENT,
    IGNORED,
    LAUNCHIGNORE,
    STAYING,
    Candidates,
    classify,
    find_candidates,
)
from launcher.sync.git import Repository, find_repository
from launcher.wording import count

PLACEHOLDERS = (".gitkeep", ".keep", ".gitignore")  # for directories that git would not keep without a file
_PLACEHOLDER = "git has only a placeholder"


@dataclass(frozen=True, slots=True)
class Selection:
    """The files and links below `root` that are sent, sorted, with `/` between names, and what isn't sent.

    sizes: in bytes, one for each path, as they were a moment ago; 0 for a link.
    left_out: what isn't sent, with the reason, for each topmost directory in which nothing is sent; the name of a
    directory ends with a slash.
    ignored_folders: the names of those right below the root that git ignores, of which it tracks nothing but
    placeholders, or that are virtual environments; also of links to directories. Caches are none of them.
    warnings: each with its remedy, in one line.
    """

    root: Path
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    left_out: Mapping[str, str]
    ignored_folders: tuple[str, ...]
    warnings: tuple[str, ...]


def find_root(here: Path) -> Path:
    """Return what is sent from this directory: the repository to which it belongs, or else the directory itself."""
    place, real = find_repository(here), Path(os.path.realpath(here))
    if place is None:
        return real
    if not real.is_relative_to(place.root):  # git's core.worktree may name any directory
        text = f"git takes {shown(place.root)} for the work tree of {shown(real)}"
        raise UsageError(text, "name the directory that contains the code: --sync=DIR")
    return place.root


def select(root: Path, *, staying: Sequence[Path] = ()) -> Selection:
    """Choose the files of `root` that are sent, also if it is a directory of a larger repository.

    staying: what isn't sent, with everything below it, such as the logs of the launcher; what contains the root is
    disregarded. Raises UsageError if a directory can't be read, or git fails.
    """
    if not _is_folder(root):
        raise UsageError(f"{shown(root)} is not a directory", "name the directory that contains the code")
    root = Path(os.path.realpath(root))
    place = find_repository(root)
    _refuse_everything(root, place)
    found = find_candidates(root, place)
    kept_back = _find_below(root, staying)
    sizes, links = _look(root, _without(found.names, kept_back))
    outside = [f"{path} -> {target}" for path, target in links.items() if not is_inside(path, target)]
    sizes |= {path: 0 for path, target in links.items() if is_inside(path, target)}
    hollow = _find_hollow(found, kept_back)
    paths = tuple(sorted(path for path in sizes if _top(path) not in hollow))
    left_out = _find_left_out(root, found, kept_back, hollow, paths)
    folders = tuple(sorted(_find_ignored_folders(root, left_out)))
    warnings = tuple(_find_warnings(sorted(_without(found.uninitialized, kept_back)), outside))
    return Selection(root, paths, tuple(sizes[path] for path in paths), left_out, folders, warnings)


def _refuse_everything(root: Path, place: Repository | None) -> None:
    """Raise UsageError for a home directory, or all of the disk, that is no repository: nobody means to send that."""
    if place is None and (root == Path(root.anchor) or root == _find_home()):
        raise UsageError(
            f"{shown(root)} would be sent as a whole, since it is no git repository",
            "cd to the directory of the code, or name it: --sync=DIR",
        )


def _find_home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:  # a user id without a name
        return None


def _find_below(root: Path, folders: Iterable[Path]) -> set[str]:
    """Return the names below the root that lead to these places, both as they are written and without links."""
    ways = {
        way
        for folder in folders
        for way in (Path(os.path.realpath(folder)), Path(os.path.realpath(folder.parent)) / folder.name)
    }
    return {way.relative_to(root).as_posix() for way in ways if root in way.parents}


def _without(names: Iterable[str], kept_back: Set[str]) -> list[str]:
    """Return the names that are neither kept back nor below a directory that is."""
    bare = ((name, name.rstrip("/")) for name in names)
    return [name for name, path in bare if path not in kept_back and kept_back.isdisjoint(parents(path))]


def _look(root: Path, names: Iterable[str]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the sizes of files and the targets of links; what is gone, or neither, is none of them."""
    sizes: dict[str, int] = {}
    links: dict[str, str] = {}
    real = {"": True}  # a tracked file below a link would be read from another place
    for name in names:
        try:
            if not _is_real(root, name.rpartition("/")[0], real):
                continue
            found = os.lstat(f"{root}/{name}")
            if stat.S_ISREG(found.st_mode):
                sizes[name] = found.st_size
            elif stat.S_ISLNK(found.st_mode):
                links[name] = os.readlink(f"{root}/{name}")  # noqa: PTH115 - the text, not a path
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            fix = "make it readable, or leave it out with .launchignore"
            raise UsageError(f"{shown(root / name)} can't be read: {error.strerror}", fix) from None
    return sizes, links


def _is_real(root: Path, folder: str, known: dict[str, bool]) -> bool:
    """Tell whether a directory is there without a link on the way."""
    if folder not in known:
        above = folder.rpartition("/")[0]
        known[folder] = _is_real(root, above, known) and stat.S_ISDIR(os.lstat(f"{root}/{folder}").st_mode)
    return known[folder]


def _top(path: str) -> str:
    return path.partition("/")[0]


def _find_hollow(found: Candidates, kept_back: Set[str]) -> set[str]:
    """Return the directories right below the root for which git keeps only placeholders: their content is elsewhere.

    None of them is one with tracked files that are gone from the disk, or with files that `.launchignore` leaves out.
    """
    below = [path for path in _without(found.names, kept_back) if "/" in path]
    busy = {_top(path) for path in below if path.rpartition("/")[2] not in PLACEHOLDERS}
    busy |= {_top(path) for path, reason in found.left_out.items() if reason == LAUNCHIGNORE}
    return {_top(path) for path in below}.difference(busy)


def _find_left_out(
    root: Path, found: Candidates, kept_back: Set[str], hollow: Iterable[str], sent: Sequence[str]
) -> dict[str, str]:
    reasons = {name: found.left_out[name] for name in _without(found.left_out, kept_back)}
    for name in kept_back:
        if os.path.lexists(root / name):
            reasons[f"{name}/" if _is_folder(root / name) else name] = STAYING
    return gather(reasons, sent) | {f"{name}/": _PLACEHOLDER for name in hollow}


def gather(reasons: Mapping[str, str], sent: Iterable[str]) -> dict[str, str]:
    """Replace files by the topmost directory above them in which nothing is sent, with the reason of its first one."""
    busy = {folder for path in sent for folder in parents(path)}
    found: dict[str, str] = {}
    for name, reason in sorted(reasons.items(), key=lambda item: (item[1] == CACHE, item[0])):
        above = [folder for folder in parents(name.rstrip("/")) if folder not in busy]
        found.setdefault(f"{above[-1]}/" if above else name, reason)
    return found


def _find_ignored_folders(root: Path, left_out: Mapping[str, str]) -> Iterable[str]:
    for name, reason in left_out.items():
        is_data = reason in (IGNORED, _PLACEHOLDER, ENVIRONMENT) and classify(f"{name.rstrip('/')}/") != CACHE
        if is_data and "/" not in name.rstrip("/") and _is_folder(root / name.rstrip("/")):
            yield name.rstrip("/")


def _find_warnings(uninitialized: Sequence[str], outside: Sequence[str]) -> Iterable[str]:
    if uninitialized:
        text = f"{count(len(uninitialized), 'submodule')} without files: {listed_names(uninitialized)}"
        yield f"{text}; fix: git submodule update --init --recursive"
    if outside:
        text = f"{count(len(outside), 'symbolic link')} not sent, because they lead out of the directory"
        fix = "use absolute paths instead, and leave the links out with .launchignore"
        yield f"{text}: {listed_names(outside)}; fix: {fix}"


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - false where pathlib would raise: a link to what is unreadable
