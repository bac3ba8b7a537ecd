"""The code of a run, if `launch` sends it: which files, under which hash, and how they lie on the hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NAME_CHARACTERS = 7  # of a hash, in messages
_NAMES_IN_USE = ("name", "listing", "listing.part", "links", "lock")  # launcher/node/code/folders.py


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in the run's directory, to a directory of the host that isn't sent."""

    name: str  # below the root of the tree
    target: str  # absolute, or from the host's `~`
    may_make: bool  # or it is an error if the target is missing
    is_filled: bool = False  # there are files in it on the launch host


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of one directory, as they were when `launch` began."""

    root: str  # the directory on the launch host
    listing: bytes  # of launcher.node.code.listing
    hash: str  # of the listing; it names the tree
    files: int
    bytes_in_all: int
    inside: str = ""  # the working directory of the ranks, below the root
    links: tuple[Link, ...] = ()
    home: str = ""  # of the launch host: what a host can't make below it is made below its own
    live: tuple[str, ...] = ()  # the same directory as users have it, here and on the hosts
    has_src: bool = False  # a directory src, where packages may be
    left_out: str = ""  # what wasn't sent, in words
    # The small files' contents by hash: whoever edits one while the run goes on doesn't change what is sent.
    kept: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The beginning of the hash, as messages show it."""
        return self.hash[:NAME_CHARACTERS]

    @property
    def folder_name(self) -> str:
        """The name of the directory on the hosts: that of the directory here, as far as all that read it allow.

        PYTHONPATH has colons between its directories, a host's message is one line of text, and a few names beside
        the directory are in use.
        """
        name = self.root.rstrip("/").rpartition("/")[2] or "root"
        plain = "".join(each if each.isprintable() and each != ":" else "_" for each in name)
        return f"{plain}_" if plain in _NAMES_IN_USE else plain

    def directory(self, root: str) -> str:
        """Return the working directory of a host whose tree has this root."""
        return f"{root}/{self.inside}" if self.inside else root

    def python_path(self, root: str, found: str, editables: Iterable[str] = ()) -> str:
        """Return PYTHONPATH for a host, with the tree first: an editable install of the live directory comes after it.

        root: of the tree there; found: what PYTHONPATH is there; editables: directories of editable packages. What of
        these is in the live directory becomes the same place in the tree.
        """
        own = [root, *([f"{root}/src"] if self.has_src else [])]
        packages = [moved for path in editables if (moved := self.move(path, root)) is not None]
        own += [place for package in packages for place in (f"{package}/src", package)]
        others = [self.move(entry, root) or entry for entry in found.split(":") if entry]
        return ":".join(dict.fromkeys([*own, *others]))

    def move(self, path: str, root: str) -> str | None:
        """Return the place in the tree for one in the live directory, or None for any other; root: of the tree."""
        for live in self.live:
            if path == live or path.startswith(f"{live}/"):
                return root + path[len(live) :]
        return None
