"""Find the commit of the user's code, and whether it differs from that, by asking git while the run starts.

A repository may be large, or on a slow file system: `keep_code_version` lets the run start meanwhile, and its end waits
a second for git at most. A run that gets a controller on a host waits for `find_version` before it starts.
Without git, outside a repository, or if git refuses a repository of another owner, nothing is known; that's no error.

`git status` may run the filters of the repository's configuration (git-lfs is one), just as the ranks run its code;
they are killed together with the git that started them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from launcher.concurrency import start_thread
from launcher.errors import LauncherError
from launcher.job.job import Job, ProgramKind
from launcher.output.run_folder import RunRecord
from launcher.runs.run_json import CodeVersion
from launcher.sync.git import COMMAND

ANSWER_S = 5.0
FAREWELL_S = 1.0
_MOST_ANSWER_BYTES = 100_000_000


@contextlib.contextmanager
def keep_code_version(job: Job, record: RunRecord | None, keep: Callable[[CodeVersion], object]) -> Iterator[None]:
    """Ask git about the code on this machine while the block runs; its answer goes to run.json, if any, and is kept."""
    folder, thread = find_code(job), None
    git = None if folder is None else Git(folder)

    def ask(git: Git) -> None:
        version = git.version()
        if record is not None:
            record.add({"git": version and asdict(version)})
        if version is not None:
            keep(version)

    if git is not None:
        with contextlib.suppress(LauncherError):  # without a thread, the run itself will say so, or do without
            thread = start_thread(partial(ask, git), "git", lambda error: None)
    try:
        yield
    finally:
        if git is not None and thread is not None:
            thread.join(FAREWELL_S)
            git.stop()


def find_version(job: Job) -> CodeVersion | None:
    """Return commit and state of the code on this machine, if git answers within a second."""
    folder = find_code(job)
    return None if folder is None else Git(folder, FAREWELL_S).version()


def find_code(job: Job) -> Path | None:
    """Return the directory of the program that the ranks run; None for the built-in trainer, or without a workdir."""
    if job.program.kind is ProgramKind.BUILTIN or job.workdir is None:
        return None
    workdir = Path(job.workdir)
    return workdir if job.program.kind is ProgramKind.MODULE else (workdir / job.program.target).parent


class Git:
    """Asks git about one directory; `stop`, called by another thread, kills the git that is running."""

    def __init__(self, folder: Path, timeout_s: float | None = None) -> None:
        """timeout_s: for commit and state; None: ANSWER_S."""
        self._folder = folder
        self._deadline = time.monotonic() + (timeout_s or ANSWER_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def version(self) -> CodeVersion | None:
        """Return commit and state of the working tree; None if that isn't known."""
        commit = self._ask("rev-parse", "HEAD")
        if commit is None:
            return None
        status = self._ask("status", "--porcelain", "--untracked-files=normal")
        lines = [] if status is None else status.splitlines()
        untracked = sum(line.startswith(b"??") for line in lines)
        name = commit.decode("ascii", "replace").strip()
        if status is None:
            return CodeVersion(name, None, None, None)
        changed = len(lines) - untracked
        return CodeVersion(name, changed > 0, changed, untracked)  # as `git describe --dirty` has it

    def stop(self) -> None:
        """Kill git if it has not answered, and ask no more."""
        self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            _kill(self._process)

    def _ask(self, *words: str) -> bytes | None:
        """Return what git prints; None if it fails, isn't in time, or prints very much."""
        if self._is_stopped:
            return None
        argv = [*COMMAND, "-C", str(self._folder), *words]
        # It goes to a file: a filter that git has left behind holds a pipe open.
        with contextlib.suppress(OSError), tempfile.TemporaryFile() as output:
            self._process = process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
            )
            try:
                process.wait(max(0.0, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _kill(process)  # and not waited for: it may hang in the kernel
                return None
            if process.returncode == 0 and os.fstat(output.fileno()).st_size <= _MOST_ANSWER_BYTES:
                output.seek(0)
                return output.read()
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a git and the filters that it has started: they are its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
