"""Which commit of the user's code a run has, and whether its files differ from it: git is asked while the run starts.

Nothing waits for git but, for a second, the end of a run: a repository may be large, or on a slow file system.
Without git, outside of a repository, or where git refuses one of another owner, nothing is known, and that is no error.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.concurrency import start_thread
from launcher.errors import LauncherError
from launcher.job.job import Job, ProgramKind
from launcher.output.run_folder import RunRecord

ANSWER_S = 5.0
FAREWELL_S = 1.0
# It writes nothing (the index), and starts no program that the repository names.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")


@contextlib.contextmanager
def keep_code_version(job: Job, record: RunRecord) -> Iterator[None]:
    """Add `git` to run.json while the block runs; the code is what lies on this machine."""
    folder = find_code(job)
    if folder is None:
        yield
        return
    git = Git(folder)
    try:
        thread = start_thread(lambda: record.add({"git": git.version()}), "git", lambda error: None)
    except LauncherError:  # no thread is left; the run itself will say so, or do without
        yield
        return
    try:
        yield
    finally:
        thread.join(FAREWELL_S)
        git.stop()


def find_code(job: Job) -> Path | None:
    """Return the directory of the program that the ranks run, or None if it is ours."""
    if job.program.kind is ProgramKind.BUILTIN or job.workdir is None:
        return None
    workdir = Path(job.workdir)
    return workdir if job.program.kind is ProgramKind.MODULE else (workdir / job.program.target).parent


class Git:
    """Asks git about one directory; `stop`, from another thread, ends what it asks just now."""

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
        """Kill the git that has not answered."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _ask(self, *words: str) -> bytes | None:
        argv = [_GIT[0], *_GIT[1:], "-C", str(self._folder), *words]
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return None
        self._process = process
        try:
            output, _ = process.communicate(timeout=max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # and not waited for: it may hang in the kernel
            return None
        return output if process.returncode == 0 else None
