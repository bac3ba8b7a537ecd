"""Which files of a directory are sent, and what stays on this machine, with the reasons.

A file is sent if git tracks it or would let it be added, unless `.launchignore` says otherwise. Without a repository
every file is, less the default exclusions. The contents are those on the disk, not those of a commit.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.escapes import listed_names, shown
from launcher.node.code.listing import is_inside, parents
from launcher.sync.candidates import Candidates, find_candidates, find_named_folders
from launcher.sync.default_exclusions import CACHE, ENVIRONMENT, IGNORED, LAUNCHIGNORE, SECRETS, STAYING, classify
from launcher.sync.git import Absence, Repository, find_repository, list_ignored
from launcher.wording import count

PLACEHOLDERS = (".gitkeep", ".keep", ".gitignore")  # for directories that git would not keep without a file
_KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-")
_KEY_BYTES = 100  # of a file in which it is the first line
_MAY_HOLD_KEYS = (".pem", ".key", ".crt", ".json")  # after certificates, or as a value of a cloud's service account
_MIXED_BYTES = 64 << 10
_PLACEHOLDER = "git has only a placeholder"
_MOST_LINKS = 40  # that Linux follows in one path
MEASURE_S = 0.3


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One file or directory that stays on this machine; the name of a directory ends with a slash.

    size_bytes: None if it wasn't counted; if `is_partial`, there is more than that.
    """

    name: str
    reason: str
    size_bytes: int | None = None
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The files and links below `root` that are sent, sorted, with `/` between names, and what isn't sent.

    sizes: in bytes, one for each path, as they were a moment ago; 0 for a link.
    left_out: what was ignored, for each topmost directory in which nothing is sent.
    ignored_folders: the names of those right below the root that git ignores, of which it tracks nothing but
    placeholders, or that are virtual environments; also of links to directories. Caches are none of them. Directories
    that .gitignore names are among them, seen from the root or from where the ranks run, even if they don't exist yet.
    warnings: each with its remedy, in one line.
    exposed: files that may hold secrets, and that git neither tracks nor ignores.
    """

    root: Path
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    left_out: tuple[LeftOut, ...]
    ignored_folders: tuple[str, ...]
    warnings: tuple[str, ...]
    is_repository: bool
    exposed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """The candidates that exist: sizes of files, targets of links, and what isn't there."""

    sizes: Mapping[str, int]
    links: Mapping[str, str]
    missing: Set[str]


def find_root(here: Path) -> Path:
    """Return what is sent from this directory: the repository to which it belongs, or else the directory itself."""
    place, real = find_repository(here), Path(os.path.realpath(here))
    if not isinstance(place, Repository):
        return real
    if not real.is_relative_to(place.root):  # git's core.worktree may name any directory
        text = f"git takes {shown(place.root)} for the work tree of {shown(real)}"
        raise UsageError(text, "name the directory that contains the code: --sync=DIR")
    return place.root


def select(root: Path, *, staying: Sequence[Path] = (), here: Path | None = None) -> Selection:
    """Choose the files of `root` that are sent, also if it is a directory of a larger repository.

    staying: what isn't sent, with everything below it, such as the logs of the launcher; what contains the root is
    disregarded. here: where the ranks run, if that is below the root. Raises UsageError if a directory can't be read,
    git fails, or two names would be one on some disks.
    """
    if not _is_folder(root):
        raise UsageError(f"{shown(root)} is not a directory", "name the directory that contains the code")
    root = Path(os.path.realpath(root))
    place = find_repository(root)
    _refuse_everything(root, place)
    found = find_candidates(root, place)
    kept_back = _find_below(root, staying)
    disk = _look(root, _without(found.names, kept_back))
    hollow = _find_hollow(found, kept_back) if isinstance(place, Repository) else set()
    useful = find_useful_links(disk.sizes.keys(), disk.links)
    sizes = {**disk.sizes, **dict.fromkeys(useful, 0)}
    paths = tuple(sorted(path for path in sizes if _top(path) not in hollow))
    refuse_clashes(paths)
    left_out = _find_left_out(root, found, kept_back, hollow, paths)
    useless = {path: target for path, target in disk.links.items() if path not in useful}
    linked = set(_find_ignored_folders(root, left_out))
    if isinstance(place, Repository):
        named = find_named_folders(root, place, _find_inside(root, here))
        linked |= _find_free(root, named, {*paths, *linked}, kept_back)
    folders = tuple(sorted(linked))
    warnings = _find_warnings(found, kept_back, found.sparse & disk.missing, useless)
    return Selection(
        root, paths, tuple(sizes[path] for path in paths), left_out, folders,
        (*warnings, *_warn_of_linked_code(root, folders, hollow)),
        isinstance(place, Repository),
        tuple(_find_exposed(root, found, disk.sizes.keys() & paths, is_repository=isinstance(place, Repository))),
    )  # fmt: skip


def _refuse_everything(root: Path, place: Repository | Absence) -> None:
    """Raise UsageError for a home directory, or all of the disk, that is no repository: nobody means to send that."""
    if not isinstance(place, Repository) and (root == Path(root.anchor) or root == _find_home()):
        raise UsageError(
            f"{shown(root)} would be sent as a whole, since it is no git repository",
            "cd to the directory of the code, or name it: --sync=DIR",
        )


def _find_home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:  # a user id without a name
        return None


def _find_inside(root: Path, here: Path | None) -> str:
    real = Path(os.path.realpath(here or root))
    return real.relative_to(root).as_posix() if root in real.parents else ""


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


def _look(root: Path, names: Iterable[str]) -> _OnDisk:
    """Find out what the names are on the disk; a directory, or what is no file at all, is skipped."""
    sizes: dict[str, int] = {}
    links: dict[str, str] = {}
    missing: set[str] = set()
    real = {"": True}  # a tracked file below a link would be read from another place
    for name in names:
        try:
            if not _is_real(root, name.rpartition("/")[0], real):
                missing.add(name)
                continue
            found = os.lstat(f"{root}/{name}")
            if stat.S_ISREG(found.st_mode):
                sizes[name] = found.st_size
            elif stat.S_ISLNK(found.st_mode):
                links[name] = os.readlink(f"{root}/{name}")  # noqa: PTH115 - the text, not a path
        except (FileNotFoundError, NotADirectoryError):
            missing.add(name)
        except OSError as error:
            fix = "make it readable, or leave it out with .launchignore"
            raise UsageError(f"{shown(root / name)} can't be read: {error.strerror}", fix) from None
    return _OnDisk(sizes, links, missing)


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
) -> tuple[LeftOut, ...]:
    reasons = {name: found.left_out[name] for name in _without(found.left_out, kept_back)}
    for name in kept_back:
        if os.path.lexists(root / name):
            reasons[f"{name}/" if _is_folder(root / name) else name] = STAYING
    return measure(root, gather(reasons, sent) | {f"{name}/": _PLACEHOLDER for name in hollow})


def _find_ignored_folders(root: Path, left_out: Iterable[LeftOut]) -> Iterable[str]:
    for each in left_out:
        name = each.name.rstrip("/")
        is_data = each.reason in (IGNORED, _PLACEHOLDER, ENVIRONMENT) and classify(f"{name}/") != CACHE
        if is_data and "/" not in name and _is_folder(root / name):
            yield name


def _find_free(root: Path, names: Iterable[str], taken: Set[str], kept_back: Set[str]) -> set[str]:
    """Return the directories that can be links: nothing that is taken, or another of them, is there, above or below."""
    above = {folder for path in taken for folder in parents(path)}
    found: set[str] = set()
    for name in sorted(names):  # what is above comes first
        ways = {name, *parents(name)}
        is_free = name not in above and ways.isdisjoint({*taken, *kept_back, *found})
        if is_free and (_is_folder(root / name) or not os.path.lexists(root / name)):
            found.add(name)
    return found


def _find_warnings(found: Candidates, kept_back: Set[str], sparse: Set[str], links: Mapping[str, str]) -> Iterable[str]:
    if names := _without(found.uninitialized, kept_back):
        text = f"{count(len(names), 'submodule')} without files: {listed_names(names)}"
        yield f"{text}; fix: git submodule update --init --recursive"
    if names := _without(found.nested, kept_back):
        what = "repository" if len(names) == 1 else "repositories"
        text = f"not sent, as git doesn't list the files of a {what} in a repository: {listed_names(names)}"
        yield f"{text}; fix: add it as a submodule, or remove its .git"
    if sparse:
        text = f"{count(len(sparse), 'file')} of a sparse checkout not sent: {listed_names(sparse)}"
        yield f"{text}; fix: git sparse-checkout disable"
    if links:
        named = listed_names([f"{path} -> {target}" for path, target in links.items()])
        text = f"{count(len(links), 'symbolic link')} not sent, because they lead to nothing that is sent: {named}"
        yield f"{text}; fix: use absolute paths instead, and leave the links out with .launchignore"


def _find_exposed(root: Path, found: Candidates, sent: Set[str], *, is_repository: bool) -> Iterable[str]:
    """Return the files that may hold secrets, by their names or as private keys, and that nobody meant to be sent.

    Somebody did who tracks one, or takes it from .gitignore, or from the defaults without a repository, with a line of
    `.launchignore`.
    """
    untracked = sorted(found.untracked & sent if is_repository else sent)
    named = {name for name in untracked if is_repository and classify(name) == SECRETS and not _is_template(name)}
    exposed = [name for name in untracked if name in named or holds_key(f"{root}/{name}")]
    meant = set(list_ignored(root, exposed)) if is_repository else set[str]()
    return (name for name in exposed if name not in meant)


def _is_template(name: str) -> bool:
    return name.rpartition(".")[2] in ("example", "sample", "template", "dist")


def holds_key(path: str) -> bool:
    """Tell whether a file is a private key, or one of those types that may have one in them."""
    is_mixed = path.endswith(_MAY_HOLD_KEYS)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            head = file.read(_MIXED_BYTES if is_mixed else _KEY_BYTES)
    except OSError:  # it is read again before it is sent
        return False
    return bool(_KEY.search(head) if is_mixed else _KEY.match(head.lstrip()))


def _warn_of_linked_code(root: Path, folders: Iterable[str], hollow: Set[str]) -> Iterable[str]:
    """Name the directories whose Python files nobody compares: each host has its own."""
    for name in folders:
        if os.path.islink(root / name):  # noqa: PTH114 - as in _is_folder
            continue
        try:
            with os.scandir(root / name) as entries:
                has_code = any(entry.name.endswith(".py") for entry in entries)
        except OSError:  # another user's
            continue
        if has_code:
            text = f"git ignores {shown(name)}/, so its Python files are not sent, and each host uses its own"
            line = f"!{name}/*" if name in hollow else f"!{name}/"
            yield f"{text}; fix: put {line} into .launchignore to send them"


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - false where pathlib would raise: a link to what is unreadable


# ---- what isn't sent, and how large it is ----------------------------------------------------------------------------


def gather(reasons: Mapping[str, str], sent: Iterable[str]) -> dict[str, str]:
    """Replace files by the topmost directory above them in which nothing is sent; its reason is the most common one."""
    busy = {folder for path in sent for folder in parents(path)}
    votes: dict[str, dict[str, int]] = {}
    for name, reason in reasons.items():
        above = [folder for folder in parents(name.rstrip("/")) if folder not in busy]
        counted = votes.setdefault(f"{above[-1]}/" if above else name, {})
        counted[reason] = counted.get(reason, 0) + 1
    return {name: max(counted, key=counted.__getitem__) for name, counted in sorted(votes.items())}


def measure(root: Path, reasons: Mapping[str, str]) -> tuple[LeftOut, ...]:
    """Find the sizes, of files first; after MEASURE_S, what isn't counted stays so. Caches aren't counted."""
    deadline = time.monotonic() + MEASURE_S
    ordered = sorted(reasons.items(), key=lambda item: (item[0].endswith("/"), item[0]))
    found = [
        LeftOut(name, reason, *((None, False) if reason == CACHE else _measure(root / name, deadline)))
        for name, reason in ordered
    ]
    return tuple(sorted(found, key=lambda each: each.name))


def _measure(path: Path, deadline: float) -> tuple[int | None, bool]:
    """Return the size of a file, or of all files below a directory, and whether there is more."""
    if time.monotonic() > deadline:
        return None, False
    try:
        found = path.lstat()
    except OSError:
        return None, False
    if not stat.S_ISDIR(found.st_mode):
        return found.st_size, False
    size, waiting = 0, [str(path)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:  # what is unreadable isn't counted
            for entry in entries:
                if time.monotonic() > deadline:
                    return (size, True) if size else (None, False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size, False


# ---- links and names, as the hosts will see them ---------------------------------------------------------------------


def find_useful_links(files: Set[str], links: Mapping[str, str]) -> set[str]:
    """Return the links that lead to a file or directory that is sent, over links that are sent.

    links: the target of each link; a link whose text leads out of the tree is none of them, even if it comes back.
    """
    useful = {path for path, target in links.items() if is_inside(path, target)}
    while True:
        folders = {folder for path in (*files, *useful) for folder in parents(path)} | {""}
        sent = {path: links[path] for path in useful}
        left = {path for path in useful if _is_there(path, files, folders, sent)}
        if left == useful:
            return useful
        useful = left  # and what leads over the others has to go too


def _is_there(path: str, files: Set[str], folders: Set[str], links: Mapping[str, str]) -> bool:
    place, names, followed = "", path.split("/")[::-1], 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if place in files or (name == ".." and not place):
            return False
        below = place.rpartition("/")[0] if name == ".." else f"{place}/{name}" if place else name
        if below in links:
            followed += 1
            if followed > _MOST_LINKS:
                return False
            names += links[below].split("/")[::-1]
        elif below in folders or below in files:
            place = below
        else:
            return False
    return True


def refuse_clashes(paths: Iterable[str]) -> None:
    """Raise UsageError if two paths, or the directories above them, differ only in case or in Unicode normal form.

    The disks of Macs, and Linux directories with case folding, keep only one of them.
    """
    spelled: dict[str, str] = {}
    for path in paths:
        for part in (path, *parents(path)):
            known = spelled.setdefault(_fold(part), part)
            if known != part:
                kind = "case" if known.lower() == part.lower() else "the form of their letters (NFC and NFD)"
                raise UsageError(
                    f"{shown(known)} and {shown(part)} differ only in {kind}: some disks keep only one of them",
                    "rename one of them, or leave it out with .launchignore",
                )
            if known is not part:
                break  # this directory was seen, and so were those above it


def _fold(name: str) -> str:
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())
