"""The batch script of docs/slurm.md that returns to the queue, under a real sbatch: how it ends early."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from machines.processes import wait_until
from machines.slurm import Slurm
from slurm_jobs import read_output, shown, wait_until_requeued

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
SMALL = {"steps_per_epoch": 0, "epochs": 100000, "batch_size": 2, "dim": 16, "context": 8, "layers": 1, "log_every": 1}
LOGS = ("--output=slurm-%j.out", "--error=slurm-%j.err")


def submit(slurm: Slurm, folder: Path, *words: str) -> str:
    """Submit the script on nodes without GPUs, with these words for `launch`, and return its number."""
    *_, script = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    script = script.replace("launch train.py &", f"launch --nproc 1 --cpu {shlex.join(words)} &")
    script = script.replace("#SBATCH --gpus-per-node=8\n", "")
    done = slurm.run("sbatch", "--parsable", f"--chdir={folder}", "--cpus-per-task=2", *LOGS, input=script)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_that_is_cancelled_saves_and_does_not_come_back(slurm: Slurm, tmp_path: Path) -> None:
    script = "trap 'echo saved; kill $!; exit 143' TERM; sleep 1000 & echo ready; wait"
    job_id = submit(slurm, tmp_path, "--no-python", "sh", "-c", script)
    assert wait_until(lambda: read_output(tmp_path, job_id, "out").count("ready") == 2)
    slurm.run("scancel", "--batch", "--signal=TERM", job_id)
    slurm.wait_for_job(job_id)
    assert read_output(tmp_path, job_id, "out").count("saved") == 2
    assert [shown(slurm, job_id, key) for key in ("ExitCode", "Restarts")] == ["143:0", "0"]


def test_a_trainer_whose_time_is_over_saves_and_goes_on_where_it_was(
    slurm: Slurm, python: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("To be, or not to be, that is the question. " * 20)
    (tmp_path / "small.json").write_text(json.dumps({"data": "text", **SMALL}))
    # Without torchrun, whose imports would take half of the time.
    words = ("--start=plain", f"--python={python}", "-m", "launcher.trainer", "--config", "small.json")
    job_id = submit(slurm, tmp_path, *words)

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
