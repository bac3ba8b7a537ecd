"""What only Slurm does to a run: its job is cancelled, or nobody tells the nodes that srun is dead."""

from __future__ import annotations

import os
import re
import signal

import pytest
from machines.patience import slowed
from machines.processes import wait_until
from machines.runs import shell
from machines.slurm import LOGIN
from slurm_launch import SlurmLaunch, words_of


def test_launcher_and_srun_are_killed(launch: SlurmLaunch) -> None:
    """Slurm tells nobody: the lease does."""
    argv = ("launch", "--nproc", "1", "--silence", f"{slowed(2):g}", *shell("echo ready; sleep 300"))
    running = launch.type("sh", "-c", '"$@"; until [ -e go ]; do sleep 0.05; done', "sh", *argv)
    running.wait_for(r"\] ready", 2)
    launcher = launch.find("bin/launch")
    os.kill(launcher.pid, signal.SIGSTOP)  # it would start another srun
    # srun's child first: it would see the end of srun, and have Slurm kill all.
    for process in (*reversed(launch.processes(LOGIN, "srun --jobid")), launcher):
        process.kill()
    assert wait_until(lambda: not launch.slurm.cluster.ranks())
    # When the shell ends, Slurm kills what is left, and the supervisors would not come to remove the run's folders.
    folders = [host.tmpdir for host in launch.slurm.cluster]
    assert wait_until(lambda: not any(map(os.listdir, folders)))
    running.go()
    running.finish()


def test_the_job_is_cancelled(launch: SlurmLaunch) -> None:
    """salloc ends nothing by itself: each supervisor gets a SIGTERM from Slurm, and says so."""
    running = launch.start_waiting()
    launch.slurm.run("scancel", launch.slurm.run("squeue", "--noheader", "--format=%i").stdout.strip())
    done = running.finish()
    assert re.fullmatch(
        r"launch: (node\d helper failed first \(|lost node\d ).*, stopping the run on 2 hosts", words_of(done)[2]
    )
    why = r"^  why: ((the )?Slurm job( \d+)?, or the step|the job was cancelled,) "
    assert re.search(why, done.stderr, re.MULTILINE), done


@pytest.mark.parametrize("start", ["torchrun", "plain"])
def test_a_warning_to_the_whole_job_is_for_the_ranks(launch: SlurmLaunch, start: str) -> None:
    """As of sbatch's --signal=USR1@60, without its `B:`: each process of the steps gets it."""
    rank = "trap 'echo warned; exit 0' USR1; echo ready; while :; do sleep 0.1; done"
    job = launch.submit(f'launch --nproc 2 --start {start} --no-python bash -c "{rank}"')
    assert wait_until(lambda: (launch.folder / "job.log").exists() and launch.log.count("ready") == 4)
    launch.slurm.run("scancel", "--signal=USR1", job)
    assert wait_until(lambda: "0 processes left on 2 hosts" in launch.log), launch.log
    assert launch.log.count("warned") == 4
    assert "succeeded" in launch.log, launch.log
