"""Python as it is on a Mac, as far as that can be had on Linux: loaded by every Python that finds it on PYTHONPATH.

What Linux alone has is taken away, /proc can't be read, and some calls behave as macOS's do. Kernel and libc remain
Linux's, so numbers of errors and signals that they give do as well.
"""

from __future__ import annotations

import enum
import importlib
import json
import os
import resource
import select
import signal
import sys
from typing import Any

_UNREADABLE = ("/proc", "/sys", "/dev/shm")
_MAX_SOCKET_PATH = 103  # sun_path has 104 bytes
_FOREIGN_PROGRAMS = {"ps", "ss", "ip", "free", "systemctl"}  # other ones there, with other options, or none
_EVENTS = {"open": 0, "os.listdir": 0, "os.scandir": 0, "socket.connect": 1, "socket.bind": 1, "subprocess.Popen": 0}
_OPEN_FILES = 256  # the soft limit of a shell in macOS's terminal

# signal(3) of macOS, from 1 on.
_SIGNALS = (
    "SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGEMT SIGFPE SIGKILL SIGBUS SIGSEGV SIGSYS SIGPIPE SIGALRM SIGTERM "
    "SIGURG SIGSTOP SIGTSTP SIGCONT SIGCHLD SIGTTIN SIGTTOU SIGIO SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGINFO "
    "SIGUSR1 SIGUSR2"
)


class Poll:
    """poll(2), which there sets POLLIN as well at the end of a pipe."""

    def __init__(self) -> None:
        self._poll = _linux_poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        return [
            (fd, event | (select.POLLIN if event & select.POLLHUP else 0)) for fd, event in self._poll.poll(timeout_ms)
        ]


def refuse(event: str, args: tuple[Any, ...]) -> None:
    """Fail where macOS would: an audit hook."""
    if event not in _EVENTS:
        return
    value = args[_EVENTS[event]]
    value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(value, str):
        return
    if event.startswith("socket."):
        if len(value.encode()) > _MAX_SOCKET_PATH or value.startswith("\0"):
            raise OSError("AF_UNIX path too long")
    elif event == "subprocess.Popen":
        if value.rpartition("/")[2] in _FOREIGN_PROGRAMS:
            raise FileNotFoundError(2, "as on a Mac: no such program", value)
    elif value.startswith(_UNREADABLE):
        raise FileNotFoundError(2, "as on a Mac: no such file", value)


_linux_poll = select.poll
_missing = os.environ.get("MISSING_ON_MACOS")  # not passed on to the nodes, which run Linux
if _missing is not None:
    for _module, _names in json.loads(_missing).items():
        _imported = importlib.import_module(_module)
        for _name in _names:
            _imported.__dict__.pop(_name, None)
    select.poll = Poll  # type: ignore[assignment,misc]
    signal.Signals = enum.IntEnum("Signals", _SIGNALS)  # type: ignore[misc,assignment]
    sys.platform = "darwin"
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    sys.addaudithook(refuse)
