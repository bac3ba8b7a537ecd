"""The contents of a tree's files: small ones as they were listed, others from the directory or this machine's store."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Mapping
from typing import BinaryIO

from launcher.errors import UsageError
from launcher.escapes import one_line
from launcher.job.tree import Tree
from launcher.node.code import folders
from launcher.node.code.listing import LINK, Entry, decode
from launcher.node.code.store import Store, find_base
from launcher.node.messages import PIECE_BYTES
from launcher.sync.small_files import SmallFiles

# The controller of a detached run reads what was sent to its host, where it may be removed before that is held.
CHANGED_FIX = "start again when nothing writes to it and no launch clean --code runs, or leave it out by .launchignore"
_MOST_CHARACTERS = 200  # of a path in a message


class Contents:
    """Opens the file of an entry, if a file with its hash is anywhere on this machine."""

    def __init__(self, tree: Tree, variables: Mapping[str, str]) -> None:
        """variables: of this process; they tell where this machine keeps code."""
        self._store = Store(find_base(variables))
        self._roots = [tree.root]
        if not tree.kept:  # for a controller, to which the code was sent before
            self._roots += self._hold(tree)
        self._kept = tree.kept or self._read_small(tree)

    def open(self, entry: Entry) -> BinaryIO:
        """Return the file; raise UsageError if it is not as it was listed, and no small one."""
        if (content := self._kept.get(entry.content)) is not None:
            return io.BytesIO(content)
        paths = [f"{root}/{entry.path}" for root in self._roots]
        for path in (*paths, self._store.path_of(entry.content)):
            file = _open_regular(path)
            if file is None:
                continue
            if _has_hash(file, entry):
                file.seek(0)
                return file
            file.close()
        path = one_line(entry.path, _MOST_CHARACTERS)
        raise UsageError(f"{path} has changed or was removed since launch listed it", CHANGED_FIX)

    def _hold(self, tree: Tree) -> list[str]:
        """Return the directory in which this machine keeps the tree, locked for as long as this process lives.

        `launch clean --code` may remove everything else during the run, and a restart needs the files.
        """
        try:
            held = folders.hold(self._store, tree.folder_name, tree.listing)
        except OSError:  # there is a file in place of the directory, or a disk is gone
            held = None
        return [held.root] if held is not None else []

    def _read_small(self, tree: Tree) -> dict[str, bytes]:
        """Return the small files that this machine keeps: another run may take their directory before it is held."""
        kept = SmallFiles()
        for entry in decode(tree.listing):
            is_wanted = entry.kind != LINK and kept.has_room(entry.content, entry.size)
            file = _open_regular(self._store.path_of(entry.content)) if is_wanted else None
            if file is not None:
                with file:
                    content = file.read(entry.size + 1)
                if hashlib.sha256(content).hexdigest() == entry.content:
                    kept.add(entry.content, content)
        return kept.contents


def _open_regular(path: str) -> BinaryIO | None:
    with contextlib.suppress(OSError):
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    return None


def _has_hash(file: BinaryIO, entry: Entry) -> bool:
    digest, left = hashlib.sha256(), entry.size
    try:
        while left > 0:
            data = file.read(min(left, PIECE_BYTES))
            if not data:
                return False
            digest.update(data)
            left -= len(data)
        return not file.read(1) and digest.hexdigest() == entry.content
    except OSError:
        return False
