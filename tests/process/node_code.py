"""A launcher's part of the conversation with a node about code."""

from __future__ import annotations

import hashlib
import os
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
        return {"hash": self.hash, "name": "proj", "sub": "", "links": [], "optional": [], "home": "",
                "group": os.urandom(4).hex(), "is_check": False, **fields}  # fmt: skip

    def wanted(self, request: Message) -> list[str]:
        bits = request["content"]
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

    def request(self) -> Message:
        """Return the next WANTED."""
        self._requests += 1
        self.node.wait_until(lambda: len(self.node.find(messages.WANTED)) >= self._requests, "wanted")
        return self.node.find(messages.WANTED)[self._requests - 1]

    def ask(self) -> list[str]:
        """Return which files are wanted; send the listing before that if it is."""
        request = self.request()
        if request["needs_listing"]:
            self.node.send(messages.LISTING, zlib.compress(self.code.listing))
            request = self.request()
        return self.code.wanted(request)

    def send(self, *paths: str, damage: bytes = b"", is_for_chain: bool = False) -> None:
        for path in paths:
            index = next(place for place, entry in enumerate(self.code.entries) if entry.path == path)
            data = damage or self.code.files[path]
            self.node.send(
                messages.PIECE,
                data,
                parts=[[index, 0, self.code.entries[index].size]],
                is_packed=False,
                is_for_chain=is_for_chain,
            )

    def place(self, **fields: Any) -> Message:
        self.node.send(messages.PLACE, **{"is_writer": True, "is_in_chain": False, **fields})
        self.node.wait_until(lambda: self.node.find(messages.PLACED) or self.node.find(messages.UNPLACED), "an answer")
        return (self.node.find(messages.PLACED) or self.node.find(messages.UNPLACED))[0]

    def deliver(self) -> Path:
        """Send all that is wanted; return where the code is."""
        self.send(*self.ask())
        answer = self.place()
        assert (answer["type"], answer["hash"], answer["wrong"]) == (messages.PLACED, self.code.hash, []), answer
        return Path(answer["path"])
