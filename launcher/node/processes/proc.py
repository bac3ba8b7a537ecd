"""Processes as /proc shows them, and signals to exactly those that were seen.

A process is identified by its id and its start time together: the kernel reuses ids, and a signal must not reach the
next process with the same id.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

NOTICES = (signal.SIGUSR1, signal.SIGUSR2)  # as Slurm's --signal sends to all of a job: they are for the ranks alone
HOLD = 60  # SIGRTMAX-4, unused by convention: torchrun does nothing more until guardian and supervisor are gone
MARK = "LAUNCH_MARK"
SLURM_JOB = "LAUNCH_SLURM_JOB"  # the Slurm job that the run itself is in; empty outside Slurm
FILES = "LAUNCH_FILES"  # a directory below the run's own on this machine
_SLURM_S_OWN = "SLURM_JOB_ID"
GONE = "ZX"  # a zombie holds no memory and no GPU; it only waits to be reaped
CONTROL_DEVICES = ("/dev/nvidiactl", "/dev/kfd")  # one of them is open in each process that uses a GPU
# What a program that uses a GPU has open: of NVIDIA, of AMD, in WSL, on a Jetson.
GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/dxg", "/dev/nvhost", "/dev/nvmap", "/dev/nvgpu")


class Process:
    """What /proc/PID/stat said about a process at one moment; all but `pid` and `started` may have changed since."""

    __slots__ = ("name", "pid", "ppid", "session", "started", "state")

    def __init__(self, pid: int, name: str, fields: list[str]) -> None:
        self.pid = pid
        self.name = name
        self.state = fields[0]
        self.ppid = int(fields[1])
        self.session = int(fields[3])
        self.started = int(fields[19])  # clock ticks since boot


def name_process(name: str) -> None:
    """Set what ps, top and `launch clean` show of this process."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:  # some containers have it read-only
        file.write(name)


def read_process(pid: int) -> Process | None:
    """Return what /proc says about `pid`, or None if it is gone."""
    text = read_stat(pid)
    return parse_stat(text) if text is not None else None


def read_stat(pid: int) -> str | None:
    """Return the line of /proc/PID/stat, or None if it is gone."""
    try:
        return _read_file(pid, "stat").decode("utf-8", "replace")
    except OSError:
        return None


def _read_file(pid: int, name: str) -> bytes:
    with open("/proc/%d/%s" % (pid, name), "rb", 0) as file:
        return file.read()


def parse_stat(text: str) -> Process:
    """Parse the line of /proc/PID/stat."""
    # The name is in parentheses and may contain any character, even parentheses and spaces.
    start, end = text.find("("), text.rfind(")")
    return Process(int(text[:start]), text[start + 1 : end], text[end + 2 :].split())


def read_all() -> dict[int, Process]:
    """Return all processes of this machine that /proc shows to this process, by process id."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            process = read_process(int(entry))
            if process is not None:
                found[process.pid] = process
    return found


def mark_environment(env: dict[str, str], mark: str) -> None:
    """Mark everything that is started with `env` as part of a run, and of the Slurm job that `env` names."""
    env[MARK] = mark
    env[SLURM_JOB] = env.get(_SLURM_S_OWN, "")


def read_mark(pid: int) -> str | None:
    """Return the mark of the run that a process belongs to; None if it has none or access is denied.

    A Slurm job inherits the environment in which it was submitted, mark included, but isn't part of that run.
    """
    env = read_environment(pid, MARK, SLURM_JOB, _SLURM_S_OWN)
    if env.get(_SLURM_S_OWN, "") not in ("", env.get(SLURM_JOB, "")):
        return None
    mark = env.get(MARK)
    return mark and mark.encode("utf-8", "replace").decode()  # any process may carry any bytes


def read_environment(pid: int, *names: str) -> dict[str, str]:
    """Return those of these variables that a process was started with; none if access is denied."""
    starts = tuple((name + "=").encode() for name in names)
    try:
        found = [entry for entry in _read_file(pid, "environ").split(b"\0") if entry.startswith(starts)]
    except OSError:
        return {}
    env: dict[str, str] = {}
    for entry in found:
        name, _, value = os.fsdecode(entry).partition("=")
        env.setdefault(name, value)
    return env


def read_command_line(pid: int) -> bytes:
    """Return the argv of a process, with its words separated by NUL; empty if it is gone."""
    try:
        return _read_file(pid, "cmdline")
    except OSError:
        return b""


def has_gpus() -> bool:
    """Tell whether this machine has a driver of GPUs that shows which processes use them."""
    return any(map(os.path.exists, CONTROL_DEVICES))


def holds_gpu(process: Process) -> bool | None:
    """Tell whether a process has a GPU open, or may have had: an exiting one shows no files. None: access is denied."""
    if process.session == 0 and process.ppid in (0, 2):  # a thread of the kernel
        return False
    folder = "/proc/%d/fd" % process.pid
    paths = []
    try:
        for fd in os.listdir(folder):
            with suppress(FileNotFoundError):  # closed meanwhile
                paths.append(os.readlink("%s/%s" % (folder, fd)))
    except OSError:
        return None
    return not paths or any(path.startswith(GPU_DEVICES) for path in paths)


def is_alive(process: Process) -> bool:
    """Tell whether exactly this process, not another with its id, still runs (a zombie does not)."""
    now = read_process(process.pid)
    return now is not None and now.started == process.started and now.state not in GONE


def send_signal(process: Process, number: int) -> None:
    """Signal `process` if it is still the one that was seen; if that isn't permitted, do nothing."""
    if is_alive(process):
        with suppress(OSError):
            os.kill(process.pid, number)


def call_c(name: str, *arguments: int | None) -> bool:
    """Call a function of the C library; tell whether that was possible: some Pythons have no libffi."""
    try:
        from _ctypes import call_function, dlopen, dlsym  # ctypes itself takes 2 ms more

        call_function(dlsym(dlopen(None, 0), name), arguments)  # type: ignore[arg-type] # None is this program
    except (ImportError, OSError, TypeError):
        return False
    return True
