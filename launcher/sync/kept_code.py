"""The code of earlier runs, as this machine keeps it: files by their hash, and the listing of each run's tree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LauncherError, UsageError
from launcher.escapes import listed_names
from launcher.job.tree import Tree
from launcher.node.code.listing import LINK, PROGRAM, Entry, decode, hash_file, hash_listing
from launcher.node.code.store import Store, find_base
from launcher.node.messages import PIECE_BYTES
from launcher.private_files import make_private
from launcher.sync.contents import Contents


@dataclass(frozen=True, slots=True)
class KeptTree:
    """The tree of an earlier run."""

    listing: bytes
    entries: tuple[Entry, ...]

    @staticmethod
    def read(listing: bytes) -> KeptTree:
        """Read a listing; raise LauncherError if it is damaged."""
        try:
            return KeptTree(listing, tuple(decode(listing)))
        except ValueError as error:
            raise LauncherError(f"the listing of the run's code is damaged: {error}") from None

    @property
    def hash(self) -> str:
        """The hash that names it."""
        return hash_listing(self.listing)

    @property
    def bytes_in_all(self) -> int:
        """The size of its files."""
        return sum(entry.size for entry in self.entries)

    @property
    def paths(self) -> frozenset[str]:
        """The paths in it."""
        return frozenset(entry.path for entry in self.entries)


def keep_contents(tree: Tree, variables: Mapping[str, str]) -> None:
    """Keep the files of a tree by their hash, beside those of earlier runs; raise OSError if that fails.

    A file that has changed since it was listed is not kept. variables: of this process.
    """
    store, contents = Store(find_base(variables)), Contents(tree, variables)
    store.make()
    store.prune()
    for entry in decode(tree.listing):
        if entry.kind == LINK:
            continue
        if store.has(entry):
            os.utime(store.path_of(entry.content))  # it is in use
            continue
        try:
            file = contents.open(entry)
        except UsageError:
            continue
        arrival = store.receive(entry.content)
        try:
            with file:
                while data := file.read(PIECE_BYTES):
                    arrival.write(data)
        except BaseException:
            arrival.abandon()
            raise
        arrival.finish()


def refuse_lacking(kept: KeptTree, tree: Tree, run_id: str, variables: Mapping[str, str]) -> None:
    """Raise UsageError if this machine lacks files of an earlier run; tree: that of now, which may have them."""
    contents, lacking = Contents(tree, variables), []
    for entry in kept.entries:
        if entry.kind != LINK:
            try:
                contents.open(entry).close()
            except UsageError:
                lacking.append(entry.path)
    if lacking:
        text = f"the code of run {run_id} isn't kept any more: {listed_names(lacking)}"
        raise UsageError(text, "omit --same-code to run the code of now")


def write_tree(kept: KeptTree, folder: Path, variables: Mapping[str, str]) -> list[str]:
    """Write the files of a tree to a new directory; return the paths of those that this machine keeps no more.

    Raise OSError if it can't be written.
    """
    store, lacking = Store(find_base(variables)), []
    folder.mkdir(mode=0o700)
    for entry in kept.entries:
        path = folder / entry.path
        if path.parent != folder:
            make_private(path.parent, folder, exist_ok=True)
        if entry.kind == LINK:
            continue
        if not store.copy(entry, str(path), 0o755 if entry.kind == PROGRAM else 0o644):
            lacking.append(entry.path)
    for entry in kept.entries:  # last, so that nothing is written through one
        if entry.kind == LINK:
            (folder / entry.path).symlink_to(entry.content)
    return lacking


def hash_path(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hash_file(file.fileno(), path.stat().st_size)
