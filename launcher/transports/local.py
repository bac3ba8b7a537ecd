"""This machine, without SSH: the same command line, in a session of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import socket
import subprocess

from launcher.hosts import Host
from launcher.transports.base import READ_BYTES, STDERR, STDOUT

SSH_PORT = 22


class LocalChannel:
    """The pipes of a local process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._stdin = process.stdin
        self._streams = {process.stdout.fileno(): STDOUT, process.stderr.fileno(): STDERR}
        self._poll = select.poll()
        for fd in self._streams:
            self._poll.register(fd, select.POLLIN)

    def read(self) -> tuple[int, bytes]:
        while self._streams:
            for fd, _ in self._poll.poll():
                data = os.read(fd, READ_BYTES)
                if data:
                    return self._streams[fd], data
                self._poll.unregister(fd)
                del self._streams[fd]
        self._process.wait()
        return 0, b""

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._stdin.fileno(), view) :]

    def close(self) -> None:
        self._stdin.close()

    def exit_code(self) -> int | None:
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code


class LocalTransport:
    """Runs the node's side on this machine."""

    name = "local"

    def open(self, host: Host, command: str, timeout_s: float) -> LocalChannel:
        # A session of its own, or the terminal's Ctrl-C would reach the ranks before us.
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        return LocalChannel(process)


def is_this_machine(hostname: str, port: int, user: str) -> bool:
    """Tell whether a login to `user@hostname:port` would end where we are: address, port 22 and user are ours."""
    if port != SSH_PORT or user != getpass.getuser():
        return False
    with contextlib.suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(hostname, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind(place)  # the kernel lets us bind to our own addresses only
            return True
    return False
