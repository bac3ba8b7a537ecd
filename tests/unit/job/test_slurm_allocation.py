"""An allocation from its variables: nodes, sizes, whether we are a task, what srun gets."""

from __future__ import annotations

import pytest

from launcher.errors import UsageError
from launcher.job.slurm_allocation import (
    Allocation,
    count_tasks,
    read_allocation,
    refuse_tasks,
    srun_environment,
)

# As Slurm 22.05 sets them in a shell of `salloc -N2 --ntasks-per-node=3 -c2 --gpus-per-node=2 --exclusive`.
SALLOC = {
    "SLURM_CLUSTER_NAME": "tests",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_CPUS_PER_TASK": "2",
    "SLURM_GPUS_PER_NODE": "2",
    "SLURM_JOBID": "4",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_JOB_ID": "4",
    "SLURM_JOB_NAME": "interactive",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_NNODES": "2",
    "SLURM_NODELIST": "node[1-2]",
    "SLURM_NPROCS": "6",
    "SLURM_NTASKS": "6",
    "SLURM_NTASKS_PER_NODE": "3",
    "SLURM_SUBMIT_DIR": "/",
    "SLURM_TASKS_PER_NODE": "3(x2)",
}
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
TASK = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}


def test_all_that_the_variables_say():
    assert read_allocation(SALLOC) == Allocation("4", ("node1", "node2"), gpus_per_node=2)


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_NODELIST": "n1"}, {**JOB, "SLURM_JOB_ID": ""}]
)
def test_half_an_allocation_is_none(environ):
    assert read_allocation(environ) is None


def test_the_names_that_older_slurms_use():
    assert read_allocation({"SLURM_JOBID": "7", "SLURM_NODELIST": "b[02,1],a"}) == Allocation("7", ("b02", "b1", "a"))


def test_a_node_list_that_is_none_names_its_variable():
    with pytest.raises(UsageError, match=r"SLURM_JOB_NODELIST: 'n\[1-' has an unmatched bracket"):
        read_allocation({**JOB, "SLURM_JOB_NODELIST": "n[1-"})


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, None),
        ({"SLURM_GPUS_PER_NODE": "2"}, 2),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:4,h100:1"}, 5),
        ({"SLURM_GPUS_PER_NODE": "many"}, None),
        ({"SLURM_GPUS_ON_NODE": "2"}, 2),
        ({"SLURM_GPUS": "4"}, 2),
        ({"SLURM_GPUS": "h100:4"}, 2),
        ({"SLURM_GPUS": "3", "SLURM_GPUS_ON_NODE": "2"}, None),  # two on one node, one on the other
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": "4(x2)"}, 4),
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": "4,2"}, None),
    ],
)
def test_gpus_per_node(environ, gpus):
    allocation = read_allocation({**JOB, **environ})
    assert allocation is not None
    assert allocation.gpus_per_node == gpus


@pytest.mark.parametrize(
    ("allocation", "line"),
    [
        (Allocation("7", ("n1",), 1), "Slurm job 7: 1 node, n1, 1 GPU on each"),
        (Allocation("7", ("n1", "n2"), 4), "Slurm job 7: 2 nodes, n[1-2], 4 GPUs on each"),
        (Allocation("7", ("a", "b")), "Slurm job 7: 2 nodes, a,b"),
    ],
)
def test_an_allocation_in_one_line(allocation, line):
    assert allocation.describe() == line


# ---- tasks


@pytest.mark.parametrize(
    ("environ", "tasks"),
    [
        ({}, 0),
        (SALLOC, 0),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0),  # sbatch's script
        ({**TASK, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}, 0),  # the same, of some versions
        ({**TASK, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}, 0),  # salloc with use_interactive_step
        ({**TASK, "SLURM_STEP_ID": "batch"}, 0),
        (TASK, 8),
        ({**TASK, "SLURM_NTASKS": "2"}, 8),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, 2),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, 1),
        ({**TASK, "SLURM_PROCID": "0", "SLURM_PTY_PORT": "4711"}, 0),  # srun -n8 --pty bash
        ({**TASK, "SLURM_PTY_PORT": "4711"}, 8),
    ],
)
def test_how_many_tasks_are_beside_us(environ, tasks):
    assert count_tasks(environ) == tasks


def test_several_tasks_are_refused():
    refuse_tasks({**TASK, "SLURM_STEP_NUM_TASKS": "1"})
    with pytest.raises(UsageError, match=r"^srun has started launch 8 times, and each would start its own run$"):
        refuse_tasks(TASK)


def test_srun_gets_the_job_and_none_of_its_options():
    others = {"PATH": "/bin", "HOME": "/root", "NCCL_DEBUG": "INFO"}
    step = {**TASK, "SLURMD_NODENAME": "n1", "SRUN_CPUS_PER_TASK": "4", "PMI_RANK": "3", "SLURM_EXACT": "1"}
    assert srun_environment({**SALLOC, **step, **others, "SLURM_MEM_PER_NODE": "100"}) == {
        **others,
        **{name: SALLOC[name] for name in (
            "SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURM_JOBID", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_ID",
            "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_NODELIST",
            "SLURM_SUBMIT_DIR",
        )},
    }  # fmt: skip
