"""The listing of a tree: which files the code of a run has. It is sent to the nodes, and its hash names the tree."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Iterator

FILE = "-"
PROGRAM = "x"  # a file that is executable
LINK = "l"
HASH_CHARACTERS = 64  # SHA-256, in hex


class Entry:
    """One file of a tree, or one symbolic link."""

    __slots__ = ("content", "kind", "path", "size")

    def __init__(self, path: str, kind: str, size: int, content: str) -> None:
        """path: below the tree, with `/` between names and bytes that are no UTF-8 as surrogates.

        size: in bytes; content: the hash of a file, or the target of a link.
        """
        self.path = path
        self.kind = kind
        self.size = size
        self.content = content

    def as_list(self) -> list[object]:
        """Return the form that is sent."""
        return [self.path, self.kind, self.size, self.content]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.as_list() == other.as_list()

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return "Entry(%r, %r, %r, %r)" % (self.path, self.kind, self.size, self.content)


def encode(entries: Iterable[Entry]) -> bytes:
    """Return a listing as bytes; equal trees give equal bytes."""
    import json

    ordered = sorted(entries, key=lambda entry: entry.path)
    return json.dumps([entry.as_list() for entry in ordered], separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> list[Entry]:
    """Return the entries of a listing; raise ValueError if it isn't one, or names a place outside of the tree."""
    import json

    found = json.loads(data.decode("ascii"))
    entries = [_read_entry(each) for each in (found if isinstance(found, list) else [found])]
    paths = {entry.path for entry in entries}
    if len(paths) < len(entries):
        raise ValueError("a path is there twice")
    if any(parent in paths for path in paths for parent in parents(path)):
        raise ValueError("a path is a file and a directory")
    return entries


def hash_listing(data: bytes) -> str:
    """Return the hash that names the tree with this listing."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


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
