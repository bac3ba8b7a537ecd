"""Explain how a process or a connection ended, where no line of output does. Nothing here does I/O.

The keys of both tables are `launch`'s own words for an end, and docs/log_lines.py writes them into TROUBLESHOOTING.md;
the backticks are for that page, and are removed on the screen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from launcher.diagnosis.signatures import Explanation, plain
from launcher.errors import EXIT_SIGNAL_BASE

ENDING = "ending"  # the name of an explanation that only the exit code or signal gives

_CRASHED = "run it with --env PYTHONFAULTHANDLER=1: Python then names the line of the script"
_OUT_OF_MEMORY = ": out of memory"  # for a SIGKILL that the kernel reported as such

# Linux's names, from 1 on (signal(7)), since the hosts run Linux: macOS gives the names to other numbers.
_NAMES = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG "
    "XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
SIGNALS: Mapping[int, str] = {
    **{number: f"SIG{name}" for number, name in enumerate(_NAMES.split(), 1)}, 34: "SIGRTMIN", 64: "SIGRTMAX",
}  # fmt: skip

# By the complete description of a process's end.
ENDINGS: Mapping[str, Explanation] = {
    "exit code 0": Explanation(
        ENDING,
        "it exited while other ranks still needed it, and they lost their connection to it",
        "let all ranks do the same steps (equal shares of the data, the same checkpoint), and none return early",
    ),
    "exit code 126": Explanation(
        ENDING,
        "what was started isn't an executable program",
        "run chmod +x on that host, correct its first line (#!), or mount its file system without noexec",
    ),
    "exit code 127": Explanation(
        ENDING,
        "a command was not found",
        "use its full path, pass --python, or load what puts it on the PATH with --setup",
    ),
    "killed by SIGKILL: out of memory": Explanation(
        ENDING,
        "the host's memory was full, or its container or job reached its memory limit",
        "use fewer loader workers, a smaller batch, or a higher limit; `dmesg -T` on that host shows who used how much",
    ),
    "killed by SIGKILL": Explanation(
        ENDING,
        "it was killed from outside: by a user, by systemd-oomd or earlyoom, or by the kernel for lack of memory",
        "see which with `dmesg -T` on that host; for memory, use fewer loader workers, or a smaller batch",
    ),
    "killed by SIGSEGV": Explanation(
        ENDING,
        "it crashed in native code: an extension, a driver, or libraries that don't match",
        _CRASHED,
    ),
    "killed by SIGBUS": Explanation(
        ENDING,
        "the memory behind a file disappeared: /dev/shm is full, or another host truncated the file",
        "docker: pass --shm-size=8g or --ipc=host; otherwise clear /dev/shm, or write the file again",
    ),
    "killed by SIGABRT": Explanation(
        ENDING,
        "native code aborted: a failed assertion, or an uncaught C++ exception",
        f"read the last lines, which name it; or {_CRASHED}",
    ),
    "killed by SIGILL": Explanation(
        ENDING,
        "a library uses an instruction that this host's processor doesn't have",
        "install a build for this processor; `launch exec --hosts HOST -- lscpu` shows each host's processor",
    ),
    "killed by SIGTERM": Explanation(
        ENDING,
        "something on that host stopped it; it was not `launch`",
        "find out what shuts down or cleans up there",
    ),
}

CANCELLED, SRUN_KILLED = "Slurm has cancelled", "srun was killed"  # both end the step on all hosts

_KILLED_HERE = Explanation(
    "loss",
    "something on the launch host killed it; the hosts stopped the run",
    "check the kernel's log there (`dmesg`): machines that many users share often run out of memory",
)
# By a part of the description of a lost connection; the first key found in it counts.
LOSSES: Mapping[str, Explanation] = {
    "no heartbeat": Explanation(
        "loss",
        "the host froze, was switched off, or the network to it failed",
        "check the machine itself; when it responds again, run `launch check` and `launch clean`",
    ),
    "this machine was suspended": Explanation(
        "loss",
        "the launch host slept, and the hosts stopped the run",
        "start runs from a machine that stays awake",
    ),
    "its ssh was killed": _KILLED_HERE,
    "the connection was lost": Explanation(
        "loss",
        "the host's sshd, a firewall or the network closed the connection",
        "check the log of its sshd, and the network between it and the launch host",
    ),
    CANCELLED: Explanation(
        "loss",
        "the job was cancelled, reached its time limit, or was preempted by another job",
        "see which with `sacct -j JOB`; for more time, pass `--time` to sbatch or salloc",
    ),
    SRUN_KILLED: _KILLED_HERE,
    "launch's task there ended": Explanation(
        "loss",
        "something on that host killed `launch`'s task there",
        "check the kernel's log there (`dmesg`) and the job's memory: `--mem` of sbatch and salloc",
    ),
}


def explain_loss(text: str) -> Explanation | None:
    """Return why a connection ended that `launch` describes as `text`, or None."""
    return next((_plain(known) for said, known in LOSSES.items() if said in text), None)


def explain_ending(code: int | None, number: int | None, *, is_out_of_memory: bool = False) -> Explanation | None:
    """Return what an exit code or the signal `number` alone explains, or None.

    A shell exits with 128 + n if signal n ended its child.
    """
    if number is None and code is not None and code > EXIT_SIGNAL_BASE:
        number = code - EXIT_SIGNAL_BASE
    known = ENDINGS.get(describe_ending(code, number) + (_OUT_OF_MEMORY if is_out_of_memory else ""))
    return None if known is None else _plain(known)


def describe_ending(code: int | None, number: int | None) -> str:
    """Return `exit code 3`, or `killed by SIGKILL` if the signal `number` ended a process."""
    return f"exit code {code}" if number is None else f"killed by {signal_name(number)}"


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9: a host's signal number, by Linux's names."""
    return SIGNALS.get(number, f"signal {number}")


def _plain(known: Explanation) -> Explanation:
    return replace(known, cause=plain(known.cause), fix=plain(known.fix))
