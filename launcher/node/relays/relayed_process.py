"""One process that a relay has started for the launcher: its pipes, and the bytes in transit."""

from __future__ import annotations

import os


class RelayedProcess:
    """A shell command in a session of its own, whose standard streams are pipes to this process.

    The code that reaps it sets `exit_code`. It is over once that is set and `streams` is empty; until then, more
    output may come.
    """

    def __init__(self, command: str, env: dict[str, str]) -> None:
        stdin, self.stdin = os.pipe()
        stdout, stderr = os.pipe(), os.pipe()
        self.streams = {stdout[0]: b"out", stderr[0]: b"err"}
        self.backlog = bytearray()  # input that its stdin has not taken yet
        self.untaken_bytes = 0  # output that was sent, and that the launcher has not taken yet
        self.exit_code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, env, (stdin, stdout[1], stderr[1]))
        for fd in (stdin, stdout[1], stderr[1]):
            os.close(fd)
        os.set_blocking(self.stdin, False)

    def feed(self) -> None:
        """Write as much of the backlog as its stdin takes."""
        try:
            written = os.write(self.stdin, self.backlog)
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            written = len(self.backlog)
        del self.backlog[:written]

    def hang_up(self) -> None:
        """Close all pipes, as sshd does when the connection closes."""
        for fd in (self.stdin, *self.streams):
            if fd >= 0:
                os.close(fd)
        self.stdin = -1
        self.backlog.clear()
        self.streams.clear()


def _become(command: str, env: dict[str, str], streams: tuple[int, int, int]) -> None:
    try:
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.chdir(env.get("HOME", "/"))  # where a login starts
    except OSError:
        pass
    try:
        os.execve("/bin/sh", ["sh", "-c", command], env)
    finally:
        os._exit(126)
