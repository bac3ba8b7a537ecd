"""Three hosts with sshd and Slurm for all tests here, and after each test a look at what is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_launch import FaultLaunch
from machines.cluster import TOOL_PATH
from machines.slurm import Slurm, find_obstacle
from ways import Way


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes, and a host to log in to."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    with Slurm(tmp_path_factory.mktemp("faults")) as running:
        yield running


@pytest.fixture
def launch(slurm: Slurm, tmp_path: Path, way: Way) -> FaultLaunch:
    """Start launchers on `login`, in a folder that the nodes see as well."""
    if way.program and shutil.which(way.program, path=TOOL_PATH) is None:
        pytest.skip(f"no {way.program}: apt-get install {way.program}")
    return FaultLaunch(slurm, tmp_path, way)


@pytest.fixture(autouse=True)
def nothing_is_left(slurm: Slurm) -> Iterator[None]:
    """Look for processes where one can look, undo the faults, look everywhere, and remove what was found."""
    yield
    slurm.look_for_left_overs()
