"""scripts/slurm/ under a real sbatch: what each asks for and starts, how many ranks train, and that they save."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S
from machines.processes import wait_until
from machines.slurm import CPUS, Slurm
from slurm_jobs import read_log, shown

ROOT = Path(__file__).parents[2]
SMALL = ("--steps-per-epoch=2", "--batch-size=2", "--dim=16", "--context=8", "--layers=1", "--log-every=1")
SCRIPTS = ("slurm_train.sh", "slurm_train_multinode.sh", "slurm_train_single_node.sh", "slurm_train_tp.sh")
PLACE = "# YOUR ENVIRONMENT goes here: module load cuda/12.8; source ~/miniconda3/bin/activate train\n"
SHARE = ("--oversubscribe", "--cpus-per-task=1", "--mem=100M")

# It stands for a Python that has torch, and tells what it was started with.
PYTHON = """\
#!/bin/sh
[ "$1" != -c ] || exit 0
cpus=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
echo "$(uname -n): $cpus CPUs, GPUs ${CUDA_VISIBLE_DEVICES-none}: $*"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a checkout has, with a configuration and the text to learn."""
    folder = tmp_path / "a check out"
    for name in ("scripts", "config", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "train.py", folder)
    (folder / "launcher").symlink_to(ROOT / "launcher")
    (folder / "logs").mkdir()
    (folder / "data").mkdir()
    (folder / "data" / "tinyshakespeare.txt").write_text("To be, or not to be, that is the question. " * 20)
    (folder / "small.json").write_text(json.dumps({"data": "data/tinyshakespeare.txt", "save_dir": "saved"}))
    return folder


def submit(
    slurm: Slurm, checkout: Path, name: str, *words: str, options: tuple[str, ...] = (), folder: str = "", **env: str
) -> str:
    """Submit a script, as if it were typed in a folder of the checkout, and return the job's number."""
    exports = ",".join(["--export=ALL", *(f"{key}={value}" for key, value in env.items())])
    script = checkout / "scripts" / "slurm" / name
    return slurm.submit(f"--chdir={checkout / folder}", exports, *options, str(script), *words)


def finish(slurm: Slurm, folder: Path, job_id: str) -> tuple[str, list[str], list[str]]:
    """Wait until a job has ended; return its exit code, what was written in the order of the nodes, and the errors."""
    slurm.wait_for_job(job_id)
    out, err = (read_log(folder, job_id, end).splitlines() for end in ("out", "err"))
    return shown(slurm, job_id, "ExitCode"), sorted(out), err


# ---- what is asked for, and what is started -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_has_one_place_for_an_environment_and_asks_for_whole_nodes(name: str) -> None:
    text = (ROOT / "scripts" / "slurm" / name).read_text()
    assert text.count(PLACE) == 1
    assert text.index(PLACE) < text.index("source=scripts/slurm/job.sh")  # which sets -u
    asked = ("exclusive", "mem=0", "output=logs/slurm-%j.out", "error=logs/slurm-%j.err", "signal=B:TERM@60")
    assert "".join(f"#SBATCH --{option}\n" for option in asked) in text


def plan(lines: list[str]) -> list[str]:
    """Return what a dry run says of each node: its rank, its processes, the port of node 0, and what is started."""
    words = re.compile(
        r"--nnodes (\d+ --node-rank \d+) --nproc-per-node (\S+) .* --master-port ('.*?'|\d+) .* -m -- (.*)"
    )
    found = [words.search(line) for line in lines]
    return sorted(" ".join(match.groups()) for match in found if match)


def test_a_script_starts_the_trainer_on_the_nodes_of_its_job(slurm: Slurm, checkout: Path) -> None:
    """Slurm runs a copy of the script; that of an array shows two tasks under the number of the last one."""
    logs = ("--output=logs/slurm-%A_%a.out", "--error=logs/slurm-%A_%a.err")
    words = ("small.json", "--data", "runs/slurm_train/a  b")
    options = ("--nodes=2", "--array=0-1", *logs)
    job_id = submit(slurm, checkout, "slurm_train_single_node.sh", *words, options=options, LAUNCH_OPTS="--dry-run")
    for task in range(2):
        code, out, errors = finish(slurm, checkout, f"{job_id}_{task}")
        assert code == "0:0", errors
        port = "'<free port on node1>'"
        trainer = "launcher.trainer --config small.json --data 'runs/slurm_train/a  b'"
        assert plan(out) == [f"1 --node-rank 0 gpu {port} {trainer}"], out


def test_a_copy_that_is_submitted_in_scripts_slurm_runs_in_the_checkout(slurm: Slurm, checkout: Path) -> None:
    folder = checkout / "scripts" / "slurm"
    shutil.copy(folder / "slurm_train.sh", folder / "train4.sh")
    words = ("../../config/fsdp.yaml", "--lr", "1 2")
    env = {"NPROC": "3", "MASTER_PORT": "23456", "LAUNCH_OPTS": "--dry-run"}
    options = ("--gpus-per-node=1",)
    job_id = submit(slurm, checkout, "train4.sh", *words, options=options, folder="scripts/slurm", **env)
    code, out, errors = finish(slurm, folder, job_id)
    assert (code, errors) == (
        "0:0",
        [
            f"scripts: this run starts in {checkout}",
            f"launch: hosts of Slurm job {job_id}: 2 nodes, node[1-2], 1 GPU on each",
        ],
    )
    trainer = f"launcher.trainer --config '{folder}/../../config/fsdp.yaml' --lr '1 2'"
    assert plan(out) == [f"2 --node-rank {node} 3 23456 {trainer}" for node in range(2)]


def test_tasks_are_the_processes_of_tensor_parallelism(slurm: Slurm, checkout: Path) -> None:
    """In another directory, from where it finds the checkout's configuration, and downloads nothing for a data set."""
    elsewhere = checkout.parent / "elsewhere"
    (elsewhere / "logs").mkdir(parents=True)
    script = checkout / "scripts" / "slurm" / "slurm_train_tp.sh"
    options = (f"--chdir={elsewhere}", "--export=ALL,LAUNCH_OPTS=--dry-run", "--ntasks-per-node=1")
    code, out, errors = finish(slurm, elsewhere, slurm.submit(*options, str(script), "--data=mine"))
    assert code == "0:0", errors
    trainer = f"launcher.trainer --config '{checkout}/config/tp_shakespeare.yaml' --data=mine"
    assert plan(out) == [f"2 --node-rank {node} 1 '<free port on node1>' {trainer}" for node in range(2)]


@pytest.mark.parametrize("srun", [(), ("srun", "--ntasks-per-node=2")])
def test_the_shell_of_salloc_starts_one_run(slurm: Slurm, checkout: Path, srun: tuple[str, ...]) -> None:
    words = ("salloc", "--quiet", "--nodes=2", "--exclusive", *srun, "scripts/slurm/slurm_train_multinode.sh")
    done = slurm.run("env", "LAUNCH_OPTS=--dry-run", *words, cwd=checkout, timeout=DEADLINE_S)
    assert done.returncode == 0, done
    trainer = "launcher.trainer --config config/local3.yaml"
    said = [f"2 --node-rank {node} gpu '<free port on node1>' {trainer}" for node in range(2)]
    assert plan(done.stdout.splitlines()) == said, done


def test_outside_a_job_a_script_says_how_to_submit_it() -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "slurm" / "slurm_train.sh")], env={"PATH": os.environ["PATH"]}, capture_output=True,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    said = "scripts/slurm: this must run in a Slurm job; fix: sbatch scripts/slurm/slurm_train.sh\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize("asked", ["--gres=gpu", "--gpus-per-node=1", "--gpus=2"])
def test_the_example_has_as_many_ranks_as_the_gpus_that_its_job_asked_for(
    slurm: Slurm, checkout: Path, asked: str
) -> None:
    """Slurm gives a job with --exclusive all GPUs of its nodes."""
    python = checkout / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    example = checkout / "examples" / "train_distributed_example.sh"
    options = (f"--chdir={checkout}", "--output=%j", f"--export=ALL,PYTHON={python}", asked)
    job_id = slurm.submit(*options, str(example))
    slurm.wait_for_job(job_id)
    said = [f"node{node}: {CPUS} CPUs, GPUs 0" for node in (1, 2)]
    assert [line.partition(": -u ")[0] for line in sorted((checkout / job_id).read_text().splitlines())] == said


# ---- real runs ------------------------------------------------------------------------------------------------------


def quick(python: Path) -> dict[str, str]:
    """Return the environment in which the ranks are forks of what has imported torch, started without torchrun."""
    return {"OMP_NUM_THREADS": "1", "PYTHON": str(python), "LAUNCH_OPTS": "--start=plain"}


def test_several_nodes_train_together(slurm: Slurm, checkout: Path, python: Path) -> None:
    job_id = submit(slurm, checkout, "slurm_train.sh", "small.json", *SMALL, NPROC="1", **quick(python))
    code, out, err = finish(slurm, checkout, job_id)
    assert code == "0:0", err
    assert [line for line in out if re.match(r"\[node1:0\] ranks +2, ", line)], out
    assert "2 ranks succeeded, 0 processes left on 2 hosts" in err[-1]
    assert (checkout / "saved" / "metrics.jsonl").exists()


def test_tasks_share_each_matrix_product_and_save_when_the_time_is_over(
    slurm: Slurm, checkout: Path, python: Path
) -> None:
    words = ("small.json", *SMALL, "--parallel=tp", "--heads=2", "--steps-per-epoch=0", "--epochs=100000")
    options = ("--ntasks-per-node=1",)
    job_id = submit(slurm, checkout, "slurm_train_tp.sh", *words, options=options, **quick(python))
    assert wait_until(lambda: "step 3 " in read_log(checkout, job_id, "out")), read_log(checkout, job_id, "err")
    slurm.run("scancel", "--batch", "--signal=TERM", job_id)  # as --signal=B:TERM@60 does
    code, out, err = finish(slurm, checkout, job_id)
    assert code == "143:0", err
    assert [line for line in out if re.match(r"\[node1:0\] batch +tp, ", line)], out
    assert list((checkout / "saved" / "checkpoints").iterdir())


def test_the_example(slurm: Slurm, checkout: Path, python: Path) -> None:
    """By its batch script in another folder: a rank per task, averages that go down, and a checkpoint."""
    words = ("--epochs", "2", "--batch_size", "16", "--data_size", "1000", "--lr", "0.05", "--save", "out")
    options = ("--ntasks=3", f"--export=ALL,OMP_NUM_THREADS=1,PYTHON={python}")
    script, folder = checkout / "examples" / "train_distributed_example.sh", checkout / "logs"
    job_id = slurm.submit(f"--chdir={folder}", *options, str(script), *words)
    slurm.wait_for_job(job_id)
    log = (folder / f"train_distributed_{job_id}.out").read_text()
    assert shown(slurm, job_id, "ExitCode") == "0:0", log
    lines = [line for line in log.splitlines() if line.startswith(("rank", "epoch"))]
    lines[:3] = sorted(lines[:3])  # the ranks of two nodes print when they like
    places = ("node1, local rank 0 of 2", "node1, local rank 1 of 2", "node2, local rank 0 of 1")
    ranks = [rf"rank {r} of 3 \(srun\) on {place}, cpu, gloo, pid \d+" for r, place in enumerate(places)]
    for line, pattern in zip(lines, [*ranks, *(rf"epoch {n} of 2: loss [\d.]+" for n in (1, 2))], strict=True):
        assert re.fullmatch(pattern, line), log
    first, second = (float(line.rpartition(" ")[2]) for line in lines[3:5])
    assert second < first
    assert [path.name for path in sorted((folder / "out").iterdir())] == ["step_00000021.pt", "step_00000042.pt"]


def test_an_example_that_can_t_start_says_why_in_one_line(slurm: Slurm, checkout: Path) -> None:
    script = checkout / "examples" / "train_distributed_example.sh"
    name = f"{script.name}: "
    done = slurm.run("salloc", "--quiet", "bash", str(script), cwd=checkout, timeout=DEADLINE_S)
    assert (done.stdout, done.stderr) == ("", f"{name}this is a batch script; fix: sbatch {script}\n")
    alone = checkout / "logs" / script.name
    shutil.copy(script, alone)
    fix = "load your environment in the script, or set PYTHON=/PATH/TO/python"
    for path, said in (
        (script, f"no torch for no-python on node1; fix: {fix}"),
        (alone, f"no train_distributed_example.py beside this script or in {checkout}"),
    ):
        job_id = slurm.submit(f"--chdir={checkout}", "--export=ALL,PYTHON=no-python", "--output=%j", str(path))
        slurm.wait_for_job(job_id)
        assert (shown(slurm, job_id, "ExitCode"), (checkout / job_id).read_text()) == ("2:0", f"{name}{said}\n")
