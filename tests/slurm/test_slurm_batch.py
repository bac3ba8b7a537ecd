"""The text of a batch script under a real sbatch: where it runs and writes, and how it ends early."""

from __future__ import annotations

from pathlib import Path

from machines.processes import wait_until
from machines.slurm import Slurm
from slurm_jobs import read_output, shown

from launcher.cli.sbatch import batch_text

# It stands for launch, and runs until a SIGTERM.
LAUNCH = """\
echo "$SLURM_JOB_NAME on $(uname -n) in $(pwd)"
trap 'echo saved >&2; kill $!; exit 143' TERM
sleep 1000 &
echo ready
wait
"""


def submit(slurm: Slurm, folder: Path, *options: str, is_requeued: bool) -> str:
    """Submit a job on both nodes from its text, and return its number."""
    folder.mkdir(parents=True)
    text = batch_text(
        ("bash", "-c", LAUNCH), "a job's \\name", str(folder), nodes=2, gpus=2, save_s=5, is_requeued=is_requeued
    )
    done = slurm.run("sbatch", "--parsable", *options, input=text)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_gets_what_it_asks_for_and_writes_where_it_shall(slurm: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / """a b'c"d#e$f"""
    job_id = submit(slurm, folder, "--time=10", "--mem=100M", "--partition=tests", is_requeued=False)
    assert wait_until(lambda: "ready" in read_output(folder, job_id, "out")), read_output(folder, job_id, "err")
    assert read_output(folder, job_id, "out") == f"a job's \\name on node1 in {folder}\nready\n"
    assert [shown(slurm, job_id, key) for key in ("TimeLimit", "MinMemoryNode", "NumNodes", "Requeue")] == [
        "00:10:00", "100M", "2", "0",
    ]  # fmt: skip
    slurm.run("scancel", "--batch", "--signal=TERM", job_id)
    slurm.wait_for_job(job_id)
    assert read_output(folder, job_id, "err").splitlines()[-1] == "saved"
    assert shown(slurm, job_id, "ExitCode") == "143:0"


def test_a_job_that_is_cancelled_saves_and_does_not_come_back(slurm: Slurm, tmp_path: Path) -> None:
    job_id = submit(slurm, tmp_path / "job", is_requeued=True)
    assert wait_until(lambda: "ready" in read_output(tmp_path / "job", job_id, "out"))
    slurm.run("scancel", job_id)
    slurm.wait_for_job(job_id)
    assert "saved\n" in read_output(tmp_path / "job", job_id, "err")
    assert [shown(slurm, job_id, key) for key in ("JobState", "Restarts")] == ["CANCELLED", "0"]
