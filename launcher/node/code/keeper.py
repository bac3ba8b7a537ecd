"""The supervisor's end of the process that puts the code in its place.

Messages go through unchanged in both directions. When the code is there, the process hands over the open lock of the
run's directory, which is held until this process exits: so no other run takes the directory over, or removes it.
"""

from __future__ import annotations

import array
import os
import socket

from launcher.node import messages
from launcher.node.code.folder import LOCK
from launcher.node.loop import READABLE, WRITABLE
from launcher.node.processes import workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    from launcher.node.loop import Loop
    from launcher.node.send_queue import SendQueue

    Header = Dict[str, Any]

_MOST_LOCKS = 4
_READ_BYTES = 1 << 18


class TreeKeeper:
    """One worker and the bytes on their way to it; the launcher bounds how many these are."""

    def __init__(self, loop: Loop, send_queue: SendQueue, on_placed: Callable[[str], object]) -> None:
        """on_placed: gets the directory once it holds the code."""
        self._loop = loop
        self._send_queue = send_queue
        self._on_placed = on_placed
        self.root = ""  # of the code, once it is there
        self._sock: socket.socket | None = None
        self._waiting = bytearray()
        self._decoder = messages.Decoder()
        self._locks: list[int] = []
        self._has_answered = False

    def start(self, wanted: Header, run: str, env: dict[str, str]) -> None:
        """Start the process; `wanted`: the launcher's `tree`, or `is_prune`. Raise OSError if it can't be started."""
        ours, theirs = socket.socketpair()
        try:
            if workers.fork() == 0:
                from launcher.node.code import code_process

                ours.close()
                code_process.work_and_exit(theirs, wanted, run, env)
        finally:
            theirs.close()
        ours.setblocking(False)
        self._sock = ours
        self._loop.watch(ours.fileno(), self._read)

    def forward(self, header: Header, payload: bytes) -> None:
        """Pass a message of the launcher on, as soon as the process takes it; drop it if that has ended."""
        if self._sock is None:
            return
        self._waiting += messages.encode(header["type"], payload, **messages.fields_of(header))
        self._push()

    def find_written(self) -> list[str]:
        """Return what the ranks have written to the directory of their code: the first names."""
        from launcher.node.code.folder import Folder
        from launcher.node.code.folders import is_hollow

        try:
            folder = Folder(os.path.dirname(self.root), os.path.basename(self.root))
            entries = folder.read_entries()
            beside = [name for name in folder.find_written(entries) if not is_hollow(os.path.join(self.root, name))]
            return [*beside, *folder.find_touched(entries)][: messages.MOST_NAMES]
        except OSError:  # the code isn't there, or the disk is gone
            return []

    def find_lock(self) -> str | None:
        """Return the lock of the directory, for a process that was started before the code was there."""
        return os.path.join(os.path.dirname(self.root), LOCK) if self.root else None

    def _push(self) -> None:
        if self._sock is None:
            return
        try:
            while self._waiting:
                with memoryview(self._waiting) as view:
                    sent = self._sock.send(view[: 1 << 20])
                del self._waiting[:sent]
        except BlockingIOError:
            pass
        except OSError:  # its end is read below
            self._waiting.clear()
        self._loop.watch(self._sock.fileno(), self._turn, READABLE | WRITABLE if self._waiting else READABLE)

    def _turn(self) -> None:
        self._push()
        self._read()

    def _read(self) -> None:
        if self._sock is None:
            return
        try:
            data, extra, _, _ = self._sock.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_MOST_LOCKS * 4))
        except BlockingIOError:
            return
        except OSError:
            data, extra = b"", []
        for _, _, numbers in extra:
            locks = array.array("i")
            locks.frombytes(numbers)
            for fd in locks:  # what is started from now on holds them too: the supervisor may be killed first
                os.set_inheritable(fd, True)
            self._locks += locks
        for header, payload in self._decoder.feed(data):
            self._send_queue.send(header["type"], payload, **messages.fields_of(header))
            if header["type"] in (messages.PLACED, messages.UNPLACED, messages.PRUNED):
                self._has_answered = True
            if header["type"] == messages.PLACED and header["path"] and not header["wrong"]:
                self.root = header["path"]
                self._on_placed(self.root)
        if not data:
            self._end()

    def _end(self) -> None:
        assert self._sock is not None  # it was read
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        self._sock = None
        if not self._has_answered:
            self._send_queue.send(
                messages.UNPLACED, text="the process that takes the code was killed", is_disk=False, is_full=False
            )
