"""The queue of messages and rank output for the launcher, sent as fast as the network takes them."""

from __future__ import annotations

import os
import time
from typing import Any, Callable

from launcher.node import messages
from launcher.node.loop import WRITABLE, Loop

LIMIT_BYTES = 4 << 20  # while this much waits for the network, the ranks' pipes are not read
WRITE_BYTES = 256 << 10
DRAIN_BYTES = 4 << 20  # a dead rank's children may keep writing, so read no more than a pipe can hold
_STDOUT_FD = 1


class SendQueue:
    """The bytes that wait for stdout, which never blocks, and the ranks' pipes, which are read to fill it.

    Messages leave in the order in which they were sent, and each of them whole. While `LIMIT_BYTES` or more wait, the
    ranks' pipes are not read, so ranks wait in their writes and memory stays bounded. `push` and `close`, which change
    how much waits, restore this before they return. More may wait for a moment: messages are never held back, and
    `drain` keeps reading, up to `DRAIN_BYTES` per pipe, since a rank's output must be sent before its exit.

    Do not assume that a message has left when `send` returns, or ever: once nobody reads, everything that waits is
    dropped. The pipes are still read then, so that no rank hangs in a write.
    """

    def __init__(self, loop: Loop, is_known: Callable[[int], bool]) -> None:
        """is_known: whether a local rank has started yet."""
        self.sent_at = time.monotonic()
        self.has_read = False  # output was read since the loop's owner set this to False
        self._loop = loop
        self._is_known = is_known
        self._outgoing = bytearray()
        self._is_listening = True  # whether somebody still reads stdout
        self._streams: dict[int, tuple[int | None, int]] = {}  # fd -> (local rank, stream)
        os.set_blocking(_STDOUT_FD, False)

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Queue a message; the next `push` writes it, or this call if many bytes wait."""
        self.pass_on(messages.encode(kind, payload, **fields))

    def pass_on(self, message: bytes) -> None:
        """Queue a message that is encoded already."""
        if not self._is_listening:
            return
        self._outgoing += message
        self.sent_at = time.monotonic()
        if len(self._outgoing) >= WRITE_BYTES:
            self.push()

    def close(self) -> None:
        """Drop everything queued or sent from now on, since nobody reads it; the ranks' pipes are still read."""
        self._is_listening = False
        was_full = self._is_full()
        self._outgoing.clear()
        self._adjust_watches(was_full)

    def watch(self, fd: int, local_rank: int | None, stream: int) -> None:
        """Read a rank's pipe (None: torchrun's own) from now on, and send its output."""
        os.set_blocking(fd, False)
        self._streams[fd] = (local_rank, stream)
        if not self._is_full():
            self._resume(fd)

    def drain(self, is_wanted: Callable[[int | None], bool] = lambda rank: True) -> None:
        """Read what is in these ranks' pipes now, so that it is sent before the next message."""
        for fd in [fd for fd, (rank, _) in self._streams.items() if is_wanted(rank)]:
            left = DRAIN_BYTES
            while left > 0:
                size = self._read(fd)
                left -= size or left

    def flush(self) -> None:
        """Run the loop until everything is sent or nobody reads; the lease limits how long a slow reader may take."""
        self.push()
        while self._outgoing:
            self._loop.run_once()

    def _resume(self, fd: int) -> None:
        self._loop.watch(fd, lambda: self._read(fd))

    def _read(self, fd: int) -> int:
        """Read and send one piece; return its size, or 0 if there is nothing to read."""
        local_rank, stream = self._streams[fd]
        try:
            data = os.read(fd, messages.MAX_OUTPUT_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self.has_read = True
            self.send(messages.OUTPUT, data, local_rank=local_rank, stream=stream)
        elif local_rank is None or self._is_known(local_rank):
            # A FIFO that no writer has opened yet is at its end too, so check that the rank has started.
            self._loop.forget(fd)
            del self._streams[fd]
            os.close(fd)
        return len(data)

    def _is_full(self) -> bool:
        return len(self._outgoing) >= LIMIT_BYTES

    def push(self) -> None:
        """Write as much as the network takes now, without waiting."""
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
