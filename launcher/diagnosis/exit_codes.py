"""How a process ended -> why, where no line of its output tells. Plain data, and the guide has it too. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from launcher.diagnosis.signatures import Explanation, plain
from launcher.errors import EXIT_SIGNAL_BASE

_CRASHED = "with --env PYTHONFAULTHANDLER=1 Python names the line of the script"
_LESS_MEMORY = "fewer loader workers, a smaller batch"


@dataclass(frozen=True, slots=True)
class Ending:
    """One row: an exit code or a signal."""

    number: int
    cause: str
    fix: str
    is_signal: bool = True
    is_out_of_memory: bool = False  # the kernel said so, of this SIGKILL

    @property
    def says(self) -> str:
        """As the launcher says it."""
        if not self.is_signal:
            return f"exit code {self.number}"
        return f"killed by {signal_name(self.number)}" + (": out of memory" if self.is_out_of_memory else "")


ENDINGS: tuple[Ending, ...] = (
    Ending(
        126,
        "what was started is no program, or may not be run",
        "chmod +x on that node, its first line (#!), or a mount with noexec",
        is_signal=False,
    ),
    Ending(
        127,
        "a command was not found",
        "its full path, --python, or load what puts it on the PATH with --setup",
        is_signal=False,
    ),
    Ending(
        signal.SIGKILL,
        "the node's memory was full, or the limit of its container or job was reached",
        f"{_LESS_MEMORY}, or a higher limit; `dmesg -T` on that node shows who had how much",
        is_out_of_memory=True,
    ),
    Ending(
        signal.SIGKILL,
        "it was killed from outside: by somebody, by systemd-oomd or earlyoom, or by the kernel for lack of memory",
        f"`dmesg -T` on that node says which; {_LESS_MEMORY}",
    ),
    Ending(
        signal.SIGSEGV,
        "it crashed in native code: an extension, a driver, or libraries that don't belong together",
        _CRASHED,
    ),
    Ending(
        signal.SIGBUS,
        "memory behind a file vanished, mostly because /dev/shm is full",
        "docker: --shm-size=8g or --ipc=host; else clear /dev/shm, or a file that another node cut off",
    ),
    Ending(
        signal.SIGABRT,
        "native code gave up: an assertion, or a C++ error that nobody caught",
        f"the last lines name it; {_CRASHED}",
    ),
    Ending(
        signal.SIGILL,
        "a library uses an instruction that this node's processor does not have",
        "a build for this processor; `launch exec -- lscpu` shows the nodes'",
    ),
    Ending(signal.SIGFPE, "native code divided by zero", _CRASHED),
    Ending(signal.SIGTERM, "something on that node ended it; it was not us", "who shuts down or cleans up there"),
    Ending(signal.SIGHUP, "the session it hung on was closed; it was not us", "who logged out or cleans up there"),
    Ending(signal.SIGXCPU, "the limit of CPU time is reached", "--setup 'ulimit -t unlimited'"),
)


@dataclass(frozen=True, slots=True)
class Loss:
    """One row: what the launcher says of a node whose connection ended."""

    says: str
    cause: str
    fix: str


LOSSES: tuple[Loss, ...] = (
    Loss(
        "no sign of life",
        "it froze, was switched off, or the network to it broke",
        "look at the machine itself; when it answers again, `launch check` and `launch clean`",
    ),
    Loss(
        "this machine stood still",
        "the machine that you typed on slept, and the nodes ended the run",
        "start runs from one that stays awake",
    ),
    Loss(
        "its ssh was killed",
        "something on the machine that you typed on ended it; the nodes ended the run",
        "the kernel's log there (`dmesg`): memory is often short where many log in",
    ),
    Loss(
        "pdsh itself has ended",
        "something on the machine that you typed on ended it; the nodes ended the run",
        "the kernel's log there (`dmesg`): memory is often short where many log in",
    ),
    Loss(
        "the connection was lost",
        "its sshd, a firewall or the network ended the connection",
        "the log of its sshd, and what lies between it and you",
    ),
    Loss(
        "Slurm has cancelled",
        "somebody ended the job, its time was over, or another job went before",
        "`sacct -j JOB` knows which; more time: `--time` of sbatch and salloc",
    ),
    Loss(
        "srun was killed",
        "something on the machine that you typed on ended it; the nodes ended the run",
        "the kernel's log there (`dmesg`): memory is often short where many log in",
    ),
    Loss(
        "our task there ended",
        "something on that node ended our side of the run",
        "the kernel's log there (`dmesg`), and the memory that the job has: `--mem` of sbatch and salloc",
    ),
)


def explain_loss(text: str) -> Explanation | None:
    """Return what stands behind the end of a connection, or None."""
    known = (Explanation("loss", plain(loss.cause), plain(loss.fix)) for loss in LOSSES if loss.says in text)
    return next(known, None)


def explain_ending(code: int | None, number: int | None, *, is_out_of_memory: bool = False) -> Explanation | None:
    """Return what an exit code or the signal `number` says by itself, or None.

    A shell says 128 + n of a child that signal n ended.
    """
    if number is None and code is not None and code > EXIT_SIGNAL_BASE:
        number = code - EXIT_SIGNAL_BASE
    wanted = (number or code, number is not None, is_out_of_memory)
    for ending in ENDINGS:
        if (ending.number, ending.is_signal, ending.is_out_of_memory) == wanted:
            return Explanation("ending", plain(ending.cause), plain(ending.fix))
    return None


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
