"""A launcher's part of the conversation with a node about code."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machines.patience import NEVER_S
from node_process import Message, Node

from launcher.node import messages
from launcher.node.code import listing
from launcher.node.code.listing import Entry

FILES = {"train.py": b"print(1)\n", "pkg/model.py": b"SIZE = 3\n", "pkg/copy.py": b"SIZE = 3\n", "empty": b""}


class Code:
    """Files as a launcher lists and sends them."""

    def __init__(self, files: Mapping[str, bytes], *, programs: tuple[str, ...] = (), links: Mapping[str, str] = {}):
        self.files = dict(files)
        self.entries = [
            Entry(path, listing.PROGRAM if path in programs else listing.FILE, len(data), hash_of(data))
            for path, data in files.items()
        ] + [Entry(path, listing.LINK, 0, target) for path, target in links.items()]
        self.entries.sort(key=lambda entry: entry.path)
        self.listing = listing.encode(self.entries)
        self.hash = listing.hash_listing(self.listing)

    def fields(self, **fields: Any) -> dict[str, Any]:
        return {"hash": self.hash, "name": "proj", "sub": "", "links": [], "home": "", **fields}

    def wanted(self, request: Message | None) -> list[str]:
        bits = request["content"] if request is not None else b""
        return [entry.path for place, entry in enumerate(self.entries) if bits and bits[place // 8] >> place % 8 & 1]


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Talk:
    """A launcher's part of the conversation with one node."""

    def __init__(self, node: Node, code: Code, order: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """order: what else the node is asked; fields: of the tree."""
        self.node = node
        self.code = code
        self._requests = 0
        node.prepare(tree=code.fields(**fields), silence_s=NEVER_S, **(order or {}))

    def request(self) -> Message | None:
        """Return the next WANTED, or None if the last word came instead."""
        self._requests += 1
        self.node.wait_until(lambda: len(self.node.find(messages.WANTED)) >= self._requests or self._words(), "wanted")
        return (self.node.find(messages.WANTED)[self._requests - 1 :] or [None])[0]

    def ask(self) -> list[str]:
        """Return which files are wanted; send the listing before that if it is."""
        request = self.request()
        if request is not None and request["needs_listing"]:
            self.node.send(messages.LISTING, zlib.compress(self.code.listing))
            request = self.request()
        return self.code.wanted(request)

    def send(self, *paths: str, damage: bytes = b"") -> None:
        """Send these files, a piece for each that isn't empty."""
        for path in paths:
            if data := damage or self.code.files[path]:
                self.node.send(messages.PIECE, data, is_packed=False)

    def answer(self) -> Message:
        """Return the node's last word."""
        self.node.wait_until(self._words, "an answer")
        return self._words()[0]

    def deliver(self) -> Path:
        """Send all that is wanted; return where the code is."""
        self.send(*self.ask())
        answer = self.answer()
        assert (answer["type"], answer.get("wrong")) == (messages.PLACED, []), answer
        return Path(answer["path"])

    def _words(self) -> list[Message]:
        return self.node.find(messages.PLACED) or self.node.find(messages.UNPLACED)
