"""The listing of a tree: which files the code of a run has. It is sent to the nodes, and its hash names the tree."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Iterable, Iterator, NamedTuple

FILE = "-"
PROGRAM = "x"  # a file that is executable
LINK = "l"
_READ_BYTES = 1 << 20
HASH_CHARACTERS = 64  # SHA-256, in hex


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
    if not isinstance(path, str) or not _is_path(path):
        raise ValueError("not a path in a tree: %.80r" % (path,))
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(content, str):
        raise ValueError("not an entry: %.80r" % (value,))
    is_hash = len(content) == HASH_CHARACTERS and not content.strip("0123456789abcdef")
    if not (is_inside(path, content) if kind == LINK else kind in (FILE, PROGRAM) and is_hash):
        raise ValueError("not an entry: %.80r" % (value,))
    return Entry(path, kind, size, content)


def _is_path(path: str) -> bool:
    return "\0" not in path and not {"", ".", ".."}.intersection(path.split("/"))
