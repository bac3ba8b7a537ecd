"""scripts/slurm/ under a real sbatch: how many ranks train, and that they save when the time is over."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from machines.processes import wait_until
from machines.slurm import Slurm
from slurm_jobs import shown

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "slurm"
SMALL = ("--steps-per-epoch=2", "--batch-size=2", "--dim=16", "--context=8", "--layers=1", "--log-every=1")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project's folder: the scripts in their place, the package, a configuration and the text to learn."""
    for name in ("scripts", "launcher", "config"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tinyshakespeare.txt").write_text("To be, or not to be, that is the question. " * 20)
    (tmp_path / "small.json").write_text(json.dumps({"data": "data/tinyshakespeare.txt", "save_dir": "saved"}))
    return tmp_path


def submit(slurm: Slurm, project: Path, name: str, *words: str, options: tuple[str, ...] = (), **env: str) -> str:
    """Submit a script in the project's folder and return the job's number."""
    exports = ",".join(f"{key}={value}" for key, value in {"OMP_NUM_THREADS": "1", **env}.items())
    return slurm.submit(f"--chdir={project}", f"--export=ALL,{exports}", *options, str(SCRIPTS / name), *words)


def read_log(project: Path, job_id: str) -> str:
    path = project / f"slurm-{job_id}.out"
    return path.read_text() if path.exists() else ""


def finish(slurm: Slurm, project: Path, job_id: str) -> tuple[str, str]:
    """Wait until a job has ended, and return its exit code and what it wrote."""
    slurm.wait_for_job(job_id)
    return shown(slurm, job_id, "ExitCode"), read_log(project, job_id)


def test_one_node_trains_with_as_many_ranks_as_it_is_told(slurm: Slurm, project: Path) -> None:
    job_id = submit(slurm, project, "slurm_train_single_node.sh", "small.json", *SMALL, NPROC="2")
    code, log = finish(slurm, project, job_id)
    assert code == "0:0", log
    assert re.search(r"^ranks +2,.* from torchrun$", log, re.MULTILINE), log
    assert (project / "saved" / "metrics.jsonl").exists()


def test_several_nodes_train_together(slurm: Slurm, project: Path) -> None:
    job_id = submit(slurm, project, "slurm_train.sh", "small.json", *SMALL, options=("--cpus-per-task=2",))
    code, log = finish(slurm, project, job_id)
    assert code == "0:0", log
    assert re.search(r"^ranks +2,.* from torchrun$", log, re.MULTILINE), log
    assert (project / "saved" / "metrics.jsonl").exists()


def test_tasks_share_each_matrix_product_and_save_when_the_time_is_over(slurm: Slurm, project: Path) -> None:
    words = ("small.json", *SMALL, "--parallel=tp", "--heads=2", "--steps-per-epoch=0", "--epochs=100000")
    job_id = submit(slurm, project, "slurm_train_tp.sh", *words, options=("--ntasks-per-node=1",))
    assert wait_until(lambda: "step 3 " in read_log(project, job_id)), read_log(project, job_id)
    slurm.run("scancel", "--signal=TERM", job_id)  # as --signal=TERM@60 does
    code, log = finish(slurm, project, job_id)
    assert code == "143:0", log
    assert re.search(r"^ranks +2,.* from srun$", log, re.MULTILINE), log
    assert re.search(r"^batch +tp, ", log, re.MULTILINE), log
    assert list((project / "saved" / "checkpoints").iterdir())
