"""One Slurm for all tests here, and after each test a look at what is left, before and after its jobs are ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from machines.slurm import NODES, Slurm, find_obstacle
from machines.warm import WarmPython, write_client
from slurm_launch import SlurmLaunch

TORCH_CACHE = "torchinductor_root"  # torch makes it now and then, and keeps it for the next run


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes, and a host to log in to."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="session")
def warm_nodes() -> Iterator[dict[str, WarmPython]]:
    """The Pythons that have imported torch, by the name of their node."""
    running: dict[str, WarmPython] = {}
    yield running
    for python in running.values():
        python.close()


@pytest.fixture
def python(slurm: Slurm, warm_nodes: dict[str, WarmPython], tmp_path: Path) -> Path:
    """Return a Python that has torch at once, on each node."""
    for name in NODES:
        if name not in warm_nodes or not warm_nodes[name].is_running:  # it dies with its node
            host = slurm.cluster[name]
            warm_nodes[name] = WarmPython(host.folder / "bin", enter=host.enter(Path("/")))
    (tmp_path / "warm").mkdir()
    return write_client(tmp_path / "warm" / "python", slurm.folder / "bin" / WarmPython.NAME)  # each node has its own


@pytest.fixture
def launch(slurm: Slurm, tmp_path: Path) -> SlurmLaunch:
    """Start launchers in a folder that the nodes see as well."""
    return SlurmLaunch(slurm, tmp_path)


@pytest.fixture(autouse=True)
def nothing_is_left(slurm: Slurm) -> Iterator[None]:
    """Look for processes where one can look, end jobs and faults, look everywhere, and remove what was found."""
    yield
    slurm.look_for_left_overs(kept=TORCH_CACHE)
