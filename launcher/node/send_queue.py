"""The way to the launcher: messages, and the ranks' output among them, no faster than the network takes them."""

from __future__ import annotations

import os
import time

from launcher.node import messages
from launcher.node.loop import WRITABLE, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

LIMIT_BYTES = 4 << 20  # while this much waits for the network, the ranks' pipes are left unread
WRITE_BYTES = 256 << 10
DRAIN_BYTES = 4 << 20  # a dead rank's children may write on: no more of it is waited for than pipes can hold
_STDOUT_FD = 1


class SendQueue:
    """What waits for stdout, which never blocks, and the pipes of the ranks that it is read from.

    Messages leave in the order in which they were sent, and each of them whole. While `LIMIT_BYTES` or more wait, the
    ranks' pipes are not read, so ranks wait in their writes and memory stays bounded. `push` and `close`, which change
    how much waits, restore this before they return. More may wait for a moment: messages are never held back, and
    `drain` reads on, up to `DRAIN_BYTES` a pipe, since the exit that it is called for must come after the output.

    Do not assume that a message has left when `send` returns, or ever: once nobody reads, all that waits is dropped.
    The pipes are read on then, so that no rank hangs in a write.
    """

    def __init__(self, loop: Loop, is_known: Callable[[int], bool]) -> None:
        """is_known: whether a local rank has started yet."""
        self.sent_at = time.monotonic()
        self.has_read = False  # output was read since the loop's owner set this to False
        self._loop = loop
        self._is_known = is_known
        self._outgoing = bytearray()
        self._is_listening = True  # whether somebody still reads what we send
        self._streams: dict[int, tuple[int | None, int]] = {}  # fd -> (local rank, stream)
        os.set_blocking(_STDOUT_FD, False)

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Queue a message behind those that wait; the next `push` writes it, or this call if many bytes wait."""
        if not self._is_listening:
            return
        self._outgoing += messages.encode(kind, payload, **fields)
        self.sent_at = time.monotonic()
        if len(self._outgoing) >= WRITE_BYTES:
            self.push()

    def close(self) -> None:
        """Drop all that waits and all that will be sent: nobody reads it. The ranks' pipes are read on."""
        self._is_listening = False
        was_full = self._is_full()
        self._outgoing.clear()
        self._adjust_watches(was_full)

    def watch(self, fd: int, local_rank: int | None, stream: int) -> None:
        """Read a pipe of a rank (None: torchrun's own) from now on, and send what comes."""
        os.set_blocking(fd, False)
        self._streams[fd] = (local_rank, stream)
        if not self._is_full():
            self._resume(fd)

    def drain(self, is_wanted: Callable[[int | None], bool] = lambda rank: True) -> None:
        """Read what is in the pipes of these ranks now, so that it is sent before whatever is sent next."""
        for fd in [fd for fd, (rank, _) in self._streams.items() if is_wanted(rank)]:
            left = DRAIN_BYTES
            while left > 0:
                size = self._read(fd)
                left -= size or left

    def flush(self) -> None:
        """Run the loop until all has left or nobody reads: a reader may be slow, and the lease says how long."""
        self.push()
        while self._outgoing:
            self._loop.run_once()

    def _resume(self, fd: int) -> None:
        self._loop.watch(fd, lambda: self._read(fd))

    def _read(self, fd: int) -> int:
        """Read and send one piece; return its size, 0 if none is there."""
        local_rank, stream = self._streams[fd]
        try:
            data = os.read(fd, messages.MAX_OUTPUT_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self.has_read = True
            self.send(messages.OUTPUT, data, local_rank=local_rank, stream=stream)
        elif local_rank is None or self._is_known(local_rank):
            # A FIFO that no writer has opened yet is at its end as well, hence the question.
            self._loop.forget(fd)
            del self._streams[fd]
            os.close(fd)
        return len(data)

    def _is_full(self) -> bool:
        return len(self._outgoing) >= LIMIT_BYTES

    def push(self) -> None:
        """Write what the network takes now, without waiting."""
        if not self._outgoing:
            return
        was_full = self._is_full()
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as view:
                    written = os.write(_STDOUT_FD, view[: 1 << 20])
                del self._outgoing[:written]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._adjust_watches(was_full)

    def _adjust_watches(self, was_full: bool) -> None:
        if self._outgoing and not self._loop.is_watching(_STDOUT_FD):
            self._loop.watch(_STDOUT_FD, self.push, WRITABLE)
        elif not self._outgoing and self._loop.is_watching(_STDOUT_FD):
            self._loop.forget(_STDOUT_FD)
        is_full = self._is_full()
        for fd in list(self._streams) if is_full or was_full else ():
            if is_full:
                self._loop.forget(fd)
            elif not self._loop.is_watching(fd):
                self._resume(fd)
