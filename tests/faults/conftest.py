"""Three hosts with sshd and Slurm for all tests here, and a check after each test for leftover processes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_launch import FaultLaunch
from machines.cluster import TOOL_PATH
from machines.launches import PROGRAM
from machines.slurm import LOGIN, Slurm, find_obstacle
from machines.warm import WarmPython, client_words
from ways import Way

# `launch` in the PATH of `login`: forked.
LAUNCH = """#!/bin/sh
exec {client} {python} {program} "$@"
"""


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Start Slurm with two nodes and a login host."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    with Slurm(tmp_path_factory.mktemp("faults")) as running:
        login = running.cluster[LOGIN]
        warm = WarmPython(login.folder / "bin", "warm_launch", login.enter(Path("/")))
        program = login.folder / "bin" / "launch"  # where `login` sees it, and no node does
        client = client_words(warm.place, "launch")
        program.write_text(LAUNCH.format(client=client, python=sys.executable, program=PROGRAM))
        program.chmod(0o755)
        yield running
        warm.close()


@pytest.fixture
def launch(slurm: Slurm, tmp_path: Path, way: Way) -> FaultLaunch:
    """Return what starts launchers on `login`, in a directory that the nodes see too."""
    if way.program and shutil.which(way.program, path=TOOL_PATH) is None:
        pytest.skip(f"no {way.program}: apt-get install {way.program}")
    launch = FaultLaunch(slurm, tmp_path, way)
    if way.controller != LOGIN:  # it remembers which hosts failed in other tests
        shutil.rmtree(launch.logs.parent, ignore_errors=True)
    return launch


@pytest.fixture(autouse=True)
def nothing_is_left(slurm: Slurm) -> Iterator[None]:
    """Fail if the test left processes or directories on a host, and remove them."""
    yield
    slurm.look_for_left_overs()
