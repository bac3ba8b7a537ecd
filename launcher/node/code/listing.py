"""The listing of a tree: which files the code of a run has. It is sent to the nodes, and its hash names the tree.

Whether a directory holds exactly these files is proved: each is opened and hashed again. What belongs to another user
is none of them, since that user could change it after the proof.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import Iterable, Iterator, NamedTuple

FILE = "-"
PROGRAM = "x"  # a file that is executable
LINK = "l"
_READ_BYTES = 1 << 20
HASH_CHARACTERS = 64  # SHA-256, in hex
BYTECODE = "__pycache__"


class Entry(NamedTuple):
    """One file of a tree, or one symbolic link."""

    path: str  # below the tree, with `/` between names and bytes that are no UTF-8 as surrogates
    kind: str
    size: int  # in bytes
    content: str  # the hash of a file, or the target of a link


def encode(entries: Iterable[Entry]) -> bytes:
    """Return a listing as bytes; equal trees give equal bytes."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    return json.dumps(ordered, separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> list[Entry]:
    """Return the entries of a listing; raise ValueError if it isn't one, or names a place outside of the tree."""
    found = json.loads(data.decode("ascii"))
    return [_read_entry(each) for each in (found if isinstance(found, list) else [found])]


def hash_listing(data: bytes) -> str:
    """Return the hash that names the tree with this listing."""
    return hashlib.sha256(data).hexdigest()


def hash_file(fd: int, size: int) -> str:
    """Return the hash of a file of this size; empty if it has another size. Raise OSError on a damaged disk."""
    digest, place = hashlib.sha256(), 0
    for data in read_pieces(fd, size):
        digest.update(data)
        place += len(data)
    return digest.hexdigest() if place == size else ""


def read_pieces(fd: int, size: int) -> Iterator[bytes]:
    """Yield what a file of this size has; one byte more of one that is longer."""
    place = 0
    while data := os.pread(fd, min(_READ_BYTES, size + 1 - place), place):
        yield data
        place += len(data)


def parents(path: str) -> Iterator[str]:
    """Yield `a/b` and `a` for `a/b/c`; none for a path without a slash."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def is_inside(path: str, target: str) -> bool:
    """Tell whether the link at `path` leads to a place in the tree, as far as its text says."""
    if target.startswith("/") or not target or "\0" in target:
        return False
    depth = path.count("/")
    for name in target.split("/"):
        depth += -1 if name == ".." else 0 if name in ("", ".") else 1
        if depth < 0:
            return False
    return True


def _read_entry(value: object) -> Entry:
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError("not an entry: %.80r" % (value,))
    path, kind, size, content = value
    if not isinstance(path, str) or "\0" in path or {"", ".", ".."}.intersection(path.split("/")):
        raise ValueError("not a path in a tree: %.80r" % (path,))
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(content, str):
        raise ValueError("not an entry: %.80r" % (value,))
    is_hash = len(content) == HASH_CHARACTERS and not content.strip("0123456789abcdef")
    if not (is_inside(path, content) if kind == LINK else kind in (FILE, PROGRAM) and is_hash):
        raise ValueError("not an entry: %.80r" % (value,))
    return Entry(path, kind, size, content)


# ---- the proof -------------------------------------------------------------------------------------------------------


def find_real_folders(root: str, paths: Iterable[str]) -> set[str]:
    """Return the directories above these paths that are there and this user's; no link on the way leads elsewhere.

    The root is "".
    """
    real: set[str] = set()
    for folder in ["", *sorted({folder for path in paths for folder in parents(path)})]:
        if (not folder or folder.rpartition("/")[0] in real) and _is_own_folder(os.path.join(root, folder)):
            real.add(folder)
    return real


def find_wrong(root: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries whose file or link is missing below `root`, or differs."""
    entries = list(entries)
    real = find_real_folders(root, [entry.path for entry in entries])
    return [
        entry
        for entry in entries
        if entry.path.rpartition("/")[0] not in real or not _is_right("%s/%s" % (root, entry.path), entry)
    ]


def _is_own_folder(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_right(path: str, entry: Entry) -> bool:
    try:
        if entry.kind == LINK:
            return os.readlink(path) == entry.content
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # nothing waits for a FIFO of that name
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        is_program = bool(found.st_mode & stat.S_IXUSR)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != entry.size:
            return False
        if is_program != (entry.kind == PROGRAM):
            return False
        return hash_file(fd, entry.size) == entry.content
    except OSError:  # a damaged disk
        return False
    finally:
        os.close(fd)


def find_written(root: str, entries: Iterable[Entry], since: float) -> list[str]:
    """Return what is below `root` and not in the listing, or was written after this time.

    Of a directory that is its name alone, unless no file is in it. Bytecode and links to absolute paths don't count.
    """
    kinds = {entry.path: entry.kind for entry in entries}
    sent = {folder for path in kinds for folder in parents(path)}
    written: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for each in _scan(os.path.join(root, folder)):
            path = folder + "/" + each.name if folder else each.name
            if each.is_dir(follow_symlinks=False):
                if path in sent:
                    waiting.append(path)
                elif each.name != BYTECODE and not is_hollow(each.path):
                    written.append(path + "/")
            elif leads_out(each.path):
                continue
            elif path not in kinds or each.is_symlink() != (kinds[path] == LINK) or _is_newer(each, since):
                written.append(path)
    return sorted(written)


def leads_out(path: str) -> bool:
    """Tell whether this is a link to an absolute path, as the links of a run are; those of a listing are relative."""
    return os.path.islink(path) and os.readlink(path).startswith("/")


def _is_newer(each: os.DirEntry[str], since: float) -> bool:
    return not each.is_symlink() and each.stat().st_mtime > since


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def is_hollow(folder: str) -> bool:
    """Tell whether no file is in a directory or below it."""
    return os.path.isdir(folder) and not any(names for _, _, names in os.walk(folder))
