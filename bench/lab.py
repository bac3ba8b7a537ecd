"""The hosts of a measurement: network namespaces with a real sshd each, and one more from which tools start programs.

On that one, `login`, `ssh n1` works without an option and each name can be resolved, so every tool is started as its
documentation says. The hosts are those of the tests, tests/machines/cluster.py; all that runs on one ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from machines.cluster import TOOL_PATH, Cluster, Host, find_obstacle
from machines.processes import Process, read_parent, send_signal, wait_until

ROOT = Path(__file__).parents[1]
POLL_S = 0.005
PATIENCE_S = 120.0  # for what never takes so long
Argv = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class Lab:
    """The hosts, the launch host, and the Python that all tools and ranks use."""

    cluster: Cluster
    login: Host
    hosts: Sequence[Host]
    python: Path

    @property
    def names(self) -> list[str]:
        """Return the names of the hosts, without that of the launch host."""
        return [host.name for host in self.hosts]

    @property
    def network(self) -> str:
        """Return the network of all hosts; each has a docker0, too, which leads nowhere."""
        return f"{self.login.address.rpartition('.0.')[0]}.0.0/16"

    @property
    def key(self) -> Path:
        """Return the private key of all hosts, for a tool that doesn't read ssh_config."""
        return self.cluster.folder / "id"

    @property
    def folder(self) -> Path:
        """Return the directory in which the tools run."""
        return self.login.folder

    @contextlib.contextmanager
    def started(self, argv: Argv, env: Mapping[str, str] | None = None) -> Iterator[Running]:
        """Start a tool on the launch host; at the end nothing is left of it, there and on the hosts."""
        own = {"HOME": f"{self.folder}/home", "TMPDIR": f"{self.folder}/tmp", "OMP_WAIT_POLICY": "passive"}
        path = f"{self.python.parent}:{Path(sys.executable).parent}:{TOOL_PATH}"
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            output = Path(folder) / "output"
            with output.open("wb") as file:
                process = subprocess.Popen(
                    [*self.login.enter(self.folder), *argv], env={**os.environ, "PATH": path, **own, **(env or {})},
                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            try:
                yield Running(process, self.login, output, time.monotonic())
            finally:
                wait_until(lambda: not self.clean())
                process.wait()

    def run(self, argv: Argv, env: Mapping[str, str] | None = None) -> float:
        """Run a tool to its end; return its seconds, or raise RuntimeError if it fails."""
        with self.started(argv, env) as running:
            running.finish()
            seconds = time.monotonic() - running.began_at
            running.require_success()
        return seconds

    def clean(self) -> list[Process]:
        """Kill whatever runs on the launch host and on the hosts; return what there was."""
        found = [process for host in (self.login, *self.hosts) for process in host.processes()]
        for process in found:
            process.kill()
        return found


@dataclass(slots=True)
class Running:
    """A tool that may still run. Its process here only waits for the one in the namespaces of the launch host."""

    process: subprocess.Popen[bytes]
    login: Host
    output: Path
    began_at: float

    @property
    def text(self) -> str:
        """Return what the tool has printed so far."""
        return self.output.read_text("utf-8", "replace")

    @property
    def pid(self) -> int:
        """Return the id of the tool's first process."""
        return next(pid for pid in self.login.pids() if read_parent(pid) == self.process.pid)

    def wait_for(self, word: str, count: int = 1, patience_s: float = PATIENCE_S) -> float:
        """Return the seconds from the start until the output has the word that often; RuntimeError if it never has."""
        deadline = time.monotonic() + patience_s
        while True:
            has_ended = self.process.poll() is not None
            if self.text.count(word) >= count:
                return time.monotonic() - self.began_at
            if has_ended or time.monotonic() > deadline:
                raise RuntimeError(f"{word!r} wasn't printed {count} times:\n{self.text[-2000:]}")
            time.sleep(POLL_S)

    def interrupt(self) -> None:
        """Do what Ctrl-C does: send SIGINT to the tool and to its children in the same process group."""
        group = os.getpgid(self.pid)
        for pid in self.login.pids():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == group:
                    send_signal(pid, signal.SIGINT)

    def finish(self, patience_s: float = PATIENCE_S) -> int | None:
        """Return the exit code, or None if the tool doesn't end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(patience_s)
        return None

    def require_success(self) -> None:
        """Raise RuntimeError unless the tool has ended with exit code 0."""
        if self.process.returncode != 0:
            raise RuntimeError(f"exit code {self.process.returncode}:\n{self.text[-2000:]}")


@contextlib.contextmanager
def lab(count: int, python: Path = Path(sys.executable)) -> Iterator[Lab]:
    """Boot hosts n1, n2 and so on, and the launch host."""
    if obstacle := find_obstacle():
        raise SystemExit(f"bench: {obstacle}")
    names = ["login", *(f"n{number}" for number in range(1, count + 1))]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        # All hosts know each other by ssh_config and /etc/hosts, and DNS says at once that it knows nothing.
        own = {"/etc/ssh/ssh_config": Path(folder, "ssh_config"), "/etc/resolv.conf": Path(folder, "resolv.conf")}
        own["/etc/resolv.conf"].write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        mounts = "\n".join(f"mount --bind {path} {target}" for target, path in own.items())
        with Cluster(Path(folder), names, mounts) as cluster:
            login, *hosts = cluster
            yield Lab(cluster, login, hosts, python)
