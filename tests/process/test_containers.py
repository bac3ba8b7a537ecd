"""`--enter`: everything of `launch` runs inside of real containers, and nothing stays there, whatever dies.

A container has the programs and Python of this machine, and processes, users and /tmp of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from machines.launches import run_launch, start_launch
from machines.patience import DEADLINE_S, slowed
from machines.processes import list_pids, read_command, read_name, read_namespace, read_parent, send_signal, wait_until
from machines.warm import WarmProcess

from launcher.errors import EXIT_UNREACHABLE

pytestmark = pytest.mark.linux

DIRECTORIES = ("usr", "etc", "root", "tmp", "proc", "sys", "dev", "var", "run")
LINKS = ("bin", "lib", "lib64", "sbin")  # to those in usr, as Debian has them
NAME = "train"
RANK = "sleep 7531"


@dataclass(frozen=True)
class Containers:
    """A container runtime of this test alone, and a container that runs."""

    argv: Sequence[str]  # before what it is to do
    folder: Path
    daemon: subprocess.Popen[bytes] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def enter(self) -> str:
        """What stands before the loader's command."""
        return shlex.join([*self.argv, "exec", "-i", NAME])

    def do(self, *words: str) -> str:
        """Let the runtime do something."""
        done = subprocess.run(
            [*self.argv, *words], env={**os.environ, **self.environ}, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self) -> None:
        """Make an image of a few directories, and start a container with this machine's programs in it."""
        image = self.folder / "image.tar"
        with tarfile.open(image, "w") as tar:
            for name in DIRECTORIES:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                tar.addfile(entry, io.BytesIO())
            for name in LINKS:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(entry)
        self.do("import", str(image), "tiny")
        pythons = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]}
        shown = {Path("/usr"), Path("/etc"), self.folder, *(path for path in pythons if path != Path("/usr"))}
        volumes = [f"--volume={path}:{path}" for path in sorted(shown)]
        self.do("run", "--detach", "--name", NAME, "--network", "host", *volumes, "tiny", "sleep", "infinity")

    def launch(self, *words: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of `launch` in the container."""
        return run_launch(*self._place(words), cwd=self.folder, code=code)

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator[WarmProcess]:
        """Start a run in the container whose rank waits, and yield once it does."""
        rank = ("--cpu", "--nproc", "1", "--no-python", "--", *RANK.split())
        with (self.folder / "said").open("w+b") as said:
            process = start_launch(*self._place(("run", *words, *rank)), cwd=self.folder, stdout=said, stderr=said)
            try:
                assert wait_until(lambda: any(read_command(pid).strip() == RANK for pid in self.list_inside())), (
                    said.read()
                )
                yield process
            finally:
                process.kill()

    def _place(self, words: Sequence[str]) -> list[str]:
        return [words[0], "--hosts", "127.0.0.1", "--enter", self.enter, "--python", sys.executable, *words[1:]]

    def list_inside(self) -> list[int]:
        """Return the processes in the container, but for its first one and those that have ended."""
        first = int(self.do("inspect", "--format", "{{.State.Pid}}", NAME))
        return [pid for pid in list_pids(read_namespace(first, "pid")) if pid != first and read_command(pid)]


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    folder = tmp_path_factory.mktemp("docker")
    if shutil.which("dockerd") is None:
        pytest.skip("no dockerd: apt-get install docker.io")
    argv = [
        "dockerd", "--iptables=false", "--bridge=none", "--storage-driver=vfs", f"--host=unix://{folder}/socket",
        f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as daemon:
        found = Containers(("docker", f"--host=unix://{folder}/socket"), folder, daemon)
        try:
            assert wait_until((folder / "socket").exists), (folder / "log").read_text()
            found.start()
            yield found
        finally:
            left = [pid for pid in list_pids(read_namespace(os.getpid(), "pid")) if str(folder) in read_command(pid)]
            for pid in left:  # containerd and its shims; what ran in a container ends with its first process
                send_signal(pid, signal.SIGKILL)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in sorted((place for place in mounts if place.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", place], stderr=subprocess.DEVNULL, check=False)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    folder = tmp_path_factory.mktemp("podman")
    if shutil.which("podman") is None:
        pytest.skip("no podman: apt-get install podman")
    config = folder / "containers.conf"  # by default it raises limits, which not every root may do
    config.write_text("[containers]\ndefault_ulimits = []\n")
    with tempfile.TemporaryDirectory() as short:  # it takes 50 letters
        argv = (
            "podman", f"--root={folder}/root", f"--runroot={short}", "--storage-driver=vfs",
            "--cgroup-manager=cgroupfs", "--events-backend=file",
        )  # fmt: skip
        found = Containers(argv, folder, environ={"CONTAINERS_CONF": str(config)})
        try:
            found.start()
            yield found
        finally:
            found.do("rm", "--force", "--all", "--time=0")


@pytest.fixture(params=["docker", "podman"])
def containers(request: pytest.FixtureRequest) -> Containers:
    found: Containers = request.getfixturevalue(request.param)
    return found


def test_a_run_is_inside(containers: Containers) -> None:
    words = ("--cpu", "--nproc", "2", "--no-python", "--", "sh", "-c", "readlink /proc/self/ns/pid; exit 7")
    done = containers.launch("run", *words, code=7)
    places = {line.split("] ")[1] for line in done.stdout.splitlines()}
    assert len(places) == 1 and places != {read_namespace(os.getpid(), "pid")}
    assert "0 processes left on 1 host, exit code 7" in done.stderr
    assert containers.launch("exec", "--", "readlink /proc/self/ns/pid", code=0).stdout.split("] ")[1].strip() in places
    assert "nothing is left behind on 1 host" in containers.launch("clean", code=0).stderr
    assert containers.list_inside() == []


def find_client(containers: Containers, helper: int) -> int:
    """Return the process outside that has started the helper in the container."""
    found = [pid for pid in list_pids(read_namespace(os.getpid(), "pid")) if "~launch" in read_command(pid)]
    (client,) = [pid for pid in found if NAME in read_command(pid).split() and read_parent(pid) != helper]
    return client


def test_nothing_stays_inside(containers: Containers) -> None:
    """If the client dies; tests/faults has the other deaths."""
    with containers.running("--silence", f"{slowed(2):g}s") as process:
        helper = next(pid for pid in containers.list_inside() if "~launch" in read_command(pid))
        send_signal(find_client(containers, helper), signal.SIGKILL)
        assert process.wait(DEADLINE_S) == 1
        said = (containers.folder / "said").read_text()
        assert "0 processes left on 1 host" in said and f"{containers.enter} was killed" in said
        assert wait_until(lambda: not containers.list_inside()), [*map(read_command, containers.list_inside())]


def test_a_detached_run_is_stopped(containers: Containers) -> None:
    """Its controller and agent are inside as well."""
    with containers.running("--detach", "--name", "far"):
        pass  # its terminal is killed
    assert {"launch", "launch-agent"} <= {*map(read_name, containers.list_inside())}
    run_launch("stop", "far", cwd=containers.folder, code=0)
    assert wait_until(lambda: not containers.list_inside())


def test_why_nothing_starts_there_is_one_line_with_a_fix(containers: Containers) -> None:
    def fail(enter: str, python: str = sys.executable) -> list[str]:
        words = ("exec", "--hosts", "127.0.0.1", "--enter", enter, "--python", python, "--", "true")
        done = run_launch(*words, cwd=containers.folder, code=EXIT_UNREACHABLE)
        lines = [line.strip() for line in done.stderr.splitlines()]
        place = next(index for index, line in enumerate(lines) if line.startswith("127.0.0.1: "))
        return lines[place : place + 2]

    missing = containers.enter.replace(NAME, "nosuch")
    why, fix = fail(missing)
    assert why.startswith(f"127.0.0.1: {missing} has ended (exit code ") and "o such container" in why
    assert fix == f"fix: try it by hand there: {missing} true"
    why, fix = fail("sh -c 'exec \"$@\" </dev/null' sh")
    assert why.endswith("passes on no input") and "need -i" in fix
    why, fix = fail(containers.enter, "/nosuch/python")
    assert why == "127.0.0.1: no Python 3.8 or newer there (tried /nosuch/python)"


def test_the_daemon_dies(docker: Containers) -> None:
    """Then the client ends, and nothing closes the stdin of what it has started: its lease ends it."""
    assert docker.daemon is not None
    with docker.running("--silence", f"{slowed(2):g}s") as process:
        inside = docker.list_inside()
        docker.daemon.kill()
        assert process.wait(DEADLINE_S) != 0
        assert wait_until(lambda: not any(map(read_command, inside))), [*map(read_command, inside)]
