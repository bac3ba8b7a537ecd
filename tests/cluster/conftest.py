"""Eight hosts for all tests here, and after each test a look at what is left, before and after faults are undone."""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_launch import Launch
from machines.cluster import Cluster, find_obstacle
from machines.processes import CENSUS_POLL_S, wait_until

TORCH_CACHE = f"torchinductor_{getpass.getuser()}"  # torch makes it now and then, and keeps it for the next run


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """node1 to node8."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    with Cluster(tmp_path_factory.mktemp("cluster"), [f"node{number}" for number in range(1, 9)]) as running:
        yield running


@pytest.fixture
def launch(cluster: Cluster, tmp_path: Path) -> Iterator[Launch]:
    """Start launchers in a folder that the hosts see as well."""
    launching = Launch(cluster, tmp_path)
    yield launching
    launching.end()


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster, launch: Launch) -> Iterator[None]:
    """Look for processes where one can look, undo the faults, look everywhere, and remove what was found."""
    yield
    launch.end()
    wait_until(lambda: not cluster.ranks(), poll_s=CENSUS_POLL_S)
    left = cluster.ranks()
    cluster.heal()
    wait_until(lambda: not cluster.processes(), poll_s=CENSUS_POLL_S)
    left_after_all = cluster.processes()
    for process in left_after_all:
        process.kill()
    folders = [path for host in cluster for path in host.tmpdir.iterdir()]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    folders = [path for path in folders if path.name != TORCH_CACHE]
    assert not left, "processes are left on hosts that could be reached"
    assert not left_after_all, "processes are left after every fault was undone"
    assert not folders, "folders are left"
