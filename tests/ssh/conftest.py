"""Real OpenSSH servers, `launch` as users start it, and after each test a look at what is left."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import TRANSPORTS, Launch
from machines.processes import is_alive, send_signal, wait_until
from machines.warm import WarmPython, write_client
from ssh_hosts import SshHosts, find_obstacle


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """node1 on 127.0.0.1 and node2 on 127.0.0.2."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    running = SshHosts(tmp_path_factory.mktemp("ssh"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def transport() -> str:
    """How the hosts are reached, where a test does not say it."""
    return TRANSPORTS[0]


@pytest.fixture
def launch(hosts: SshHosts, tmp_path: Path, transport: str) -> Iterator[Launch]:
    """Start launchers in a folder that the hosts see as well."""
    config = hosts.write_config(tmp_path / "ssh_config")
    folder = tmp_path / "work"
    folder.mkdir()
    launching = Launch(hosts, folder, config, transport)
    yield launching
    launching.end()


@pytest.fixture(autouse=True)
def nothing_is_left(hosts: SshHosts, launch: Launch) -> Iterator[None]:
    """Look for processes and folders of the test's runs on every host, and remove what was found."""
    yield
    launch.end()
    wait_until(lambda: not hosts.all_processes())
    processes = hosts.all_processes()
    hidden = [pid for running in launch.started for pid in running.pids() if is_alive(pid)]
    for pid in {*hidden, *(process.pid for process in processes)}:
        send_signal(pid, signal.SIGKILL)
    # torch keeps what it compiles for the next run.
    files = [path for tmpdir in hosts.tmpdirs for path in tmpdir.iterdir() if "torchinductor" not in path.name]
    for path in files:
        shutil.rmtree(path, ignore_errors=True)
    assert not processes, "processes are left"
    assert not hidden, "hidden processes are left"
    assert not files, "files are left"


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a program that does what `python` does, in a process that is forked and has torch at once."""
    folder = tmp_path_factory.mktemp("warm")
    running = WarmPython(folder)
    yield write_client(folder / "python", running.place)
    running.close()
