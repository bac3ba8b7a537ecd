"""One Slurm for all tests here, and after each test a look at what is left, before and after its jobs are ended."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines.processes import CENSUS_POLL_S, wait_until
from machines.slurm import Slurm, find_obstacle
from slurm_launch import SlurmLaunch

END_TIMEOUT_S = 10.0
TORCH_CACHE = "torchinductor_root"  # torch makes it now and then, and keeps it for the next run


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes, and a host to log in to."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def launch(slurm: Slurm, tmp_path: Path) -> SlurmLaunch:
    """Start launchers in a folder that the nodes see as well."""
    return SlurmLaunch(slurm, tmp_path)


@pytest.fixture(autouse=True)
def nothing_is_left(slurm: Slurm) -> Iterator[None]:
    """Look for processes where one can look, end jobs and faults, look everywhere, and remove what was found."""
    yield
    slurm.end_started()
    wait_until(lambda: not slurm.cluster.ranks(), END_TIMEOUT_S, CENSUS_POLL_S)
    left = slurm.cluster.ranks()
    slurm.heal()
    wait_until(lambda: not slurm.cluster.processes(), END_TIMEOUT_S, CENSUS_POLL_S)
    left_after_all = slurm.cluster.processes()
    for process in left_after_all:
        process.kill()
    folders = [path for host in slurm.cluster for path in host.tmpdir.iterdir()]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    folders = [path for path in folders if path.name != TORCH_CACHE]
    assert not left, "processes are left on hosts that could be reached"
    assert not left_after_all, "processes are left after every job was ended"
    assert not folders, "folders are left"
