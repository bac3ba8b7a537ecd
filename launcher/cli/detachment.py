"""--detach: a child process controls the run, and this one leaves the terminal to its user once all ranks run.

Until then the child is part of the terminal's job: it prompts and prints there, and Ctrl-C ends the run. Nothing is
done twice, and nothing is handed over; the connections are the child's from the start.
"""

from __future__ import annotations

import contextlib
import os
import signal

import click

from launcher.cli.options.command import is_on_command_line
from launcher.cli.options.request import Request
from launcher.concurrency import start_thread
from launcher.errors import EXIT_SIGNAL_BASE, LauncherError, UsageError
from launcher.output.console import Console
from launcher.output.log_writer import redirect_streams
from launcher.output.output_streams import Style, tell
from launcher.output.run_folder import RunRecord

_KEYS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)  # the terminal sends them to the child as well
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
HINTS = {"launch attach": "watch it", "launch stop": "stop it", "launch wait": "wait for it, and get its exit code"}


class Detachment:
    """The child's way out of the terminal."""

    def __init__(self, parent_fd: int) -> None:
        self._parent_fd = parent_fd

    def leave(self, console: Console, record: RunRecord, why: str) -> None:
        """Use the terminal no more, and let the parent end, once what was said is written: Ctrl-S delays that."""
        console.say(f"launch: {why}; run {record.run_id} continues without this terminal", Style.STRONG)
        for command, purpose in HINTS.items():
            console.say(f"  {command:<15} {purpose}")
        console.emit("detached", run=record.run_id, name=record.name, logs=record.folder)

        def stay(error: Exception) -> None:
            console.say(f"launch: can't leave the terminal ({error}), so the run continues here")

        try:
            start_thread(lambda: self._leave(console, record), "detach", stay)
        except LauncherError as error:
            stay(error)

    def _leave(self, console: Console, record: RunRecord) -> None:
        console.detach()
        os.setsid()  # the end of the terminal sends SIGHUP to its sessions only
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        redirect_streams(record.folder)
        with contextlib.suppress(OSError):
            os.write(self._parent_fd, b"1")
        for fd in (null, self._parent_fd):
            os.close(fd)


def start_detached(request: Request) -> Detachment | None:
    """Return the way out of the terminal, in a child process; None without --detach."""
    if not request.detach:
        return None
    if "SLURM_JOB_ID" in os.environ:
        text = "--detach works only outside of Slurm jobs, which end with their script"
        if is_on_command_line("detach"):
            raise UsageError(text, "omit it: the job has no terminal")
        tell(f"launch: {text}; this run stays in its terminal")
        return None
    return _start_child()


def _start_child() -> Detachment:
    """Return in a child process; the parent waits until that has left the terminal, and then exits.

    Must be called before this process starts a thread.
    """
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_fd)
        return Detachment(write_fd)
    os.close(write_fd)
    for number in _KEYS:
        signal.signal(number, signal.SIG_IGN)
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: _forward(child, number))
    has_left = os.read(read_fd, 1)
    if has_left:
        raise click.exceptions.Exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    raise click.exceptions.Exit(EXIT_SIGNAL_BASE - code if code < 0 else code)


def _forward(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
