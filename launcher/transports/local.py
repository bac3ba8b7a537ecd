"""This machine, without SSH: the same command line, in a session of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import socket
import subprocess
import threading

from launcher.hosts import Host
from launcher.transports.base import READ_BYTES, STDERR, STDOUT

SSH_PORT = 22
_CLOSE_WAIT_S = 0.1


class LocalChannel:
    """The pipes of a local process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr  # asked for below
        self._process = process
        self._stdin = process.stdin
        self._stdin_lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._is_closed = False
        self._streams = {process.stdout.fileno(): STDOUT, process.stderr.fileno(): STDERR}
        self._poll = select.poll()
        for fd in (*self._streams, self._wake_read):
            self._poll.register(fd, select.POLLIN)

    def read(self) -> tuple[int, bytes]:
        while self._streams and not self._is_closed:
            for fd, _ in self._poll.poll():
                if fd == self._wake_read:
                    continue
                data = os.read(fd, READ_BYTES)
                if data:
                    return self._streams[fd], data
                self._poll.unregister(fd)
                del self._streams[fd]
        if not self._is_closed:
            self._process.wait()
        return 0, b""

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._stdin_lock:
            while view and not self._stdin.closed:
                view = view[os.write(self._stdin.fileno(), view) :]

    def close(self) -> None:
        self._is_closed = True
        os.write(self._wake_write, b"x")
        # A writer that is blocked by a frozen process keeps its descriptor: another file must not get the number.
        if self._stdin_lock.acquire(timeout=_CLOSE_WAIT_S):
            self._stdin.close()
            self._stdin_lock.release()

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
    if port != SSH_PORT or user != _own_user():
        return False
    with contextlib.suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(hostname, SSH_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(place)  # sends nothing; to an address of ours the kernel goes from that very address
            source: str = sock.getsockname()[0]
            return source == place[0] or (source.startswith("127.") and str(place[0]).startswith("127."))
    return False


def _own_user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return None
