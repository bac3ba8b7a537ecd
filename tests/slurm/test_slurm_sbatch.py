"""`launch sbatch | sbatch` on a real Slurm, to the end of the job."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.processes import wait_until
from machines.slurm import Slurm
from slurm_jobs import read_output, shown, wait_until_requeued

SMALL = {"steps_per_epoch": 0, "epochs": 100000, "batch_size": 2, "dim": 16, "context": 8, "layers": 1, "log_every": 1}
Sbatch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def sbatch(slurm: Slurm, tmp_path: Path) -> Sbatch:
    """Submit what `launch sbatch` prints in a folder that the nodes see as well."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        line = f"launch sbatch {shlex.join(words)} | sbatch --parsable --cpus-per-task=2"
        return slurm.run("env", f"--chdir={tmp_path}", "MY_TOKEN=abc", "sh", "-c", line)

    return call


def test_a_job_runs_on_its_nodes_and_its_logs_are_where_they_should_be(
    slurm: Slurm, tmp_path: Path, sbatch: Sbatch
) -> None:
    script = 'echo "rank $RANK of $WORLD_SIZE says $WORD $MY_TOKEN"; echo "to stderr" >&2'
    env = ("--env=WORD=a b", "--env=MY_TOKEN=abc")
    done = sbatch("--nodes=2", "--nproc=2", "--cpu", *env, "--no-python", "sh", "-c", script)
    job_id = done.stdout.strip()
    said = "launch: MY_TOKEN is a secret, so it isn't in the script; fix: set it where you run sbatch\n"
    assert done.stderr == said
    slurm.wait_for_job(job_id)
    out, err = (read_output(tmp_path, job_id, end) for end in ("out", "err"))
    said = [f"[node{rank // 2 + 1}:{rank}] rank {rank} of 4 says a b abc" for rank in range(4)]
    assert sorted(line for line in out.splitlines() if "rank" in line) == said, err
    written = slurm.run("scontrol", "write", "batch_script", job_id, "-").stdout
    assert "--env MY_TOKEN " in written
    assert "abc" not in written
    assert "4 ranks succeeded, 0 processes left on 2 hosts" in err
    assert shown(slurm, job_id, "ExitCode") == "0:0"


def test_a_job_runs_on_its_own_nodes_whatever_hosts_are_the_projects(
    slurm: Slurm, tmp_path: Path, sbatch: Sbatch
) -> None:
    (tmp_path / "launcher.toml").write_text('hosts = ["elsewhere"]\nexclude = "elsewhere"\nnproc = 1\ncpu = true\n')
    job_id = sbatch("--nodes=2", "--no-python", "uname", "-n").stdout.strip()
    slurm.wait_for_job(job_id)
    said = sorted(read_output(tmp_path, job_id, "out").splitlines())
    assert said == ["[node1:0] node1", "[node2:1] node2"], read_output(tmp_path, job_id, "err")


def test_a_script_of_ones_own_can_tell_that_it_was_requeued(slurm: Slurm, tmp_path: Path, sbatch: Sbatch) -> None:
    # It says where it is when the signal may come: that is once the trap is set and there is something to kill.
    script = """\
    [ -z "${SLURM_RESTART_COUNT-}" ] || { echo "run $SLURM_RESTART_COUNT"; exit 0; }
    trap 'echo saved; kill $!; exit 143' TERM
    sleep 1000 &
    echo "run ${SLURM_RESTART_COUNT-0}"; wait"""
    words = ("--requeue", "--nproc=1", "--cpu", "--no-python", "sh", "-c", script)
    job_id = sbatch(*words).stdout.strip()
    assert wait_until(lambda: "run 0" in read_output(tmp_path, job_id, "out"))
    slurm.run("scancel", "--batch", "--signal=USR1", job_id)  # as --signal=B:USR1@60 does
    wait_until_requeued(slurm, job_id)
    slurm.wait_for_job(job_id)
    said = [f"[node1:0] {line}" for line in ("run 0", "saved", "run 1")]
    assert read_output(tmp_path, job_id, "out").splitlines() == said, read_output(tmp_path, job_id, "err")
    assert shown(slurm, job_id, "ExitCode") == "0:0"


def test_a_trainer_whose_time_is_over_saves_and_goes_on_where_it_was(
    slurm: Slurm, python: Path, tmp_path: Path, sbatch: Sbatch
) -> None:
    (tmp_path / "text").write_text("To be, or not to be, that is the question. " * 20)
    (tmp_path / "small.json").write_text(json.dumps({"data": "text", **SMALL}))
    # Without torchrun, whose imports would take half of the time.
    words = ("--requeue", "--nproc=1", "--cpu", "--start=plain", f"--python={python}")
    words += ("-m", "launcher.trainer", "--config", "small.json")
    job_id = sbatch(*words).stdout.strip()

    def steps() -> list[int]:
        return [int(step) for step in re.findall(r" step (\d+) loss ", read_output(tmp_path, job_id, "out"))]

    assert wait_until(lambda: 3 in steps()), read_output(tmp_path, job_id, "err")
    slurm.run("scancel", "--batch", "--signal=USR1", job_id)  # as --signal=B:USR1@60 does
    wait_until_requeued(slurm, job_id)
    before = steps()
    assert wait_until(lambda: len(steps()) > len(before)), read_output(tmp_path, job_id, "err")
    assert steps()[len(before)] == before[-1] + 1
    assert len(list((tmp_path / "outputs").iterdir())) == 1  # both attempts save in the folder of the first
    slurm.run("scancel", job_id)
    slurm.wait_for_job(job_id)
