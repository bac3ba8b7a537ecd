"""A small event loop on poll(2)."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any, Callable, NoReturn, Tuple

from launcher.node.processes import workers

Timer = Tuple[float, Callable[[], object]]


MOST_BYTES = 4 << 20  # as long as a message may be (messages.MAX_HEADER_BYTES)
WRITABLE = select.POLLOUT
READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Loop:
    """Calls callbacks when descriptors are ready and when timers are due.

    Callbacks run one after the other, on the thread that calls `run_once`, and none may block. A callback may watch,
    forget and cancel anything, even what is due in the same turn; a callback that was removed is not called. Forget a
    descriptor before you close it: its number may be reused at once.

    Times are those of time.monotonic(), which stops while the machine is suspended, so a timer may fire late by that
    long. An exception in a callback is not caught: it leaves `run_once` and ends the process.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._timers: list[Timer] = []

    def watch(self, fd: int, callback: Callable[[], object], events: int = READABLE) -> None:
        """Call `callback()` whenever `fd` is ready; this replaces an earlier callback of `fd`."""
        self._poll.register(fd, events)
        self._callbacks[fd] = callback

    def forget(self, fd: int) -> None:
        """Stop watching `fd`, so that it can be closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def is_watching(self, fd: int) -> bool:
        """Tell whether `fd` is watched."""
        return fd in self._callbacks

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call once after `delay_s`; return a handle for `cancel`."""
        timer = (time.monotonic() + delay_s, callback)
        self._timers.append(timer)
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Remove a timer; None, or one that has fired, is ignored."""
        if timer in self._timers:
            self._timers.remove(timer)

    def read_all(
        self,
        fd: int,
        callback: Callable[[bytes], object],
        timeout_s: float | None = None,
        on_timeout: Callable[[], object] = lambda: None,
    ) -> None:
        """Read `fd` to its end, then close it and call `callback(data)`; on a timeout, call `on_timeout()` first.

        Bytes beyond `MOST_BYTES` are read and dropped, so that the writer does not block.
        """
        kept = bytearray()
        timer: Timer | None = None

        def finish() -> None:
            self.forget(fd)
            self.cancel(timer)
            os.close(fd)
            callback(bytes(kept))

        def read() -> None:
            try:
                data = os.read(fd, 1 << 16)
            except OSError:  # of a connection that has broken
                data = b""
            if data:
                kept.extend(data[: MOST_BYTES - len(kept)])
            else:
                finish()

        def give_up() -> None:
            on_timeout()
            finish()

        self.watch(fd, read)
        if timeout_s is not None:
            timer = self.call_later(timeout_s, give_up)

    def write_all(self, fd: int, data: bytes) -> None:
        """Write `data` as fast as it is read, then close `fd`; drop the rest if nobody reads any more."""
        os.set_blocking(fd, False)
        rest = memoryview(data)

        def write() -> None:
            nonlocal rest
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                return
            except OSError:
                rest = rest[:0]
            if not rest:
                self.forget(fd)
                os.close(fd)

        self.watch(fd, write, WRITABLE)
        write()

    def ask(self, find: Callable[[], Any], timeout_s: float, default: Any, on_answer: Callable[[Any], object]) -> None:
        """Call `find`, which may block, in a fork; `on_answer` gets the JSON value that it returned, or `default`.

        That is the answer if it takes longer or raises an exception, if its process is killed, be it in the middle of
        its answer, and if none can be started. The process has no descriptor of this one: with a hung driver or disk
        it can't even be killed, and would hold a port or a connection.
        """
        answer_read = answer_write = -1
        try:
            answer_read, answer_write = os.pipe()
            pid = workers.fork()
            if pid == 0:
                _answer_and_exit(answer_write, find)
        except OSError as error:
            if answer_read >= 0:
                os.close(answer_read)
            workers.complain("a process can't be started: %s" % error.strerror)
            on_answer(default)
            return
        finally:
            if answer_write >= 0:
                os.close(answer_write)
        child = workers.Child(pid)

        def take(data: bytes) -> None:
            try:
                answer = json.loads(data.decode())
            except ValueError:  # its writer has written nothing, or half of it
                answer = default
            on_answer(answer)

        self.read_all(answer_read, take, timeout_s, lambda: workers.kill(child))

    def run_once(self) -> None:
        """Wait for the next event or timer, and call its callback."""
        wait_ms = None
        if self._timers:
            wait_ms = max(0, (min(timer[0] for timer in self._timers) - time.monotonic()) * 1000)
        ready = [(fd, self._callbacks.get(fd)) for fd, _ in self._poll.poll(wait_ms)]
        for fd, callback in ready:
            # An earlier callback of this turn may have closed the descriptor, and its number may be reused by now.
            if callback is not None and self._callbacks.get(fd) is callback:
                callback()
        now = time.monotonic()
        for timer in [timer for timer in self._timers if timer[0] <= now]:
            if timer in self._timers:  # an earlier callback of this turn may have cancelled it
                self.cancel(timer)
                timer[1]()


def _answer_and_exit(fd: int, find: Callable[[], Any]) -> NoReturn:
    try:
        workers.drop_descriptors(fd)
        with os.fdopen(fd, "w") as file:
            file.write(json.dumps(find()))
    finally:
        os._exit(0)
