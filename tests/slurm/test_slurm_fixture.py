"""The Slurm of these tests is what they take it for."""

from __future__ import annotations

from machines.processes import wait_until
from machines.slurm import CPUS, GPUS, NODES, Slurm

SHOW = 'echo "$(uname -n) $SLURM_CPUS_ON_NODE CPUs, GPUs $CUDA_VISIBLE_DEVICES"; nvidia-smi -L >/dev/null; echo $?'


def test_a_step_has_all_of_both_nodes(slurm: Slurm) -> None:
    slurm.cluster["node1"].set_gpus(GPUS)
    done = slurm.run("srun", "--nodes=2", "--exclusive", "--gres=gpu:2", "--kill-on-bad-exit=0", "sh", "-c", SHOW)
    lines = sorted(done.stdout.splitlines())
    assert lines == ["127", "2", *(f"{name} {CPUS} CPUs, GPUs 0,1" for name in NODES)], done


def test_a_script_that_is_submitted_runs_on_the_first_node(slurm: Slurm) -> None:
    log = slurm.folder / "slurm" / "job.log"
    slurm.wait_for_job(slurm.submit("--nodes=2", f"--output={log}", "--wrap=uname -n; hostname >&2"))
    assert log.read_text() == "node1\nnode1\n"


def test_a_node_that_was_off_comes_back(slurm: Slurm) -> None:
    slurm.cluster["node2"].power_off()
    slurm.heal()
    assert slurm.run("srun", "--nodelist=node2", "uname", "-n").stdout == "node2\n"


def test_a_program_ends_with_the_process_that_stands_for_it(slurm: Slurm) -> None:
    started = slurm.start("sleep", "1000")
    assert wait_until(lambda: [process.command for process in slurm.cluster.processes()] == ["sleep 1000 "])
    started.kill()
    assert wait_until(lambda: not slurm.cluster.processes())
    started.wait()
