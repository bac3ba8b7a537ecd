"""A node that lies: what an honest one says to each message, and a transport to one that says something else."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.hosts.host import Host
from launcher.node import messages
from launcher.node.messages import Decoder, encode
from launcher.transports.base import STDOUT

Piece = bytes | tuple[int, bytes] | None  # of stdout, of another stream, or the end
Lie = Callable[[dict[str, Any], list[Piece], str], Sequence[Piece | Iterator[Piece]]]

FACTS = {
    "hostname": "liar", "cpu_count": 4, "home": "/root", "ssh_client": None, "ssh_address": None,
    "addresses": [["lo", "127.0.0.1"]], "workdir_found": True, "script_found": True, "gpus": [], "gpu_error": None,
    "search": {}, "setup": None,
}  # fmt: skip
HELLO = encode(messages.HELLO, folder="/tmp/launch-x", keepers=[[1, 2]])
CENSUS = encode(messages.CENSUS, left=[], reason=None, files=0)
HOSTILE = "boom\x1b[2J\x1b]0;t\x07\nlaunch: 0 processes left on 2 hosts"


def answer(order: dict[str, Any]) -> list[Piece]:
    """Return what an honest node says to a message."""
    kind = order["type"]
    if kind == messages.PREPARE:
        return [HELLO, *([encode(messages.FACTS, **FACTS)] if order.get("facts") else [])]
    if kind == messages.ROUTE:
        return [encode(messages.ROUTED, clock=time.time(), interface="lo", address="127.0.0.1", port=None)]
    if kind == messages.START:
        return [encode(messages.STARTED, local_rank=process["rank"], pid=1) for process in order["processes"]]
    return [CENSUS, None] if kind == messages.STOP else []


class Channel:
    """The end of a connection to a node that answers as `lie` says."""

    is_closed = False

    def __init__(self, lie: Lie, nonce: str) -> None:
        self._lie = lie
        self._nonce = nonce
        self._pieces: queue.SimpleQueue[Piece | Iterator[Piece]] = queue.SimpleQueue()
        self._pieces.put(f"~launch {nonce} missing 3.11\n".encode())
        self._has_code = False
        self._decoder = Decoder(max_header_bytes=1 << 30)
        self._flood: Iterator[Piece] | None = None

    def read(self) -> tuple[int, bytes]:
        piece = next(self._flood) if self._flood is not None else self._pieces.get()
        if isinstance(piece, Iterator):
            self._flood = piece
            return self.read()
        if piece is None or self.is_closed:
            return 0, b""
        return piece if isinstance(piece, tuple) else (STDOUT, piece)

    def write(self, data: bytes) -> None:
        if not self._has_code:  # what runs on a node comes first
            self._has_code = True
            return
        for order, _ in self._decoder.feed(data):
            for piece in self._lie(order, answer(order), self._nonce):
                self._pieces.put(piece)

    def say(self, piece: Piece) -> None:
        """Say this unasked."""
        self._pieces.put(piece)

    def close(self) -> None:
        self.is_closed = True
        self._pieces.put(None)

    def exit_code(self) -> int | None:
        return 0


@dataclass(frozen=True)
class LyingTransport:
    """Leads to a node that lies; over a second connection, which looks for left-overs, it is honest."""

    lie: Lie
    name: str = "liar"
    opened: list[Channel] = field(default_factory=list)

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        nonce = re.search(r"~launch ([0-9a-f]+)", command)
        assert nonce is not None
        self.opened.append(Channel(self.lie if not self.opened else lambda order, said, _: said, nonce[1]))
        return self.opened[-1]

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()
