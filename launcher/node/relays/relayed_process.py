"""One process that a relay has started for the launcher: its pipes, and what is on its way through them."""

from __future__ import annotations

import os


class RelayedProcess:
    """A shell's command in a session of its own, whose standard streams are pipes of this process.

    `exit_code` is set by whoever reaps it. Until then, and until `streams` is empty, more of it may come: it is over
    once both are so.
    """

    def __init__(self, command: str, env: dict[str, str]) -> None:
        stdin, self.stdin = os.pipe()
        stdout, stderr = os.pipe(), os.pipe()
        self.streams = {stdout[0]: b"out", stderr[0]: b"err"}
        self.backlog = bytearray()  # that its stdin has not taken yet
        self.untaken_bytes = 0  # sent, and not taken by the launcher yet
        self.exit_code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, env, (stdin, stdout[1], stderr[1]))
        for fd in (stdin, stdout[1], stderr[1]):
            os.close(fd)
        os.set_blocking(self.stdin, False)

    def feed(self) -> None:
        """Write what its stdin takes."""
        try:
            written = os.write(self.stdin, self.backlog)
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            written = len(self.backlog)
        del self.backlog[:written]

    def hang_up(self) -> None:
        """Close all pipes, as sshd does when the connection is gone."""
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
