"""Trainers that join their process group by launcher.distributed, started by Slurm itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machines.slurm import Slurm

HERE = Path(__file__).parent
PLACE = str(HERE / "place.py")


def test_tasks_are_ranks(slurm: Slurm, python: Path, tmp_path: Path) -> None:
    """Nobody limits their threads, as Slurm doesn't: each of them would take all CPUs."""
    said, threads = tmp_path / "said", tmp_path / "threads"
    srun = ["env", "--unset=OMP_NUM_THREADS", "srun", "--nodes=2", "--ntasks-per-node=2"]
    done = slurm.run(*srun, str(python), PLACE, str(said), str(threads))
    assert done.returncode == 0, done.stderr
    assert threads.read_text() == "1"
    limited = "torch's threads on each rank, its share of the CPUs: 1; set OMP_NUM_THREADS to change it"
    assert done.stderr.splitlines().count(limited) == (len(os.sched_getaffinity(0)) > 1)
    assert said.read_text().splitlines() == [
        "rank 0 of 4 (srun) on node1, local rank 0 of 2, cpu, gloo, node 0 of 2, mean 1.5",
        "rank 1 of 4 (srun) on node1, local rank 1 of 2, cpu, gloo, node 0 of 2, mean 1.5",
        "rank 2 of 4 (srun) on node2, local rank 0 of 2, cpu, gloo, node 1 of 2, mean 1.5",
        "rank 3 of 4 (srun) on node2, local rank 1 of 2, cpu, gloo, node 1 of 2, mean 1.5",
    ]


def test_tasks_that_are_dealt_out_in_turns_and_unevenly(slurm: Slurm, python: Path, tmp_path: Path) -> None:
    """With variables as many scripts export them, here with a WORLD_SIZE for a node each."""
    said = tmp_path / "said"
    exported = ("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1")
    srun = ["env", "MASTER_ADDR=node1", "MASTER_PORT=23456", *exported, "srun", "--nodes=2", "--ntasks=3"]
    done = slurm.run(*srun, "--distribution=cyclic", str(python), PLACE, str(said))
    assert done.returncode == 0, done.stderr
    assert said.read_text().splitlines() == [
        "rank 0 of 3 (srun) on node1, local rank 0 of 2, cpu, gloo, node 0 of 2, mean 1.0",
        "rank 1 of 3 (srun) on node2, local rank 0 of 1, cpu, gloo, node 1 of 2, mean 1.0",
        "rank 2 of 3 (srun) on node1, local rank 1 of 2, cpu, gloo, node 0 of 2, mean 1.0",
    ]
    ignored = f"srun numbers the ranks, so these variables are ignored: {', '.join(exported)}; "
    assert done.stderr.count(f"{ignored}fix: export MASTER_ADDR and MASTER_PORT only\n") == 1


@pytest.mark.parametrize(
    ("command", "first", "error"),
    [
        (
            "{place}",  # without srun
            "rank 0 of 1 (single process) on node1, cpu, gloo, node 0 of 1, mean 0.0",
            "only one process trains, but SLURM_NTASKS is 4; fix: start it with srun\n",
        ),
        (
            "srun --nodes=1 --ntasks=1 {torchrun} --standalone --nproc-per-node=2 {script}",
            "rank 0 of 2 (torchrun) on node1, local rank 0 of 2, cpu, gloo, node 0 of 1, mean 0.5",
            "",
        ),
        (
            # Without these quotes the script's own shell would make all node ranks 0, and torchrun would start no rank.
            "srun --nodes=2 --ntasks=2 bash -c '{torchrun} --nnodes=2 --node_rank=$SLURM_NODEID --nproc_per_node=1 "
            "--master_addr=node1 --master_port=23457 {script}'",
            "rank 0 of 2 (torchrun) on node1, local rank 0 of 1, cpu, gloo, node 0 of 2, mean 0.5",
            "",
        ),
    ],
)
def test_a_script_that_was_submitted(
    slurm: Slurm, python: Path, tmp_path: Path, command: str, first: str, error: str
) -> None:
    said, log, errors = tmp_path / "said", tmp_path / "log", tmp_path / "errors"
    script = f"{HERE / 'place.py'} {said}"
    torchrun = f"{python} -m torch.distributed.run --log-dir={tmp_path}"
    line = command.format(place=f"{python} {script}", torchrun=torchrun, script=script)
    wrap = f"export OMP_NUM_THREADS=1; {line}"
    slurm.wait_for_job(slurm.submit("--nodes=2", "--ntasks=4", f"--output={log}", f"--error={errors}", "--wrap", wrap))
    assert not error or errors.read_text().count(error) == 1  # torch warns where addresses have no names
    assert said.read_text().splitlines()[0] == first
