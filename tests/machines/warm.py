"""Processes with torch or `launch` at once: a `warm_python` on this machine or a test host, and what it forks."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from machines.patience import DEADLINE_S
from machines.processes import wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class WarmProcess:
    """A forked process, with what the tests use of `subprocess.Popen`."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.pid: int = json.loads(server.recv(100))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._read(timeout_s=0)

    def wait(self, timeout: float = DEADLINE_S) -> int:
        if (exit_code := self._read(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return exit_code

    def _read(self, timeout_s: float) -> int | None:
        if self.returncode is None:
            self._server.settimeout(timeout_s)
            try:
                self.returncode = json.loads(self._server.recv(100))
            except (BlockingIOError, TimeoutError):
                return None
            self._server.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """A running `warm_python`; what it has forked may outlive it."""

    NAME = "warm"  # of its socket

    def __init__(self, folder: Path, imported: str = "warm_torch", enter: Sequence[str] = ()) -> None:
        """Start it and wait until it has imported a module; enter: the words that run a program on another host."""
        self.place = folder / self.NAME
        self.place.unlink(missing_ok=True)
        argv = [*enter, sys.executable, str(HERE / "warm_python.py"), str(self.place), imported]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE)
        assert wait_until(lambda: self.place.exists() or not self.is_running), "it does not listen in time"
        assert self.is_running, "it has ended"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdout: IO[bytes], stderr: IO[bytes],
        name: str = "python", stdin: int | None = None,
    ) -> WarmProcess:  # fmt: skip
        """Start a process of this name with the arguments of a Python; stdin: a descriptor, else it reads nothing."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.connect(str(self.place))
        order = {
            "program": sys.executable,
            "name": name,
            "argv": [os.fsdecode(word) for word in argv],
            "env": dict(env),
            "cwd": str(cwd),
            "descriptors": [0, 1, 2],
        }
        with Path(os.devnull).open() as nothing:
            files = [nothing.fileno() if stdin is None else stdin, stdout.fileno(), stderr.fileno()]
            socket.send_fds(server, [json.dumps(order).encode()], files)
        return WarmProcess(server)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def write_client(path: Path, place: Path, settings: str = "") -> Path:
    """Write a program that does what `python` does, by the `warm_python` whose socket is there; return its path.

    settings: such as `A=1`, the environment of what is forked.
    """
    client = client_words(place, "python")
    keepers = f'case $1$3 in *-ISc*) exec {sys.executable} "$@" ;; esac'  # launch's own processes need no torch
    path.write_text(f'#!/bin/sh\n{keepers}\n{settings} exec {client} "$0" "$@"\n')
    path.chmod(0o755)
    return path


def client_words(place: Path, name: str) -> str:
    """Return the words of a shell that start a process of this name by a `warm_python`, before those of the program."""
    return shlex.join([sys.executable, "-IS", str(HERE / "warm_client.py"), str(place), name])
