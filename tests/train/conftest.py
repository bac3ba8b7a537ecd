"""What the trainer's tests share: a clean environment, and ranks as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S
from machines.ports import free_port
from machines.processes import wait_until
from machines.warm import WarmProcess, WarmPython, write_client

ROOT = Path(__file__).parents[2]

# Two cores hold two ranks: more threads than that wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
WORLD_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Rank:
    """One process of a test, with its output in files."""

    process: subprocess.Popen[bytes] | WarmProcess
    stdout_path: Path
    stderr_path: Path

    @property
    def stdout(self) -> str:
        return self.stdout_path.read_text()

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text()

    def is_empty(self) -> bool:
        """Say whether the rank and all that it started have ended."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended in time: {self.stdout}\n{self.stderr}") from None

    def wait_for(self, text: str) -> None:

        def is_there() -> bool:
            has_ended = self.process.poll() is not None  # before the look: the last lines may come just before the end
            is_found = text in self.stdout
            assert is_found or not has_ended, f"ended before {text!r}: {self.stdout}\n{self.stderr}"
            return is_found

        assert wait_until(is_there), f"no {text!r} in time: {self.stdout}\n{self.stderr}"


@dataclass
class Starter:
    """Start processes in a folder of their own; `warm` ones are forked."""

    folder: Path
    warm_python: Callable[[], WarmPython]
    ranks: list[Rank] = field(default_factory=list)

    def start(self, argv: list[str], env: Mapping[str, str] | None = None, *, warm: bool = False) -> Rank:
        base = {name: value for name, value in os.environ.items() if name not in WORLD_VARIABLES}
        base["PYTHONPATH"] = str(ROOT)
        number = len(self.ranks)
        stdout_path, stderr_path = self.folder / f"stdout.{number}", self.folder / f"stderr.{number}"
        variables = {**base, "CUDA_VISIBLE_DEVICES": "", **(env or {})}
        process: subprocess.Popen[bytes] | WarmProcess
        with stdout_path.open("wb") as stdout, stderr_path.open("wb") as stderr:
            if warm:
                process = self.warm_python().start(argv, variables, self.folder, stdout, stderr)
            else:
                process = subprocess.Popen(
                    [sys.executable, *argv],
                    env=variables,
                    cwd=self.folder,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,  # so that a rank can be signalled together with what it starts
                )
        self.ranks.append(Rank(process, stdout_path, stderr_path))
        return self.ranks[-1]

    def start_torchrun(self, *words: str, env: Mapping[str, str] | None = None) -> Rank:
        """Start torchrun on this machine alone, itself and its ranks forked."""
        program = write_client(self.folder / "python", self.warm_python().place)
        argv = ["-m", "torch.distributed.run", "--standalone", *words]
        return self.start(argv, {"PYTHON_EXEC": str(program), **(env or {})}, warm=True)

    def start_ranks(
        self, world_size: int, argv: Callable[[int], list[str]], env: Mapping[str, str] | None = None
    ) -> list[Rank]:
        """Start the ranks by hand, as torch's tutorials do: without LOCAL_WORLD_SIZE, which they count themselves."""
        port = free_port()
        return [
            self.start(
                argv(rank),
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    **(env or {}),
                },
                warm=True,
            )
            for rank in range(world_size)
        ]

    def start_turns(self, most: int, runs: Mapping[str, tuple[int, str, list[str]]]) -> list[Rank]:
        """Start `most` ranks that do one run after another; a run's name is its save folder."""
        turns = [
            (size, free_port(), folder, ["--save-dir", name, *argv]) for name, (size, folder, argv) in runs.items()
        ]
        script = str(Path(__file__).with_name("runs_in_turn.py"))
        return [self.start([script, str(rank), json.dumps(turns)], warm=True) for rank in range(most)]


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], WarmPython]]:
    """Return a function that starts the warm Python when the first test needs it."""
    started: list[WarmPython] = []

    def get() -> WarmPython:
        if not started:
            started.append(WarmPython(tmp_path_factory.mktemp("warm")))
        return started[0]

    yield get
    for python in started:
        python.close()


@pytest.fixture
def forking_python(tmp_path: Path, warm_python: Callable[[], WarmPython]) -> Path:
    """Return a program that does what `python` does, in a process that the warm Python forks."""
    return write_client(tmp_path / "python", warm_python().place)


@pytest.fixture
def starter(tmp_path: Path, warm_python: Callable[[], WarmPython]) -> Iterator[Starter]:
    started = Starter(tmp_path, warm_python)
    yield started
    for rank in started.ranks:
        if rank.process.poll() is None:
            rank.process.kill()
            rank.process.wait()


@pytest.fixture(autouse=True)
def single_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test as a single process on the CPU, and take the trainer's signal handler off after it."""
    for name in list(os.environ):
        if name in WORLD_VARIABLES or name.startswith(("SLURM_", "OMPI_", "PMI_", "LAUNCH_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # Set and deleted, so that monkeypatch takes back what `bind_gloo` sets for the whole process.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
    for name in WORLD_VARIABLES:  # ranks that met have set some, which other tests would read
        os.environ.pop(name, None)
    monkeypatch.undo()
    if "launcher.distributed" in sys.modules:  # a trainer that failed leaves its process group
        sys.modules["launcher.distributed"].shutdown()
