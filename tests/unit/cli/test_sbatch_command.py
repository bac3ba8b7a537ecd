"""`launch sbatch` up to sbatch itself: which options stand where, and what is said beside the text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.errors import EXIT_FAILED, EXIT_USAGE

Launch = Callable[..., tuple[int, str, str]]
CPUS_NOTE = (
    "launch: without --cpus-per-task, the ranks of a node may have to share one CPU; fix: pass --cpus-per-task N\n"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a script, in an environment without a PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {"COLUMNS": "100", "HOME": str(tmp_path), "PATH": str(tmp_path)})
    monkeypatch.setattr("sys.argv", ["/opt/bin/launch"])
    (tmp_path / "train.py").touch()
    return tmp_path


@pytest.fixture
def sbatch(capsys: pytest.CaptureFixture[str]) -> Launch:
    """Return a function that calls the command and gives (exit code, stdout, stderr)."""

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(["sbatch", *words])
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call


def test_the_script_is_printed_and_nothing_is_written(sbatch: Launch, folder: Path) -> None:
    code, out, err = sbatch("--nodes", "4", "--gpus", "8", "--time", "12:00:00", "train.py", "--lr", "3e-4")
    assert (code, err) == (0, CPUS_NOTE)
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --nodes=4\n")
    assert f"\n#SBATCH --chdir={folder}\n" in out
    assert out.endswith("\nexec /opt/bin/launch --transport srun --gpus 8 train.py --lr 3e-4\n")
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def last_line(out: str) -> str:
    return out.splitlines()[-1]


def test_the_options_of_a_run_go_to_launch_as_they_were_typed(sbatch: Launch) -> None:
    options = [
        "--nproc",
        "2",
        "--cpu",
        "-m",
        "--setup",
        "module load x; y",
        "--env",
        "A=b $c",
        "--env",
        "B=",
        "--ranks",
        "0",
        "--hang-timeout",
        "10m",
    ]
    _, out, _ = sbatch(
        *options, "--log-dir", "my logs", "--directive", "--exclusive", "--directive=--job-name=x", "pkg.train", "-v"
    )
    assert last_line(out) == (
        "exec /opt/bin/launch --transport srun --nproc 2 --cpu -m --setup 'module load x; y' "
        "--env 'A=b $c' --env B= --ranks 0 --hang-timeout 10m --log-dir 'my logs' pkg.train -v"
    )
    assert "#SBATCH --job-name=x\n" in out
    assert '#SBATCH --output="my logs/slurm-%j.out"\n' in out
    assert "#SBATCH --exclusive\n" in out


@pytest.mark.parametrize(
    "words", ["--hang-timeout off", "--hang-timeout auto --on-hang end", "--restarts 5 --spares 1"]
)
def test_what_becomes_of_a_run_that_fails_is_up_to_the_job(sbatch: Launch, words: str) -> None:
    _, out, _ = sbatch("--nproc", "2", "--cpu", *words.split(), "train.py")
    assert last_line(out) == f"exec /opt/bin/launch --transport srun --nproc 2 --cpu {words} train.py"


def test_what_launcher_toml_says_is_asked_of_slurm_and_left_to_the_job(sbatch: Launch, folder: Path) -> None:
    (folder / "launcher.toml").write_text(
        'gpus = 4\nnodes = 2\ndirective = ["--partition=gpu"]\nlog_dir = "out"\nscript = "train.py"\n'
    )
    code, out, _ = sbatch("--cpus-per-task", "32")
    assert code == 0
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --nodes=2\n")
    assert "#SBATCH --gres=gpu:4\n" in out
    assert "#SBATCH --partition=gpu\n" in out
    assert "#SBATCH --output=out/slurm-%j.out\n" in out
    assert last_line(out) == "exec /opt/bin/launch --transport srun"


@pytest.mark.parametrize("option", ["--stacks", "--no-stacks"])
def test_a_switch_is_passed_on_as_it_was_typed(sbatch: Launch, option: str) -> None:
    _, out, _ = sbatch("--gpus", "1", "--cpus-per-task", "8", option, "train.py")
    assert last_line(out) == f"exec /opt/bin/launch --transport srun --gpus 1 {option} train.py"


def test_a_secret_is_not_in_the_text(sbatch: Launch, folder: Path) -> None:
    code, out, err = sbatch(
        "--gpus", "1", "--cpus-per-task", "8", "--env", "WANDB_API_KEY=hunter2", "--env", "URI=https://u:hunter2@h",
        "--env", "A=1", "train.py",
    )  # fmt: skip
    assert code == 0
    assert "hunter2" not in out + err
    words = "--gpus 1 --env WANDB_API_KEY --env URI --env A=1 train.py"
    assert last_line(out) == f"exec /opt/bin/launch --transport srun {words}"
    assert err == "".join(
        f"launch: {name} is a secret, so it isn't in the script; fix: set it where you run sbatch\n"
        for name in ("WANDB_API_KEY", "URI")
    )


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ([], ""),
        (["-m", "launcher.trainer", "--epochs", "3"], " -m launcher.trainer --epochs 3"),
    ],
)
def test_the_built_in_trainer_is_started_alike_when_it_is_requeued(
    sbatch: Launch, words: list[str], program: str
) -> None:
    """It finds out by itself that its job was started before."""
    _, out, err = sbatch("--gpus", "8", "--cpus-per-task", "8", "--requeue", *words)
    assert f"\n/opt/bin/launch --transport srun --gpus 8{program} &\n" in out
    assert err == ""


def test_ones_own_script_is_told_how_to_know_that_it_was_requeued(sbatch: Launch) -> None:
    _, out, err = sbatch("--gpus", "8", "--cpus-per-task", "8", "--requeue", "train.py")
    assert "\n/opt/bin/launch --transport srun --gpus 8 train.py &\n" in out
    assert (
        err == "launch: Slurm sets SLURM_RESTART_COUNT in a requeued job; fix: make your script resume if it is set\n"
    )


def test_the_script_is_written_to_a_file(sbatch: Launch, folder: Path) -> None:
    code, out, err = sbatch("--gpus", "8", "--cpus-per-task", "8", "--output", "my job.sh", "train.py")
    assert (code, out) == (0, "")
    assert err == f"launch: start it with: mkdir -p {folder}/logs && sbatch 'my job.sh'\n"
    assert (folder / "my job.sh").read_text() == sbatch("--gpus", "8", "--cpus-per-task", "8", "train.py")[1]


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (
            "train.py",
            "Slurm needs the number of GPUs per node",
            "pass --gpus N before SCRIPT, or --nproc N --cpu to train on CPUs",
        ),
        ("--cpu train.py", "--cpu needs a number of processes", "pass --nproc N, or set slots=N in the hostfile"),
        (
            "--gpus 8 --nodes 0 train.py",
            "--nodes: must be a whole number from 1 to 65536, got 0",
            "see launch sbatch --help for the options",
        ),
        (
            "--gpus 8 --time 12h train.py",
            "--time: must be a time as Slurm writes it, got '12h'",
            "write 90 (minutes), 12:00:00 or 2-12",
        ),
        ("--gpus 8 --env X train.py", "--env X: X is not set here", "give its value: --env X=VALUE"),
        ("--gpus 8 --output none/job.sh train.py", "none/job.sh: No such file or directory", ""),
        (
            "--gpus 8 --submit --log-dir train.py/logs train.py",
            "{folder}/train.py/logs: Not a directory",
            "name another directory with --log-dir",
        ),
        (
            "--gpus 8 --submit tarin.py",
            "tarin.py: no such file",
            "if it exists only on the nodes, pass its directory with --workdir",
        ),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(
    sbatch: Launch, folder: Path, words: str, message: str, fix: str
) -> None:
    said = f"launch: {message.format(folder=folder)}\n" + (f"  fix: {fix}\n" if fix else "")
    assert sbatch(*words.split()) == (EXIT_USAGE, "", said)
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_a_machine_without_sbatch_is_named_so(sbatch: Launch, folder: Path) -> None:
    fix = "run this on a machine of the cluster, or copy the script there: --output FILE"
    said = f"launch: sbatch isn't installed on this machine\n  fix: {fix}\n"
    before = os.umask(0o002)
    try:
        assert sbatch("--gpus", "8", "--submit", "train.py") == (EXIT_FAILED, "", said)
    finally:
        os.umask(before)
    assert (folder / "logs").stat().st_mode & 0o777 == 0o775  # the runs in it are private, it is not
