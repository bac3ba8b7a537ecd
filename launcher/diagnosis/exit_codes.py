"""How a process or a connection ended -> why, for ends that no line of output explains. Nothing here does I/O.

Both tables are keyed by what `launch` itself says of an end, and docs/log_lines.py writes them into TROUBLESHOOTING.md:
the backticks are for that page, and left out on the screen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from launcher.diagnosis.signatures import Explanation, plain
from launcher.errors import EXIT_SIGNAL_BASE

_CRASHED = "with --env PYTHONFAULTHANDLER=1 Python names the line of the script"
_LESS_MEMORY = "fewer loader workers, a smaller batch"
_OUT_OF_MEMORY = ": out of memory"  # the kernel said so, of this SIGKILL

# Linux's, from 1 on (signal(7)), since the nodes run it: on a Mac Python's own names are those of other numbers.
_NAMES = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG "
    "XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
SIGNALS: Mapping[int, str] = {
    **{number: f"SIG{name}" for number, name in enumerate(_NAMES.split(), 1)}, 34: "SIGRTMIN", 64: "SIGRTMAX",
}  # fmt: skip

# By the whole of what is said of a process.
ENDINGS: Mapping[str, Explanation] = {
    "exit code 0": Explanation(
        "ending",
        "it ended while other ranks still needed it, and they lost their connection to it",
        "let every rank take the same number of steps (equal shares of the data), and let none return early",
    ),
    "exit code 126": Explanation(
        "ending",
        "what was started is no program, or may not be run",
        "chmod +x on that node, its first line (#!), or a mount with noexec",
    ),
    "exit code 127": Explanation(
        "ending",
        "a command was not found",
        "its full path, --python, or load what puts it on the PATH with --setup",
    ),
    "killed by SIGKILL: out of memory": Explanation(
        "ending",
        "the node's memory was full, or the limit of its container or job was reached",
        f"{_LESS_MEMORY}, or a higher limit; `dmesg -T` on that node shows who had how much",
    ),
    "killed by SIGKILL": Explanation(
        "ending",
        "it was killed from outside: by somebody, by systemd-oomd or earlyoom, or by the kernel for lack of memory",
        f"`dmesg -T` on that node says which; {_LESS_MEMORY}",
    ),
    "killed by SIGSEGV": Explanation(
        "ending",
        "it crashed in native code: an extension, a driver, or libraries that don't belong together",
        _CRASHED,
    ),
    "killed by SIGBUS": Explanation(
        "ending",
        "memory behind a file vanished, mostly because /dev/shm is full",
        "docker: --shm-size=8g or --ipc=host; else clear /dev/shm, or a file that another node cut off",
    ),
    "killed by SIGABRT": Explanation(
        "ending",
        "native code gave up: an assertion, or a C++ error that nobody caught",
        f"the last lines name it; {_CRASHED}",
    ),
    "killed by SIGILL": Explanation(
        "ending",
        "a library uses an instruction that this node's processor does not have",
        "a build for this processor; `launch exec -- lscpu` shows the nodes'",
    ),
    "killed by SIGFPE": Explanation("ending", "native code divided by zero", _CRASHED),
    "killed by SIGTERM": Explanation(
        "ending", "something on that node ended it; it was not us", "who shuts down or cleans up there"
    ),
    "killed by SIGHUP": Explanation(
        "ending", "the session it hung on was closed; it was not us", "who logged out or cleans up there"
    ),
    "killed by SIGXCPU": Explanation("ending", "the limit of CPU time is reached", "--setup 'ulimit -t unlimited'"),
}

# By a part of what is said of a connection; the first one that is found counts.
LOSSES: Mapping[str, Explanation] = {
    "no sign of life": Explanation(
        "loss",
        "it froze, was switched off, or the network to it broke",
        "look at the machine itself; when it answers again, `launch check` and `launch clean`",
    ),
    "this machine stood still": Explanation(
        "loss",
        "the machine that you typed on slept, and the nodes ended the run",
        "start runs from one that stays awake",
    ),
    "its ssh was killed": Explanation(
        "loss",
        "something on the machine that you typed on ended it; the nodes ended the run",
        "the kernel's log there (`dmesg`): memory is often short where many log in",
    ),
    "pdsh itself has ended": Explanation(
        "loss",
        "something on the machine that you typed on ended it; the nodes ended the run",
        "the kernel's log there (`dmesg`): memory is often short where many log in",
    ),
    "the connection was lost": Explanation(
        "loss",
        "its sshd, a firewall or the network ended the connection",
        "the log of its sshd, and what lies between it and you",
    ),
    "Slurm has cancelled": Explanation(
        "loss",
        "somebody ended the job, its time was over, or another job went before",
        "`sacct -j JOB` knows which; more time: `--time` of sbatch and salloc",
    ),
    "srun was killed": Explanation(
        "loss",
        "something on the machine that you typed on ended it; the nodes ended the run",
        "the kernel's log there (`dmesg`): memory is often short where many log in",
    ),
    "our task there ended": Explanation(
        "loss",
        "something on that node ended our side of the run",
        "the kernel's log there (`dmesg`), and the memory that the job has: `--mem` of sbatch and salloc",
    ),
}


def explain_loss(text: str) -> Explanation | None:
    """Return why a connection ended of which `launch` says `text`, or None."""
    return next((_plain(known) for said, known in LOSSES.items() if said in text), None)


def explain_ending(code: int | None, number: int | None, *, is_out_of_memory: bool = False) -> Explanation | None:
    """Return what an exit code or the signal `number` says by itself, or None.

    A shell says 128 + n of a child that signal n ended.
    """
    if number is None and code is not None and code > EXIT_SIGNAL_BASE:
        number = code - EXIT_SIGNAL_BASE
    known = ENDINGS.get(describe_ending(code, number) + (_OUT_OF_MEMORY if is_out_of_memory else ""))
    return None if known is None else _plain(known)


def describe_ending(code: int | None, number: int | None) -> str:
    """Return `exit code 3`, or `killed by SIGKILL` where the signal `number` ended a process."""
    return f"exit code {code}" if number is None else f"killed by {signal_name(number)}"


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9: a node's number, by Linux's names."""
    return SIGNALS.get(number, f"signal {number}")


def _plain(known: Explanation) -> Explanation:
    return replace(known, cause=plain(known.cause), fix=plain(known.fix))
