"""Find the commit of the user's code, and whether its files differ from it, by asking git while the run starts.

A repository may be large, or on a slow file system: `keep_code_version` lets the run start meanwhile, and its end waits
a second for git at most. A run that gets a controller on a host waits for `ask_code_version` before it starts.
Without git, outside a repository, or if git refuses a repository of another owner, nothing is known; that's no error.

`git status` may run the filters of the repository's configuration (git-lfs is one), just as the ranks run its code;
they are killed together with the git that started them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.concurrency import start_thread
from launcher.errors import LauncherError
from launcher.job.job import Job, ProgramKind
from launcher.output.run_folder import RunRecord
from launcher.sync.git import COMMAND

ANSWER_S = 5.0
FAREWELL_S = 1.0


@contextlib.contextmanager
def keep_code_version(job: Job, record: RunRecord) -> Iterator[None]:
    """Add `git` to run.json while the block runs; it describes the code on this machine."""
    with _asking(job, lambda version: record.add({"git": version})):
        yield


def ask_code_version(job: Job) -> dict[str, object] | None:
    """Return commit and state of the code on this machine, if git answers within a second."""
    found: list[dict[str, object] | None] = []
    with _asking(job, found.append):
        pass
    return found[0] if found else None


@contextlib.contextmanager
def _asking(job: Job, take: Callable[[dict[str, object] | None], object]) -> Iterator[None]:
    """Ask git, in a thread, while the block runs and for a second more."""
    folder = find_code(job)
    if folder is None:
        yield
        return
    git = Git(folder)
    try:
        thread = start_thread(lambda: take(git.version()), "git", lambda error: None)
    except LauncherError:  # no thread is left; the run itself will say so, or do without
        yield
        return
    try:
        yield
    finally:
        thread.join(FAREWELL_S)
        git.stop()


def find_code(job: Job) -> Path | None:
    """Return the directory of the program that the ranks run; None for the built-in trainer, or without a workdir."""
    if job.program.kind is ProgramKind.BUILTIN or job.workdir is None:
        return None
    workdir = Path(job.workdir)
    return workdir if job.program.kind is ProgramKind.MODULE else (workdir / job.program.target).parent


class Git:
    """Asks git about one directory; `stop`, called by another thread, kills the git that is running."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + ANSWER_S
        self._process: subprocess.Popen[bytes] | None = None

    def version(self) -> dict[str, object] | None:
        """Return commit and state of the working tree; None if that isn't known."""
        commit = self._ask("rev-parse", "HEAD")
        if commit is None:
            return None
        status = self._ask("status", "--porcelain", "--untracked-files=normal")
        lines = [] if status is None else status.splitlines()
        untracked = sum(line.startswith(b"??") for line in lines)
        return {
            "commit": commit.decode("ascii", "replace").strip(),
            "dirty": None if status is None else len(lines) > untracked,  # as `git describe --dirty` has it
            "changed_files": None if status is None else len(lines) - untracked,
            "untracked_files": None if status is None else untracked,
        }

    def stop(self) -> None:
        """Kill git if it has not answered."""
        if self._process is not None and self._process.poll() is None:
            _kill(self._process)

    def _ask(self, *words: str) -> bytes | None:
        argv = [*COMMAND, "-C", str(self._folder), *words]
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            return None
        self._process = process
        try:
            output, _ = process.communicate(timeout=max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _kill(process)  # and not waited for: it may hang in the kernel
            return None
        return output if process.returncode == 0 else None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a git and the filters that it has started: they are its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
