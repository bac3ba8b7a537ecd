"""The processes of one part: a time limit for all of them together, and none that stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.gpu.hardware import Hardware
from bench.gpu.part import PartError

ROOT = Path(__file__).parents[2]
LAUNCH = [sys.executable, "-c", "from launcher.cli.main import main; main()"]
TEST_DISTRIBUTED = [sys.executable, "-c", "from launcher.cli.main import main_test_distributed as main; main()"]
RANKS, AS_HOST = (str(Path(__file__).with_name(name)) for name in ("ranks.py", "as_host.py"))
STOP_S = 5.0  # for a command to end after SIGTERM; then it is killed
SETTLE_S = 3.0  # for a process that is ending
POLL_S = 0.02
LAST_LINES = 40  # torchrun's summary of a failure has 20
# An explanation of `launch`, a problem of `launch check`, an error of Python: in this order.
TELLING = (r"^ *why: .*", r"^! .*", r"^.*\w(?:Error|Exception): .*", r"^.*; fix: .*")


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended, and what it printed: stdout and stderr, in files of their own."""

    exit_code: int
    output: str
    errors: str

    @property
    def cause(self) -> str:
        """Return the line that tells most about a failure."""
        return telling_line(f"{self.output}\n{self.errors}")

    def require(self, pattern: str, exit_code: int) -> re.Match[str]:
        """Return the first place where the messages match; raise PartError if none does, or for another exit code."""
        if self.exit_code != exit_code:
            raise PartError(f"exit code {self.exit_code} instead of {exit_code}: {self.cause}")
        return self.find(pattern)

    def find(self, pattern: str) -> re.Match[str]:
        """Return the first match in stdout, then in stderr, or raise PartError."""
        text = f"{self.output}\n{self.errors}"
        if (found := re.search(pattern, text, re.MULTILINE)) is None:
            raise PartError(f"nothing matches {pattern!r}; last line: {last_line(self.errors or self.output)}")
        return found


@dataclass
class Running:
    """A command that may still run, in a session and process group of its own."""

    process: subprocess.Popen[bytes]
    stdout: Path
    stderr: Path
    deadline: float

    def wait_for(self, pattern: str, count: int = 1) -> list[re.Match[str]]:
        """Return the matches in what was printed, once there are as many as that."""
        while True:
            has_ended = self.process.poll() is not None
            text = f"{self._read(self.stdout)}\n{self._read(self.stderr)}"
            if len(found := list(re.finditer(pattern, text, re.MULTILINE))) >= count:
                return found
            if has_ended or time.monotonic() > self.deadline:
                why = "ended" if has_ended else "out of time"
                raise PartError(f"{why} before {pattern!r} was printed; last line: {last_line(text)}")
            time.sleep(POLL_S)

    def finish(self) -> Done:
        """Wait for the end of the command, or raise PartError at the deadline."""
        try:
            exit_code = self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise PartError(f"out of time; last line: {last_line(self._read(self.stderr))}") from None
        return Done(exit_code, self._read(self.stdout), self._read(self.stderr))

    def stop(self) -> Done:
        """Send SIGTERM, and wait for the end. SIGINT is ignored by what a script started in the background."""
        self.process.send_signal(signal.SIGTERM)
        return self.finish()

    def _read(self, path: Path) -> str:
        return path.read_text("utf-8", "replace")


@dataclass
class Trial:
    """Where a part runs: its directory, the GPUs that it may use, and the processes that it has started.

    Every wait ends at the deadline, a time of the monotonic clock. `close` ends whatever still runs.
    """

    folder: Path
    hardware: Hardware
    gpus: int
    deadline: float
    started: list[Running] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Return whether this is the form for GPUs."""
        return self.gpus > 0

    @property
    def device(self) -> str:
        """Return the type of the device that the ranks must use."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def left_s(self) -> float:
        """Return the seconds until the deadline."""
        return self.deadline - time.monotonic()

    def ranks(self, count: int = 1) -> list[str]:
        """Return the options for that many ranks on one host, each with a GPU, or on CPUs."""
        return ["--gpus", str(count)] if self.on_gpu else ["--nproc", str(count), "--cpu"]

    def side_by_side(self, count: int, *program: str) -> list[str]:
        """Return the words that run a program on that many ranks, which share a GPU if there are fewer GPUs."""
        if not self.on_gpu or count <= self.gpus:
            return [*self.ranks(count), *program]
        return ["--nproc", str(count), "--cpu", AS_HOST, *program]

    def start_launch(self, *words: str, env: Mapping[str, str] | None = None) -> Running:
        """Start `launch` with these words."""
        return self.start([*LAUNCH, *words], env)

    def launch(self, *words: str, env: Mapping[str, str] | None = None) -> Done:
        """Run `launch` with these words to its end."""
        return self.start_launch(*words, env=env).finish()

    def start(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Running:
        """Start a command in the part's directory, with this checkout's code and without state of the user's."""
        number = len(self.started)
        stdout, stderr = (self.folder / f"{name}.{number}" for name in ("stdout", "stderr"))
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "PYTHONPATH": str(ROOT)}
        with stdout.open("wb") as output, stderr.open("wb") as errors:
            process = subprocess.Popen(
                argv, cwd=self.folder, env={**environment, **(env or {})}, stdin=subprocess.DEVNULL, stdout=output,
                stderr=errors, start_new_session=True,
            )  # fmt: skip
        self.started.append(Running(process, stdout, stderr, self.deadline))
        return self.started[-1]

    def execute(self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> str:
        """Run a command to its end, and return what it printed to stdout; PartError if it fails."""
        done = self.start(argv, env).finish()
        if done.exit_code:
            raise PartError(f"exit code {done.exit_code}: {done.cause}")
        return done.output

    @property
    def run_folder(self) -> Path:
        """Return the directory of the latest run's logs."""
        return (self.folder / "logs" / "latest").resolve()

    def tail(self) -> list[str]:
        """Return the last lines of the latest command, for a part that failed."""
        if not self.started:
            return []
        latest = self.started[-1]
        lines = latest.stdout.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
        return lines + latest.stderr.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]

    def close(self) -> list[int]:
        """End what still runs; return the ids of processes that were left after their command had ended."""
        for running in self.started:
            self._end(running)
        stops_at = time.monotonic() + SETTLE_S
        while (left := list(self._find_left())) and time.monotonic() < stops_at:
            time.sleep(POLL_S)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def _end(self, running: Running) -> None:
        if running.process.poll() is None:
            running.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()

    def _find_left(self) -> Iterator[int]:
        """Yield the processes of this part's runs, which have sessions of their own; a variable marks them."""
        run_ids = [path.name for path in (self.folder / "logs").glob("2*")]
        marks = [f"LAUNCH_MARK={run_id}.".encode() for run_id in run_ids]
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if any(mark in (path / "environ").read_bytes() for mark in marks):
                    yield int(path.name)


def telling_line(text: str) -> str:
    """Return the last line of the first kind in TELLING that there is, or the last line of all."""
    for pattern in TELLING:
        if found := re.findall(pattern, text, re.MULTILINE):
            return last_line(found[-1])
    return last_line(text)


def last_line(text: str) -> str:
    """Return the last line that isn't empty, shortened for the table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "nothing was printed"
