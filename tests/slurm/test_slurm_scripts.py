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
from machines.slurm import CPUS, GPUS, Slurm
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
echo "$(uname -n): $cpus CPUs, GPUs ${CUDA_VISIBLE_DEVICES-none}, threads ${OMP_NUM_THREADS-any}: $*"
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


@pytest.fixture
def telling(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose scripts load an environment, with variables unset as conda's have them, that tells all."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # other tests have it
    python = checkout / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in SCRIPTS:
        script = checkout / "scripts" / "slurm" / name
        script.write_text(script.read_text().replace(PLACE, f"export PYTHON='{python}' OLD=$NOT_SET_ANYWHERE\n"))
    return checkout


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


def threads(ranks: int) -> int:
    return max(1, min(CPUS, len(os.sched_getaffinity(0))) // ranks)


# ---- what is asked for, and what is started -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_has_one_place_for_an_environment_and_asks_for_gpus_cpus_and_memory(name: str) -> None:
    text = (ROOT / "scripts" / "slurm" / name).read_text()
    assert text.count(PLACE) == 1
    assert text.index(PLACE) < text.index("job.sh")  # which sets -u
    asked = re.findall(r"^(#+)SBATCH --(gpus-per-node|exclusive|mem|cpus-per-task|output|error)\b", text, re.MULTILINE)
    assert [name for marks, name in asked if marks == "#"] == ["exclusive", "mem", "output", "error"]
    assert [name for marks, name in asked if marks == "##"] == ["gpus-per-node", "cpus-per-task", "mem"]
    assert "#SBATCH --mem=0\n#SBATCH --output=logs/slurm-%j.out\n#SBATCH --error=logs/slurm-%j.err\n" in text


def test_one_node_trains_on_all_its_gpus_with_all_its_cpus(slurm: Slurm, telling: Path) -> None:
    words = ("small.json", "--data", "runs/slurm_train/a  b")
    job_id = submit(slurm, telling, "slurm_train_single_node.sh", *words)
    torchrun = f"-m torch.distributed.run --standalone --log-dir=/dev/null --nproc-per-node={GPUS}"
    line = f"{torchrun} -m launcher.trainer --config small.json --data runs/slurm_train/a  b"
    said = [f"node1: {CPUS} CPUs, GPUs 0,1, threads {threads(GPUS)}: {line}"]
    assert finish(slurm, telling, job_id) == ("0:0", said, [])
    options = ("--gres=gpu:1", "--array=0-1", "--output=logs/slurm-%A_%a.out", "--error=logs/slurm-%A_%a.err")
    job_id = submit(slurm, telling, "slurm_train_single_node.sh", options=options)
    for task in range(2):  # the last one has the number of the array, and scontrol shows both tasks under it
        code, out, errors = finish(slurm, telling, f"{job_id}_{task}")
        assert (code, errors) == ("0:0", [])
        assert " --nproc-per-node=1 " in out[0]


@pytest.mark.parametrize(
    ("name", "folder", "port"),
    [("slurm_train.sh", "", ""), ("slurm_train_multinode.sh", "", "23456"), ("train4.sh", "scripts/slurm", "")],
)
def test_each_node_trains_with_all_that_it_has(slurm: Slurm, telling: Path, name: str, folder: str, port: str) -> None:
    if name not in SCRIPTS:
        shutil.copy(telling / "scripts" / "slurm" / "slurm_train.sh", telling / "scripts" / "slurm" / name)
    options = ["--lr", "1 2", *(["../../config/fsdp.yaml"] if folder else [])]
    job_id = submit(slurm, telling, name, *reversed(options[2:]), *options[:2], folder=folder, MASTER_PORT=port)
    meeting = f"--master-addr=node1 --master-port={port or 15000 + int(job_id)}"
    config = telling / folder / "../../config/fsdp.yaml" if folder else "config/local3.yaml"
    said = [
        f"node{rank + 1}: {CPUS} CPUs, GPUs 0,1, threads {threads(GPUS)}: "
        f"-m torch.distributed.run --nnodes=2 --node-rank={rank} --log-dir=/dev/null --nproc-per-node={GPUS} "
        f"{meeting} -m launcher.trainer --config {config} --lr 1 2"
        for rank in range(2)
    ]
    moved = [f"scripts/slurm: this job runs in {telling}"] if folder else []
    assert finish(slurm, telling / folder, job_id) == ("0:0", said, moved)


@pytest.mark.parametrize("asked", ["--gres=gpu", "--gpus-per-node=1", "--gpus=2"])
def test_a_job_that_asks_for_fewer_gpus_than_its_whole_nodes_have(slurm: Slurm, telling: Path, asked: str) -> None:
    """Slurm gives a job with --exclusive all GPUs of its nodes; it has as many ranks as the GPUs that it asked for."""
    job_id = submit(slurm, telling, "slurm_train.sh", options=(asked,))
    code, out, errors = finish(slurm, telling, job_id)
    assert (code, errors) == ("0:0", [])
    assert [line.partition(" -m ")[0] for line in out] == [
        f"node{node}: {CPUS} CPUs, GPUs 0, threads {threads(1)}:" for node in (1, 2)
    ]
    example = telling / "examples" / "train_distributed_example.sh"
    python = f"--export=ALL,PYTHON={telling / 'bin' / 'python'}"
    job_id = slurm.submit(f"--chdir={telling}", "--output=%j", python, asked, str(example))
    slurm.wait_for_job(job_id)
    assert [line.partition(" -u ")[0] for line in sorted((telling / job_id).read_text().splitlines())] == [
        f"node{node}: {CPUS} CPUs, GPUs 0, threads any:" for node in (1, 2)
    ]


def test_tasks_share_the_cpus_of_their_node(slurm: Slurm, telling: Path) -> None:
    line = "-u -m launcher.trainer --config config/tp_shakespeare.yaml"
    job_id = submit(slurm, telling, "slurm_train_tp.sh")
    said = [f"node{node}: {CPUS // 2} CPUs, GPUs 0,1, threads any: {line}" for node in (1, 1, 2, 2)]
    assert finish(slurm, telling, job_id) == ("0:0", said, [])
    job_id = submit(slurm, telling, "slurm_train_tp.sh", options=("--ntasks-per-node=1",))
    said = [f"node{node}: {CPUS} CPUs, GPUs 0,1, threads any: {line}" for node in (1, 2)]
    idle = "scripts/slurm: this job has 2 GPUs on node1 and uses 1 of them; fix: pass --ntasks-per-node=2"
    assert finish(slurm, telling, job_id) == ("0:0", said, [idle])


def test_the_shell_of_salloc_starts_them_on_the_nodes_of_its_job(slurm: Slurm, telling: Path) -> None:
    """Typed on the login machine, they train on the nodes, with the GPUs that the job has there."""

    def type_in_salloc(*options: str, script: str) -> tuple[list[str], str]:
        words = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", *options, f"scripts/slurm/{script}")
        done = slurm.run(*words, cwd=telling, timeout=DEADLINE_S)
        assert done.returncode == 0, done
        return sorted(line.partition(": -")[0] for line in done.stdout.splitlines()), done.stderr

    all_there = f"{CPUS} CPUs, GPUs 0,1, threads"
    said = [f"node1: {all_there} {threads(GPUS)}"]
    assert type_in_salloc("--exclusive", script="slurm_train_single_node.sh") == (said, "")
    said = [f"node{node}: {all_there} {threads(GPUS)}" for node in (1, 2)]
    assert type_in_salloc("--exclusive", script="slurm_train.sh") == (said, "")
    said = [f"node{node}: {all_there} any" for node in (1, 2)]
    idle = "scripts/slurm: this job has 2 GPUs on node1 and uses 1 of them; fix: pass --ntasks-per-node=2\n"
    assert type_in_salloc("--exclusive", script="slurm_train_tp.sh") == (said, idle)
    said = [f"node{node}: 1 CPUs, GPUs none, threads any" for node in (1, 2)]
    none = "node1 has 2 GPUs but this job has none: it trains on CPUs with 1 rank per node; fix: pass --gpus-per-node=2"
    assert type_in_salloc(*SHARE, script="slurm_train_tp.sh") == (said, f"scripts/slurm: {none}\n")


def test_a_job_without_gpus_says_so_before_it_trains(slurm: Slurm, telling: Path) -> None:
    """On a node whose GPUs others may have, on one that has none, and on one whose GPUs Slurm does not know."""
    known = submit(slurm, telling, "slurm_train_single_node.sh", options=SHARE, MASTER_PORT="23456")
    tool = telling / "bin" / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-0)'\necho 'GPU 1: H200 (UUID: GPU-1)'\n")
    tool.chmod(0o755)
    script = "NPROC=$1 SLURMD_NODENAME=other scripts/slurm/slurm_train_single_node.sh >&2"
    fake = 'PATH="$PWD/bin:$PATH" f'
    lines = ["f() { " + script + "; }", "f ''", f"{fake} ''", f"{fake} 2"]
    logs = ("--output=logs/slurm-%j.out", "--error=logs/slurm-%j.err")
    others = slurm.submit(f"--chdir={telling}", *SHARE, *logs, f"--wrap={'; '.join(lines)}")

    *_, errors = finish(slurm, telling, known)
    one = "it trains on CPUs with 1 rank per node"
    assert errors == [f"scripts/slurm: node1 has 2 GPUs but this job has none: {one}; fix: pass --gpus-per-node=2"]
    assert "--master-addr=127.0.0.1 --master-port=23456 --log-dir" in read_log(telling, known, "out")
    *_, errors = finish(slurm, telling, others)
    assert [line for line in errors if line.startswith("scripts")] == [
        f"scripts/slurm: other has no GPUs but other nodes have: {one}; "
        "fix: pass --gpus-per-node=N, or another --partition",
        "scripts/slurm: other has 2 GPUs that Slurm doesn't know of, for 1 rank per node; fix: set NPROC=2",
    ]


def test_what_can_t_start_says_why_in_one_line(slurm: Slurm, checkout: Path) -> None:
    folder = checkout / "scripts" / "slurm"
    done = subprocess.run(
        [str(folder / "slurm_train.sh")], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    said = "scripts/slurm: this must run in a Slurm job; fix: sbatch scripts/slurm/slurm_train.sh\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    alone = checkout.parent / "my scripts"
    (alone / "logs").mkdir(parents=True)
    shutil.copy(folder / "slurm_train_tp.sh", alone / "train.sh")
    copied = slurm.submit(f"--chdir={alone}", str(alone / "train.sh"), "a/b.yaml")
    said = f"{alone}/train.sh: job.sh of scripts/slurm is needed beside it"
    assert finish(slurm, alone, copied) == ("2:0", [], [said])
    lines = (
        "srun scripts/slurm/slurm_train_multinode.sh",
        "PYTHON=no-python scripts/slurm/slurm_train_single_node.sh",
        "scripts/slurm/slurm_train_single_node.sh none.yaml",
    )
    logs = ("--output=logs/slurm-%j.out", "--error=logs/slurm-%j.err")
    job = ("--nodes=2", "--ntasks-per-node=2", f"--wrap={'; '.join(lines)}")
    code, _, errors = finish(slurm, checkout, slurm.submit(f"--chdir={checkout}", *logs, *job))
    where = "load your environment in the script, or set PYTHON=/PATH/TO/python"
    assert (code, [line for line in errors if line.startswith("scripts/slurm: ")]) == (
        "2:0",
        [
            "scripts/slurm: 2(x2) tasks per node would each start a torchrun; fix: srun --ntasks-per-node=1",
            f"scripts/slurm: no torch for no-python on node1; fix: {where}",
            f"scripts/slurm: no configuration {checkout}/none.yaml on node1",
        ],
    )


# ---- real runs ------------------------------------------------------------------------------------------------------


def quick(python: Path) -> dict[str, str]:
    """Return the environment in which a script and its torchrun start forks of what has imported torch."""
    return {"OMP_NUM_THREADS": "1", "PYTHON": str(python)}


def test_one_node_trains_with_as_many_ranks_as_it_is_told(slurm: Slurm, checkout: Path, python: Path) -> None:
    job_id = submit(slurm, checkout, "slurm_train_single_node.sh", "small.json", *SMALL, NPROC="1", **quick(python))
    code, out, err = finish(slurm, checkout, job_id)
    assert code == "0:0", err
    assert [line for line in out if re.match(r"ranks +1,.* from torchrun$", line)], out
    assert (checkout / "saved" / "metrics.jsonl").exists()


def test_several_nodes_train_together(slurm: Slurm, checkout: Path, python: Path) -> None:
    job_id = submit(slurm, checkout, "slurm_train.sh", "small.json", *SMALL, NPROC="1", **quick(python))
    code, out, err = finish(slurm, checkout, job_id)
    assert code == "0:0", err
    assert [line for line in out if re.match(r"ranks +2,.* from torchrun$", line)], out
    assert (checkout / "saved" / "metrics.jsonl").exists()
    assert {path.name for path in (checkout / "logs").iterdir()} == {f"slurm-{job_id}.{end}" for end in ("out", "err")}


def test_tasks_share_each_matrix_product_and_save_when_the_time_is_over(
    slurm: Slurm, checkout: Path, python: Path
) -> None:
    (checkout / "data" / "tinyshakespeare.txt").rename(checkout / "mine.txt")  # nothing is downloaded then
    words = ("small.json", *SMALL, "--data=mine.txt", "--parallel=tp", "--heads=2", "--steps-per-epoch=0")
    words += ("--epochs=100000",)
    options = ("--ntasks-per-node=1",)
    job_id = submit(slurm, checkout, "slurm_train_tp.sh", *words, options=options, **quick(python))
    assert wait_until(lambda: "step 3 " in read_log(checkout, job_id, "out")), read_log(checkout, job_id, "err")
    look = slurm.run("srun", f"--jobid={job_id}", "--ntasks=1", "--nodes=1", "uname", "-n", timeout=DEADLINE_S)
    assert look.stdout == "node1\n"  # the step of the training has all CPUs, and does not hold it up
    slurm.run("scancel", "--signal=TERM", job_id)  # as --signal=TERM@60 does
    code, out, err = finish(slurm, checkout, job_id)
    assert code == "143:0", err
    assert [line for line in out if re.match(r"ranks +2,.* from srun$", line)], out
    assert [line for line in out if re.match(r"batch +tp, ", line)], out
    assert list((checkout / "saved" / "checkpoints").iterdir())


# As people have it in their batch scripts.
BATCH = """\
#!/bin/bash
export PATH={folder}:$PATH
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=29500
srun python train.py --config small.json --distributed-backend gloo --save-dir outputs {small}
"""


def test_srun_python_train_py(slurm: Slurm, checkout: Path, python: Path) -> None:
    (checkout / "job.sh").write_text(BATCH.format(folder=python.parent, small=" ".join(SMALL)))
    options = ("--nodes=2", "--ntasks-per-node=1", "--output=%j", "--export=ALL,OMP_NUM_THREADS=1")
    job_id = slurm.submit(f"--chdir={checkout}", *options, str(checkout / "job.sh"))
    slurm.wait_for_job(job_id)
    log = (checkout / job_id).read_text()
    assert shown(slurm, job_id, "ExitCode") == "0:0", log
    assert re.search(r"^ranks +2,.* from srun$", log, re.MULTILINE), log
    assert (checkout / "outputs" / "model.pt").exists()


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
