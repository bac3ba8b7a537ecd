"""`launch sbatch` up to sbatch itself: which options stand where, and what is said beside the text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.errors import EXIT_USAGE

Launch = Callable[..., tuple[int, str, str]]


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


def test_the_script_of_a_job_that_goes_back_into_the_queue(
    sbatch: Launch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = folder / 'ann\'s "#1"'
    there.mkdir()
    monkeypatch.chdir(there)
    words = ("--requeue", "--nproc", "2", "--cpu", "--stop-timeout", "300.5", "--no-python")
    _, out, err = sbatch(*words, "it's", "$HOME", "a b")
    quoted = str(there).replace('"', '\\"')
    assert out == (
        "#!/bin/bash\n"
        '#SBATCH --job-name="it\'s"\n'
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks-per-node=1\n"
        f'#SBATCH --chdir="{quoted}"\n'
        "#SBATCH --output=slurm-%j.out\n"
        "#SBATCH --error=slurm-%j.err\n"
        "#SBATCH --requeue\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --signal=B:USR1@346\n"
        "\n"
        "# Written by `launch sbatch`. Pass it to sbatch with what else the job needs: "
        "sbatch --time=4:00:00 --cpus-per-task=32\n"
        "# 346 s before the time limit, launch gets a signal; ranks have 300.5 s to save.\n"
        "# Then the job is requeued; SLURM_RESTART_COUNT counts its restarts, for the ranks too.\n"
        "trap 'is_due=yes; kill -TERM \"$launch\"' USR1\n"
        "trap 'kill -TERM \"$launch\"' TERM\n"
        "/opt/bin/launch --transport srun --nproc 2 --cpu --stop-timeout 300.5 --no-python "
        "'it'\"'\"'s' '$HOME' 'a b' &\n"
        "launch=$!\n"
        'while wait "$launch"; code=$?; kill -0 "$launch" 2>/dev/null; do :; done\n'
        'if [ -n "${is_due-}" ] && [ "$code" -ne 0 ]; then\n'
        '    scontrol requeue "$SLURM_JOB_ID"\n'
        "fi\n"
        'exit "$code"\n'
    )
    said = "launch: Slurm sets SLURM_RESTART_COUNT in a requeued job; fix: make your script resume if it is set\n"
    assert err == said


@pytest.mark.parametrize("name", ["a%j", "a\\b", "a\nb"])
def test_a_directory_that_slurm_would_misread_is_refused(
    sbatch: Launch, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (folder / name).mkdir()
    (folder / name / "train.py").touch()
    monkeypatch.chdir(folder / name)
    code, out, err = sbatch("--gpus", "1", "train.py")
    assert (code, out) == (EXIT_USAGE, "")
    assert "Slurm can't have a name with control characters, or % or \\ in a path" in err


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
    _, out, _ = sbatch(*options, "--log-dir", "my logs", "pkg.train", "-v")
    assert last_line(out) == (
        "exec /opt/bin/launch --transport srun --nproc 2 --cpu -m --setup 'module load x; y' "
        "--env 'A=b $c' --env B= --ranks 0 --hang-timeout 10m --log-dir 'my logs' pkg.train -v"
    )
    assert "#SBATCH --job-name=pkg.train\n" in out


@pytest.mark.parametrize(
    "words", ["--hang-timeout off", "--hang-timeout auto --on-hang end", "--restarts 5 --spares 1"]
)
def test_what_becomes_of_a_run_that_fails_is_up_to_the_job(sbatch: Launch, words: str) -> None:
    _, out, _ = sbatch("--nproc", "2", "--cpu", *words.split(), "train.py")
    assert last_line(out) == f"exec /opt/bin/launch --transport srun --nproc 2 --cpu {words} train.py"


def test_what_launcher_toml_says_is_asked_of_slurm_and_left_to_the_job(sbatch: Launch, folder: Path) -> None:
    (folder / "launcher.toml").write_text('gpus = 4\nnodes = 2\nlog_dir = "out"\nscript = "train.py"\n')
    code, out, _ = sbatch()
    assert code == 0
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --nodes=2\n")
    assert "#SBATCH --gres=gpu:4\n" in out
    assert last_line(out) == "exec /opt/bin/launch --transport srun"


@pytest.mark.parametrize("option", ["--stacks", "--no-stacks"])
def test_a_switch_is_passed_on_as_it_was_typed(sbatch: Launch, option: str) -> None:
    _, out, _ = sbatch("--gpus", "1", option, "train.py")
    assert last_line(out) == f"exec /opt/bin/launch --transport srun --gpus 1 {option} train.py"


def test_a_secret_is_not_in_the_text(sbatch: Launch, folder: Path) -> None:
    code, out, err = sbatch(
        "--gpus", "1", "--env", "WANDB_API_KEY=hunter2", "--env", "URI=https://u:hunter2@h",
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


def test_the_built_in_trainer_is_started_alike_when_it_is_requeued(sbatch: Launch) -> None:
    """It finds out by itself that its job was started before."""
    _, out, err = sbatch("--gpus", "8", "--requeue", "-m", "launcher.trainer", "--epochs", "3")
    assert "\n/opt/bin/launch --transport srun --gpus 8 -m launcher.trainer --epochs 3 &\n" in out
    assert err == ""


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        ("--cpu train.py", "--cpu needs a number of processes", "pass --nproc N, or set slots=N in the hostfile"),
        (
            "--gpus 8 --nodes 0 train.py",
            "--nodes: must be a whole number from 1 to 65536, got 0",
            "see launch sbatch --help for the options",
        ),
        (
            "--gpus 8 tarin.py",
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
