"""A ProxyCommand, run as ssh runs it: a shell command line whose stdin and stdout are the connection.

paramiko's own class runs it without a shell, polls, and keeps it in the terminal's session, where Ctrl-C would end it.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile

from launcher.transports.process_channel import end_process

_WORDS_BYTES = 4096


class Proxy:
    """As much of a socket as paramiko uses, connected to a process; `close` also ends a process that ignores it."""

    def __init__(self, command: str) -> None:
        """Start `command`, in which all tokens like %h are already replaced."""
        self._closed = False  # paramiko looks at this, as a socket has it
        self._sock, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def send(self, data: bytes) -> int:
        return self._sock.send(data)

    def recv(self, size: int) -> bytes:
        return self._sock.recv(size)

    def settimeout(self, timeout_s: float) -> None:
        self._sock.settimeout(timeout_s)

    def close(self) -> None:
        self._closed = True
        self._sock.close()
        end_process(self._process)

    def last_stderr_line(self) -> str:
        """Return the last line that the process has printed on stderr."""
        size = self._stderr.seek(0, 2)
        self._stderr.seek(max(0, size - _WORDS_BYTES))
        return self._stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2].strip()
