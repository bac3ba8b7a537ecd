"""The processes that an agent has started, and the bytes between them and the controller."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from functools import partial
from typing import Callable, Iterator, Tuple

from launcher.node import messages

Wanted = Tuple[int, int, Callable[[], object]]


READ_BYTES = 64 << 10
REFUSED_EXIT_CODE = 126


class Child:
    """A shell command in a session of its own, whose standard streams are pipes to this process.

    The code that reaps it sets `exit_code`. It is over once that is set and `streams` is empty; until then, more
    output may come.
    """

    def __init__(self, command: str, env: dict[str, str]) -> None:
        stdin, self.stdin = os.pipe()
        stdout, stderr = os.pipe(), os.pipe()
        self.streams = {stdout[0]: b"out", stderr[0]: b"err"}
        self.backlog = bytearray()  # input that its stdin has not taken yet
        self.untold_bytes = 0  # input that was taken, and that the controller wasn't told of yet
        self.untaken_bytes = 0  # output that was sent, and that the launcher has not taken yet
        self.exit_code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, env, (stdin, stdout[1], stderr[1]))
        for fd in (stdin, stdout[1], stderr[1]):
            os.close(fd)
        os.set_blocking(self.stdin, False)

    def hang_up(self) -> None:
        """Close all pipes, as sshd does when the connection closes."""
        for fd in (self.stdin, *self.streams):
            if fd >= 0:
                os.close(fd)
        self.stdin = -1
        self.backlog.clear()
        self.streams.clear()


class Children:
    """All processes of an agent: by channel those of the current connection, and those of earlier ones.

    Each channel that was opened ends in one EXIT, after all of its output. The processes of a connection that is lost
    have no pipes any more; they are only reaped, and nothing is sent about them.

    Both directions of a channel have a window, `messages.AGENT_WINDOW_BYTES`. Output beyond it stays in the process's
    pipe. Input beyond it stays with the controller, which hears what the process has taken: so memory is bounded while
    the connection is always read, and neither heartbeats nor other channels wait for a process that doesn't read.
    """

    def __init__(self, env: dict[str, str], send: Callable[..., object]) -> None:
        """env: of all processes; send: called with type, payload and fields of a message for the controller."""
        self._env = env
        self._send = send
        self._running: dict[int, Child] = {}
        self._lost: list[Child] = []

    def __len__(self) -> int:
        return len(self._running) + len(self._lost)

    def wanted(self, *, is_full: bool) -> Iterator[Wanted]:
        """Yield each descriptor to wait for, its events and its callback; is_full: read no output now."""
        for channel, child in self._running.items():
            if child.backlog:
                yield child.stdin, select.POLLOUT, partial(self._feed, channel)
            if not is_full and child.untaken_bytes < messages.AGENT_WINDOW_BYTES:
                for fd in child.streams:
                    yield fd, select.POLLIN, partial(self._read, channel, fd)

    # ---- what the controller asks for -----------------------------------------------------------------------------

    def open(self, channel: int, command: str) -> None:
        """Start a process."""
        try:
            self._running[channel] = Child(command, self._env)
        except OSError as error:  # no process is left, or no descriptor
            text = "launch: %s\n" % (error.strerror or repr(error))
            self._send(messages.ERR, text.encode("utf-8", "replace"), channel=channel)
            self._send(messages.EXIT, channel=channel, code=REFUSED_EXIT_CODE)

    def add_input(self, channel: int, data: bytes) -> None:
        """Pass bytes to a process, unless it has exited."""
        child = self._running.get(channel)
        if child is not None and child.stdin >= 0:
            child.backlog += data
            self._feed(channel)

    def note_taken(self, channel: int, size_bytes: int) -> None:
        """Note how much more output of a process the controller has taken."""
        child = self._running.get(channel)
        if child is not None:
            child.untaken_bytes -= size_bytes

    def shut(self, channel: int) -> None:
        """Close the pipes of a process; its EXIT still follows."""
        child = self._running.get(channel)
        if child is not None:
            child.hang_up()
            self._settle(channel)

    def shut_all(self) -> None:
        """Close the pipes of all processes; each EXIT still follows."""
        for channel in list(self._running):
            self.shut(channel)

    def lose_all(self) -> None:
        """Close the pipes of all processes, whose connection is lost."""
        for child in self._running.values():
            child.hang_up()
            if child.exit_code is None:
                self._lost.append(child)
        self._running.clear()

    # ---- what the processes do ------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take note of the processes that have exited."""
        for channel, child in list(self._running.items()):
            if _has_exited(child):
                self._settle(channel)
        self._lost = [child for child in self._lost if not _has_exited(child)]

    def _feed(self, channel: int) -> None:
        child = self._running.get(channel)
        if child is None or not child.backlog:  # it was shut a moment ago
            return
        try:
            written = os.write(child.stdin, child.backlog)
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            written = len(child.backlog)
        del child.backlog[:written]
        child.untold_bytes += written
        if child.untold_bytes >= messages.AGENT_TOOK_BYTES:
            self._send(messages.TOOK, channel=channel, bytes=child.untold_bytes)
            child.untold_bytes = 0

    def _read(self, channel: int, fd: int) -> None:
        child = self._running.get(channel)
        if child is None or fd not in child.streams:  # it was shut a moment ago
            return
        data = os.read(fd, READ_BYTES)
        if data:
            child.untaken_bytes += len(data)
            self._send(child.streams[fd].decode(), data, channel=channel)
        else:
            os.close(fd)
            del child.streams[fd]
            self._settle(channel)

    def _settle(self, channel: int) -> None:
        """Send the exit of a process once it has exited and all of its output was sent."""
        child = self._running[channel]
        if child.exit_code is not None and not child.streams:
            child.hang_up()
            del self._running[channel]
            self._send(messages.EXIT, channel=channel, code=child.exit_code)


def _has_exited(child: Child) -> bool:
    if child.exit_code is None:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            child.exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    return child.exit_code is not None


def _become(command: str, env: dict[str, str], streams: tuple[int, int, int]) -> None:
    with suppress(OSError):
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.chdir(env.get("HOME", "/"))  # where a login starts
    try:
        os.execve("/bin/sh", ["sh", "-c", command], env)
    finally:
        os._exit(126)
