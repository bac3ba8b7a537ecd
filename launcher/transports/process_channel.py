"""A channel over the pipes of a process on this machine: the command itself, or an ssh that runs it on a host."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence

from launcher.hosts.host import Host
from launcher.transports.base import READ_BYTES, STDERR, STDOUT

_CLOSE_WAIT_S = 0.1


def start_process(argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process with pipes, in a session of its own, so that the terminal's Ctrl-C reaches `launch` alone.

    env: its environment; None: that of this process.
    """
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        env=env,
    )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process that has a session of its own, with its children, such as the ssh to a jump host.

    SIGTERM lets an ssh remove the socket of a ControlMaster.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS, if all are zombies
            os.killpg(process.pid, signal.SIGTERM)


class ProcessChannel:
    """The pipes of a process that start_process has started; a Channel of launcher.transports.base.

    `close` wakes a blocked `read` through a separate pipe, whose ends are open for as long as the channel is used: the
    number of a descriptor that is polled must not become another file's.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr  # start_process asks for them
        self._process = process
        self._stdin = process.stdin
        self._stdin_lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        weakref.finalize(self, os.close, self._wake_read)
        weakref.finalize(self, os.close, self._wake_write)
        self._is_closed = False
        self._streams = {process.stdout.fileno(): STDOUT, process.stderr.fileno(): STDERR}
        self._poll = select.poll()
        for fd in (*self._streams, self._wake_read):
            self._poll.register(fd, select.POLLIN)

    def read(self) -> tuple[int, bytes]:
        while self._streams and not self._is_closed:
            for fd, _ in self._poll.poll():
                if fd == self._wake_read or self._is_closed:
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
    """Starts processes on this machine, whatever the host is called."""

    name = "local"

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        return ProcessChannel(start_process(["/bin/sh", "-c", command]))

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()
