"""Real OpenSSH servers, `launch` as users start it, and after each test a look at what is left."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import KEEPER_S, Launch
from ssh_hosts import SshHosts, find_obstacle, is_alive, wait_until


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """node1 on 127.0.0.1 and node2 on 127.0.0.2."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    running = SshHosts(tmp_path_factory.mktemp("ssh"))
    (running.folder / "tmp").mkdir()  # of the launcher itself
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def launch(hosts: SshHosts, tmp_path: Path) -> Iterator[Launch]:
    """Start launchers in a folder that the hosts see as well."""
    config = hosts.write_config(tmp_path / "ssh_config")
    folder = tmp_path / "work"
    folder.mkdir()
    launching = Launch(hosts, folder, config)
    yield launching
    launching.end()


@pytest.fixture(autouse=True)
def nothing_is_left(hosts: SshHosts, launch: Launch) -> Iterator[None]:
    """Look for processes and folders of the test's runs on every host, and remove what was found."""
    yield
    launch.end()
    wait_until(lambda: not hosts.processes(), KEEPER_S)
    processes = hosts.processes()
    hidden = [pid for running in launch.started for pid in running.pids() if is_alive(pid)]
    for pid in {*hidden, *(process.pid for process in processes)}:
        os.kill(pid, signal.SIGKILL)
    folders = [path for host in hosts for path in host.tmpdir.iterdir()]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    assert not processes, "processes are left"
    assert not hidden, "hidden processes are left"
    assert not folders, "folders are left"
