"""What the trainer's tests share: a clean environment, and ranks as real processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from machines.patience import DEADLINE_S

ROOT = Path(__file__).parents[2]

# Two cores hold two ranks: more threads than that wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
FIXED_PORTS = (10_000, 32_000)  # below those that Linux gives to connections
WORLD_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class WarmProcess:
    """A process that a `WarmPython` has forked, with what the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, python: WarmPython) -> None:
        self.pid = pid
        self._python = python
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        if self._exit_code is None:
            self._exit_code = self._python.ask({"pid": self.pid})
        return self._exit_code

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        deadline = time.monotonic() + timeout_s
        while (exit_code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
            time.sleep(0.01)
        return exit_code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """A process that has imported torch, and forks others (see warm_python.py); it ends with the tests."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, str(Path(__file__).with_name("warm_python.py")), str(theirs.fileno())]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        with theirs:
            self._process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def start(self, argv: list[str], env: Mapping[str, str], cwd: Path, *outputs: IO[bytes]) -> WarmProcess:
        order = {"argv": argv, "env": dict(env), "cwd": str(cwd)}
        return WarmProcess(self.ask(order, *(output.fileno() for output in outputs)), self)

    def ask(self, order: Mapping[str, object], *descriptors: int) -> Any:
        socket.send_fds(self._socket, [json.dumps(order).encode()], descriptors)
        return json.loads(self._socket.recv(1 << 16))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(DEADLINE_S)


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
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.stdout:
            assert self.process.poll() is None, f"ended before {text!r}: {self.stdout}\n{self.stderr}"
            assert time.monotonic() < deadline, f"no {text!r} in time: {self.stdout}\n{self.stderr}"
            time.sleep(0.02)


@dataclass
class Starter:
    """Start processes in a folder of their own; `isolated` ones can't import this checkout, `warm` ones are forked."""

    folder: Path
    warm_python: Callable[[], WarmPython]
    ranks: list[Rank] = field(default_factory=list)

    def start(
        self, argv: list[str], env: Mapping[str, str] | None = None, *, isolated: bool = False, warm: bool = False
    ) -> Rank:
        base = {name: value for name, value in os.environ.items() if name not in WORLD_VARIABLES}
        base.pop("PYTHONPATH", None)
        if not isolated:
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

    def start_ranks(self, world_size: int, argv: Callable[[int], list[str]]) -> list[Rank]:
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


_given: set[int] = set()


def free_port() -> int:
    """Return a port that nobody listens on, and that nobody else gets before it is used: neither from the kernel, nor
    from the tests of this or another worker.
    """
    low, high = FIXED_PORTS
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.randrange(low + own, high, workers)
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            _given.add(port)
            return port


@pytest.fixture(scope="session")
def warm_python() -> Iterator[Callable[[], WarmPython]]:
    """Return a function that starts the warm Python when the first test needs it."""
    started: list[WarmPython] = []

    def get() -> WarmPython:
        if not started:
            started.append(WarmPython())
        return started[0]

    yield get
    for python in started:
        python.close()


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
