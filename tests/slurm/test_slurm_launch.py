"""Runs in a Slurm allocation: hosts, GPUs, environment and logs, with srun and by SSH, and what is refused."""

from __future__ import annotations

import re

import pytest
from machines.processes import wait_until
from machines.runs import shell
from machines.slurm import GPUS, NODES
from slurm_launch import SlurmLaunch, words_of

JOB_START_S = 60.0
SHOW_GPUS = shell('echo "$LOCAL_RANK/$LOCAL_WORLD_SIZE GPUs $CUDA_VISIBLE_DEVICES"')


def test_a_run_in_a_shell_of_salloc(launch: SlurmLaunch) -> None:
    script = 'echo "rank $RANK of $WORLD_SIZE on $(uname -n)"; echo "error $RANK" >&2'
    done = launch.start("--nproc", "2", *shell(script)).finish()
    assert done.exit_code == 0
    assert re.match(r"launch: hosts of Slurm job \d+: 2 nodes, node\[1-2\]$", done.words[0])
    assert words_of(done) == [
        "launch: 2 hosts x 2 processes = 4 ranks, run RUN, logs in logs/RUN",
        "launch: checked in N s: CPUs, data over data2 or data3",
        "launch: finished in N s, 4 ranks succeeded, 0 processes left on 2 hosts",
    ]
    plan = done.record["plan"]
    assert plan["master_addr"] == launch.slurm.cluster["node1"].address
    assert [node["env"]["GLOO_SOCKET_IFNAME"] for node in plan["nodes"]] == ["data2", "data3"]
    places = {0: "node1", 1: "node1", 2: "node2", 3: "node2"}
    assert sorted(done.lines) == [f"[{name}:{rank}] rank {rank} of 4 on {name}" for rank, name in places.items()]
    for number, name in enumerate(NODES):
        ranks = [rank for rank, place in places.items() if place == name]
        said = [f"[{name}:{rank}] rank {rank} of 4 on {name}" for rank in ranks]
        assert sorted(done.log(number)) == sorted(said + [f"[{name}:{rank}]! error {rank}" for rank in ranks])


def test_a_script_of_sbatch_with_options_that_srun_would_take(launch: SlurmLaunch) -> None:
    script = "launch --nproc 1 --no-python sh -c 'echo \"$SLURM_JOB_ID $SLURM_PROCID $SLURM_NTASKS $OMP_NUM_THREADS\"'"
    job = launch.submit(script, "--ntasks-per-node=4", "--cpus-per-task=2", "--mem=100", "--hint=nomultithread")
    launch.slurm.wait_for_job(job)
    assert f"launch: hosts of Slurm job {job}: 2 nodes, node[1-2]\n" in launch.log
    said = [line for line in launch.log.splitlines() if line.startswith("[node")]
    assert [re.sub(r"\d+$", "N", line) for line in sorted(said)] == [f"[node1:0] {job}   N", f"[node2:1] {job}   N"]


# ---- GPUs


@pytest.fixture
def gpus(launch: SlurmLaunch) -> None:
    for name in NODES:
        launch.slurm.cluster[name].set_gpus(GPUS)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("job", "given"),
    [
        (("--gres=gpu:1",), ["0"]),
        (("--ntasks-per-node=2", "--gpus-per-task=1"), ["0,1", "0,1"]),
    ],
)
def test_auto_is_what_the_job_has(launch: SlurmLaunch, job: tuple[str, ...], given: list[str]) -> None:
    done = launch.start(*SHOW_GPUS, job=("--nodes=2", *job)).finish()
    count = len(given)
    assert sorted(done.lines) == [
        f"[node{node + 1}:{count * node + rank}] {rank}/{count} GPUs {numbers}"
        for node in range(2)
        for rank, numbers in enumerate(given)
    ]


@pytest.mark.usefixtures("gpus")
def test_more_gpus_than_the_job_has(launch: SlurmLaunch) -> None:
    done = launch.start("--gpus", "2", *SHOW_GPUS, job=("--nodes=2", "--gpus-per-node=1")).finish()
    assert (done.exit_code, words_of(done)[1]) == (70, "  node[1-2]: 2 GPUs requested, but it has 1")


def test_what_a_node_enters(launch: SlurmLaunch) -> None:
    """The agent of srun stays outside, and what it starts goes through it."""
    rank = ("--cpu", "--nproc", "1", "--no-python", "--", "sh", "-c", "echo $ENTERED")
    done = launch.start("--enter", "env ENTERED=yes", *rank, job=("--nodes=2",)).finish()
    assert (done.exit_code, sorted(done.lines)) == (0, ["[node1:0] yes", "[node2:1] yes"]), str(done)


# ---- other commands, other ways


def test_every_command_reaches_the_nodes(launch: SlurmLaunch) -> None:
    script = """
        launch exec -b -- 'echo $((1 + 1))'
        launch hosts --json | grep -c '"source": "Slurm job'
        launch check --nproc 1 --cpu --python /usr/bin/python3 | sed -n 1p
        launch clean 2>&1 | tail -1
        srun --overlap --pty true; srun --nodes=1 --ntasks=1 launch exec -b -- echo one task may 2>/dev/null
    """
    done = launch.type("sh", "-c", script).finish()
    lines = [re.sub(r"\d+\.\d s", "N s", line) for line in done.lines]
    assert lines == [
        "---- node[1-2] ----", "2", "2", "2 hosts responded (N s)", "launch: nothing is left behind on 2 hosts",
        "---- node[1-2] ----", "one task may",
    ]  # fmt: skip


def test_a_job_that_a_run_has_submitted_is_none_of_its_own(launch: SlurmLaunch) -> None:
    """It has the run's mark, and `launch clean` on its node leaves it alone."""
    script = "echo $LAUNCH_MARK >mark; exec sleep 300"
    submit = ("sbatch", "--parsable", "--nodelist=node1", f"--chdir={launch.folder}", f"--wrap={script}")
    done = launch.type("launch", "exec", "--", *submit, job=("--nodes=1", "--nodelist=node1")).wait()
    assert done.exit_code == 0
    assert wait_until((launch.folder / "mark").exists, JOB_START_S)
    job = launch.find("sleep 300", "node1")
    ssh = ("--transport", "fabric", "--ssh-config", str(launch.slurm.cluster.ssh_config))
    said = launch.slurm.run("launch", "clean", "--hosts", "node1", *ssh).stderr
    assert said.splitlines()[-1] == "launch: nothing is left behind on 1 host"
    assert job in launch.processes("node1", "sleep 300")
    launch.slurm.run("scancel", "--nodelist=node1")
    assert (launch.folder / "mark").read_text().startswith("exec-")
