"""Five hosts for all tests here, and after each test a look at what is left, before and after faults are undone."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_launch import Launch
from machines.cluster import Cluster, find_obstacle

TORCH_CACHE = f"torchinductor_{getpass.getuser()}"  # torch makes it now and then, and keeps it for the next run


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """node1 to node5."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    with Cluster(tmp_path_factory.mktemp("cluster"), [f"node{number}" for number in range(1, 6)]) as running:
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
    cluster.look_for_left_overs(cluster.heal, TORCH_CACHE)
