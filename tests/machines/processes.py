"""/proc as this machine shows it: the processes of a PID namespace, read without the launcher's own reader."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machines.patience import DEADLINE_S

POLL_S = 0.01
CENSUS_POLL_S = 0.05  # for who looks at all processes, which takes some milliseconds
_GONE = ("", "Z", "X")
_DAEMONS = ("sshd", "munged", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd")


@dataclass(frozen=True)
class Process:
    """A process on a host, other than its daemons."""

    host: str
    pid: int  # as this machine counts
    parent: int
    command: str
    is_ours: bool  # of a run, and not its guardian or supervisor

    def kill(self) -> None:
        send_signal(self.pid, signal.SIGKILL)


def list_pids(namespace: str) -> list[int]:
    """Return what is alive in a PID namespace, its first process included."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if read_namespace(pid, "pid") == namespace and read_state(pid) not in _GONE]


def list_processes(namespace: str, host: str) -> list[Process]:
    """Return what is alive in a PID namespace, but for daemons: sshd has one or two per connection."""
    found = []
    for pid in list_pids(namespace):
        name = read_name(pid)
        if name and not name.startswith(_DAEMONS):
            is_ours = "\0LAUNCH_MARK=" in "\0" + _read(pid, "environ")
            found.append(Process(host, pid, read_parent(pid), read_command(pid)[:200], is_ours))
    return found


def read_name(pid: int) -> str:
    """Return the name of a process's program, or nothing for one that is gone."""
    return _read(pid, "comm").strip()


def read_command(pid: int) -> str:
    """Return a process's command line, a blank behind each word, or nothing for one that is gone."""
    return _read(pid, "cmdline").replace("\0", " ")


def read_state(pid: int) -> str:
    """Return R, S, D, T, Z or X, or nothing for a process that is gone."""
    return _read(pid, "stat").rpartition(") ")[2][:1]


def read_parent(pid: int) -> int:
    """Return 0 for a process that is gone."""
    fields = _read(pid, "stat").rpartition(") ")[2].split()
    return int(fields[1]) if fields else 0


def read_namespace(pid: int, kind: str) -> str:
    """Return a namespace's name as in `pid:[4026531836]`, or nothing for a process that is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return ""


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(is_true: Callable[[], object], timeout_s: float = DEADLINE_S, poll_s: float = POLL_S) -> bool:
    """Poll until `is_true`; return False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")
    except OSError:  # it is gone
        return ""
