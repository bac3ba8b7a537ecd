"""The text of a batch script under a real sbatch: where it runs and writes, and how it ends early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from machines.processes import wait_until
from machines.slurm import Slurm
from slurm_jobs import read_log, shown

from launcher.job.sbatch_script import Batch, batch_text

# It stands for launch, and runs until a SIGTERM.
LAUNCH = """\
echo "$SLURM_JOB_NAME on $(uname -n) in $(pwd)"
trap 'echo saved >&2; kill $!; exit 143' TERM
sleep 1000 &
echo ready
wait
"""


def submit(slurm: Slurm, folder: Path, *, requeue: bool, **asked: Any) -> str:
    """Submit a job on both nodes from its text, and return its number."""
    (folder / "logs").mkdir(parents=True)
    batch = Batch(
        argv=("bash", "-c", LAUNCH), job_name="a job's \\name", nodes=2, gpus=2, folder=str(folder), log_dir="logs",
        stop_timeout_s=5, requeue=requeue, **asked,
    )  # fmt: skip
    done = slurm.run("sbatch", "--parsable", input=batch_text(batch))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_gets_what_it_asks_for_and_writes_where_it_shall(slurm: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / """a b'c"d#e$f"""
    job_id = submit(slurm, folder, requeue=False, time="10", directives=("--mem=100M", "--partition=tests"))
    assert wait_until(lambda: "ready" in read_log(folder, job_id, "out")), read_log(folder, job_id, "err")
    assert read_log(folder, job_id, "out") == f"a job's \\name on node1 in {folder}\nready\n"
    assert [shown(slurm, job_id, key) for key in ("TimeLimit", "MinMemoryNode", "NumNodes", "Requeue")] == [
        "00:10:00", "100M", "2", "0",
    ]  # fmt: skip
    slurm.run("scancel", "--batch", "--signal=TERM", job_id)
    slurm.wait_for_job(job_id)
    assert read_log(folder, job_id, "err").splitlines()[-1] == "saved"
    assert shown(slurm, job_id, "ExitCode") == "143:0"


def test_a_job_that_is_cancelled_saves_and_does_not_come_back(slurm: Slurm, tmp_path: Path) -> None:
    job_id = submit(slurm, tmp_path / "job", requeue=True)
    assert wait_until(lambda: "ready" in read_log(tmp_path / "job", job_id, "out"))
    slurm.run("scancel", job_id)
    slurm.wait_for_job(job_id)
    assert "saved\n" in read_log(tmp_path / "job", job_id, "err")
    assert [shown(slurm, job_id, key) for key in ("JobState", "Restarts")] == ["CANCELLED", "0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--gpus=2", "--directive=--partition=none"],
            "sbatch: invalid partition specified: none; Batch job submission failed: Invalid partition name specified",
        ),
        (
            ["--gpus=2", "--directive=--nonsense"],
            "sbatch: unrecognized option '--nonsense'; Try \"sbatch --help\" for more information",
        ),
        (["--gpus=3"], "sbatch: Batch job submission failed: Requested node configuration is not available"),
    ],
)
def test_what_sbatch_refuses_is_told_in_its_own_words(
    slurm: Slurm, tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "train.py").touch()
    submit = ("launch", "sbatch", "--submit", "--cpus-per-task=2", *words, "train.py")
    done = slurm.run("env", f"--chdir={tmp_path}", *submit)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"launch: {said}\n")
