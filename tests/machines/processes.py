"""The processes of a PID namespace, read from this machine's /proc without the launcher's own reader."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from machines.patience import DEADLINE_S

POLL_S = 0.01
LONGEST_POLL_S = 0.05  # what comes late is looked for less often: many tests wait at once, and each look takes CPU time
CENSUS_POLL_S = 0.05  # for polls that read all processes, which takes some milliseconds
_GONE = ("", "Z", "X")
_DAEMONS = ("sshd", "munged", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd", "warm_python", "container")


@dataclass(frozen=True)
class Process:
    """A process on a host, other than its daemons."""

    host: str
    pid: int  # in this machine's numbering
    parent: int
    command: str
    is_ours: bool  # part of a run, and not its guardian or supervisor

    def kill(self) -> None:
        send_signal(self.pid, signal.SIGKILL)


def all_pids() -> list[int]:
    """Return the ids of all processes that are seen here, zombies too."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - polled, as below


def list_pids(namespace: str, kind: str = "pid") -> list[int]:
    """Return the ids of all living processes in a namespace, a PID namespace's first one included."""
    return [pid for pid in all_pids() if read_namespace(pid, kind) == namespace and read_state(pid) not in _GONE]


def list_processes(namespace: str, host: str) -> list[Process]:
    """Return the living processes in a PID namespace, except for daemons: sshd has one or two per connection."""
    return describe(list_pids(namespace), host)


def describe(pids: Iterable[int], host: str) -> list[Process]:
    """Return those of these processes that are alive and no daemons."""
    found = []
    for pid in pids:
        name = read_name(pid)
        if name and not name.startswith(_DAEMONS):
            is_ours = "\0LAUNCH_MARK=" in "\0" + read_proc(pid, "environ")
            found.append(Process(host, pid, read_parent(pid), read_command(pid)[:200], is_ours))
    return found


def read_name(pid: int) -> str:
    """Return the name of a process's program, or "" if it is gone."""
    return read_proc(pid, "comm").strip()


def read_command(pid: int) -> str:
    """Return a process's command line with a space after each word, or "" if it is gone."""
    return read_proc(pid, "cmdline").replace("\0", " ")


def read_state(pid: int) -> str:
    """Return a process's state (R, S, D, T, Z or X), or "" if it is gone."""
    return read_proc(pid, "stat").rpartition(") ")[2][:1]


def is_alive(pid: int) -> bool:
    return read_state(pid) not in _GONE


def read_parent(pid: int) -> int:
    """Return the id of a process's parent, or 0 if the process is gone."""
    fields = read_proc(pid, "stat").rpartition(") ")[2].split()
    return int(fields[1]) if fields else 0


def read_namespace(pid: int, kind: str) -> str:
    """Return the name of a process's namespace, such as `pid:[4026531836]`, or "" if it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")  # noqa: PTH115 - polled for all processes, which Path doubles
    except OSError:
        return ""


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(is_true: Callable[[], object], timeout_s: float = DEADLINE_S, poll_s: float = POLL_S) -> bool:
    """Poll until `is_true` returns true, ever less often; return False on a timeout."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
        poll_s = max(poll_s, min(LONGEST_POLL_S, 1.2 * poll_s))
    return True


def read_proc(pid: int, name: str) -> str:
    """Return a file below /proc/PID, or "" if the process is gone."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - see above
            return file.read().decode("utf-8", "replace")
    except OSError:  # it is gone
        return ""
