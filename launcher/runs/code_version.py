"""Find the commit of the user's code, and whether it differs from that, by asking git while the run starts.

A repository may be large, or on a slow file system, so git gets some seconds. Without git, outside a repository, or if
git refuses a repository of another owner, nothing is known; that's no error.

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
from pathlib import Path

from launcher.concurrency import start_thread
from launcher.errors import LauncherError
from launcher.job.job import Job, ProgramKind
from launcher.output.run_folder import RunRecord
from launcher.runs.run_json import CodeVersion
from launcher.sync.git import COMMAND

ANSWER_S = 3.0  # for commit and state; a run that ends before waits for them


@contextlib.contextmanager
def keep_code_version(job: Job, record: RunRecord, keep: Callable[[CodeVersion], object]) -> Iterator[None]:
    """Ask git about the code on this machine while the block runs; its answer goes to run.json, and is kept."""
    folder, thread = find_code(job), None

    def ask() -> None:
        version = find_version(folder)
        record.add({"git": version and asdict(version)})
        if version is not None:
            keep(version)

    if folder is not None:
        with contextlib.suppress(LauncherError):  # without a thread, the run itself will say so, or do without
            thread = start_thread(ask, "git", lambda error: None)
    try:
        yield
    finally:
        if thread is not None:
            thread.join(ANSWER_S)


def find_code(job: Job) -> Path | None:
    """Return the directory of the program that the ranks run; None for the built-in trainer, or without a workdir."""
    if job.program.kind is ProgramKind.BUILTIN or job.workdir is None:
        return None
    workdir = Path(job.workdir)
    return workdir if job.program.kind is ProgramKind.MODULE else (workdir / job.program.target).parent


def find_version(folder: Path | None) -> CodeVersion | None:
    """Return commit and state of the code in a directory; None if that isn't known."""
    deadline = time.monotonic() + ANSWER_S
    commit = _ask(folder, deadline, "rev-parse", "HEAD") if folder is not None else None
    if folder is None or commit is None:
        return None
    name = commit.decode("ascii", "replace").strip()
    status = _ask(folder, deadline, "status", "--porcelain", "--untracked-files=normal")
    if status is None:
        return CodeVersion(name, None, None, None)
    lines = status.splitlines()
    untracked = sum(line.startswith(b"??") for line in lines)
    changed = len(lines) - untracked
    return CodeVersion(name, changed > 0, changed, untracked)  # as `git describe --dirty` has it


def _ask(folder: Path, deadline: float, *words: str) -> bytes | None:
    """Return what git prints; None if it fails, or isn't in time."""
    argv = [*COMMAND, "-C", str(folder), *words]
    # It goes to a file: a filter that git has left behind holds a pipe open.
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and not waited for: it may hang in the kernel
            return None
        output.seek(0)
        return output.read() if process.returncode == 0 else None
    return None
