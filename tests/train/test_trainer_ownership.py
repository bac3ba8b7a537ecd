"""Which folder a run saves in: a new one, its own of an earlier attempt, and none with files of somebody else."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.distributed import Attempt, World, cpu_count, find_attempt
from launcher.trainer import __main__ as trainer
from launcher.trainer.journal import continue_command, name_python
from launcher.trainer.ownership import make_new

SHORT = ["--data-size", "100", "--steps-per-epoch", "2", "--layers", "1", "--batch-size", "2", "--log-every", "1"]
PYTHON = name_python()
OUTPUTS = Path("outputs")


@dataclass
class Said:
    """What a run ended with and printed."""

    exit_code: int
    lines: list[str]
    error: str

    def line(self, name: str) -> str | None:
        """Return what a line of the start report says."""
        return next((line[8:] for line in self.lines if line.startswith(f"{name:<8}")), None)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Train for two steps an epoch, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Said:
        exit_code = trainer.main([*SHORT, *words])
        captured = capsys.readouterr()
        return Said(exit_code, captured.out.splitlines(), captured.err)

    return run


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_makes_a_folder_of_its_own_beside_the_users_files(train: Callable[..., Said]) -> None:
    OUTPUTS.mkdir()
    (OUTPUTS / "model.pt").write_text("a month of work")
    (OUTPUTS / "metrics.jsonl").write_text("mine")
    first, second = train(), train()
    folders = [Path(said.line("saves") or "") for said in (first, second)]
    assert all(re.fullmatch(r"outputs/\d{8}-\d{6}(-2)?", str(folder)) for folder in folders), folders
    assert len(set(folders)) == 2
    assert sorted(path.name for path in folders[0].iterdir()) == [
        ".lock", ".trainer.json", "checkpoints", "metrics.jsonl", "model.pt",
    ]  # fmt: skip
    assert ((OUTPUTS / "model.pt").read_text(), (OUTPUTS / "metrics.jsonl").read_text()) == ("a month of work", "mine")

    # What the last line says is all that it takes to go on.
    start, command = first.lines[-1].split(": ", 1)
    assert start == "to train longer"
    assert command == f"{PYTHON} -m launcher.trainer {' '.join(SHORT)} --save-dir {folders[0]} --epochs 2 --resume"
    longer = train(*command.split()[3 + len(SHORT) :])
    assert (longer.exit_code, longer.line("resume")) == (0, f"{folders[0]}/checkpoints/step_2, step 2 of epoch 2")

    option = "--resume needs --save-dir DIR, because each run has its own directory"
    newest = max(folders, key=lambda folder: (folder / ".trainer.json").stat().st_mtime)
    assert train("--resume") == Said(2, [], f"{option}; newest run here: --save-dir {newest}\n")
    shutil.rmtree(OUTPUTS)
    assert train("--resume=auto") == Said(2, [], f"{option.replace('--resume', '--resume auto')}\n")


@pytest.mark.parametrize(
    "name", ["model.pt", "model.pt.tmp", "metrics.jsonl", "checkpoints/last.ckpt", ".trainer.json"]
)
@pytest.mark.parametrize("words", [[], ["--resume", "auto"]])
def test_a_file_that_the_trainer_did_not_write_is_never_replaced(
    name: str, words: list[str], train: Callable[..., Said]
) -> None:
    (OUTPUTS / name).parent.mkdir(parents=True)
    (OUTPUTS / name).write_text("mine")
    found = OUTPUTS / name.partition("/")[0]
    refusal = f"{found}: not written by this trainer, which would replace it; fix: name another --save-dir\n"
    assert train("--save-dir", "outputs", *words) == Said(2, [], refusal)
    assert read_all(OUTPUTS) == {name: b"mine"}


def test_other_files_in_the_folder_stay(train: Callable[..., Said]) -> None:
    (OUTPUTS / "checkpoints").mkdir(parents=True)
    for name in ("train.log", ".writable"):
        (OUTPUTS / name).write_text("mine")
    assert train("--save-dir", "outputs").exit_code == 0
    assert [(OUTPUTS / name).read_text() for name in ("train.log", ".writable")] == ["mine"] * 2


def test_an_earlier_run_is_resumed_or_refused(train: Callable[..., Said]) -> None:
    assert train("--save-dir", "out").exit_code == 0
    saved = read_all(Path("out"))
    both = "fix: continue that run with --resume, or name another --save-dir"
    refused = Said(2, [], f"out: an earlier run's checkpoints would be lost; {both}\n")
    assert train("--save-dir", "out") == refused
    shutil.copytree("out", "other")
    assert train("--save-dir", "out", "--resume", "other/checkpoints/step_2") == refused
    (Path("out") / ".trainer.json").unlink()  # as where a copy left it out
    assert train("--save-dir", "out") == refused
    assert {**read_all(Path("out")), ".trainer.json": saved[".trainer.json"]} == saved

    inside = train("--save-dir", "out", "--resume", "out/checkpoints/step_2", "--epochs", "2")
    assert (inside.exit_code, inside.line("resume")) == (0, "out/checkpoints/step_2, step 2 of epoch 2")
    assert (Path("out") / "metrics.jsonl").read_bytes().startswith(saved["metrics.jsonl"])

    shutil.rmtree(Path("out") / "checkpoints")
    model = Said(2, [], "out: an earlier run's model.pt would be lost; fix: name another --save-dir\n")
    assert train("--save-dir", "out") == train("--save-dir", "out", "--resume", "auto") == model


def test_newer_checkpoints_are_not_replaced(train: Callable[..., Said]) -> None:
    """Neither by a run that goes on from an older one, nor by one that keeps fewer."""
    unvalidated = ("--validation-fraction", "0")  # so none of them is the best
    assert train("--save-dir", "out", "--epochs", "4", "--keep", "3", *unvalidated).exit_code == 0
    saved = read_all(Path("out"))
    checkpoints = Path("out") / "checkpoints"
    from_older = ["--save-dir", "out", "--resume", "out/checkpoints/step_6", "--epochs", "4", *unvalidated]
    both = "fix: continue from it with --resume, or name another --save-dir"
    lost = "an earlier run's newer checkpoint step_8 would be lost"
    assert train(*from_older) == Said(2, [], f"out: {lost}; {both}\n")
    shutil.copytree(checkpoints / "step_4", checkpoints / "good")
    assert train(*from_older, "--resume", "out/checkpoints/good").error == f"out: {lost}; {both}\n"
    shutil.rmtree(checkpoints / "good")
    assert read_all(Path("out")) == saved
    assert train(*from_older, "--save-dir", "other").line("resume") == "out/checkpoints/step_6, step 6 of epoch 4"

    def kept(*words: str) -> list[str]:
        assert train("--save-dir", "out", *words, *unvalidated).exit_code == 0
        return sorted(path.name for path in checkpoints.iterdir())

    earlier = ["step_4", "step_6", "step_8"]
    assert kept("--resume", "--epochs", "6", "--keep", "1") == ["step_12", *earlier]
    assert kept("--resume", "--epochs", "7", "--keep", "3") == ["step_12", "step_14", "step_8"]


def test_a_resume_that_finds_nothing_is_no_new_run(train: Callable[..., Said]) -> None:
    nothing = "no complete checkpoint to resume; fix: omit --resume to start from scratch\n"
    assert train("--save-dir", "typo", "--resume") == Said(2, [], f"typo: {nothing}")
    assert not Path("typo").exists()
    Path("empty").mkdir()
    assert train("--save-dir", "empty", "--resume") == Said(2, [], f"empty: {nothing}")
    auto = train("--save-dir", "empty", "--resume", "auto")
    assert (auto.exit_code, auto.line("resume")) == (0, "nothing to resume, starting from scratch")


def test_a_run_that_never_began_leaves_no_folder(train: Callable[..., Said]) -> None:
    assert train("--data", "none.txt").exit_code == 2
    assert train("--data", "none.txt", "--save-dir", "out").exit_code == 2
    assert (list(OUTPUTS.iterdir()), Path("out").exists()) == ([], False)


def test_all_ranks_are_refused_and_one_says_so(starter: Any, tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "model.pt").touch()
    ranks = starter.start_ranks(2, lambda rank: ["-m", "launcher.trainer", "--save-dir", "outputs"])
    assert [rank.wait() for rank in ranks] == [2, 2]
    refusal = "outputs/model.pt: not written by this trainer, which would replace it; fix: name another --save-dir\n"
    assert [rank.stderr for rank in ranks] == [refusal, ""]


def test_a_job_that_goes_back_into_the_queue_goes_on(
    train: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job with two runs of different options; also where its launcher gives each attempt another name."""
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    assert train().line("saves") == "outputs/slurm-41"
    assert train("--lr", "1e-2").line("saves") == "outputs/slurm-41-2"
    assert train("--save-dir", "out").line("saves") == "out"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("LAUNCH_SLURM_JOB", "41")
    monkeypatch.setenv("LAUNCH_MARK", "20261120-091233.0123.0")
    folders = {(): "outputs/slurm-41", ("--lr", "1e-2"): "outputs/slurm-41-2", ("--save-dir", "out"): "out"}
    for words, folder in folders.items():
        again = train(*words)
        assert again.line("saves") == folder
        assert again.line("resume") == f"{folder}/checkpoints/step_2, step 2 of epoch 2"
    other = train("--lr", "1e-3")
    assert other.line("saves") == "outputs/20261120-091233"
    assert other.line("resume") == "nothing to resume, starting from scratch"


def test_a_run_that_fails_says_how_to_continue_it(train: Callable[..., Said], starter: Any) -> None:
    """Where there is a checkpoint to go on from."""
    diverging = [*SHORT, "--epochs", "2", "--lr", "1e30", "--warmup-steps", "0", "--clip-norm", "0"]
    failed = starter.start(["-m", "launcher.trainer", *diverging], warm=True)
    assert (failed.wait(), failed.stderr) == (1, "step 2: the loss is not finite\n")
    assert failed.stdout.splitlines()[-1].startswith("epoch 1 step 2 loss nan")

    assert train("--save-dir", "out").exit_code == 0
    failed = starter.start(["-m", "launcher.trainer", *diverging, "--save-dir", "out", "--resume"], warm=True)
    assert (failed.wait(), failed.stderr) == (1, "step 4: the loss is not finite\n")
    going_on = f"to continue: {PYTHON} -m launcher.trainer {' '.join(diverging)} --save-dir out --resume"
    assert failed.stdout.splitlines()[-1] == going_on


# The trainer, which fails once after its last epoch.
FAILS_ONCE = f"""
import os
from launcher.distributed import leave
from launcher.trainer.__main__ import main
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
exit_code = main({SHORT!r})
leave(1 if is_first else exit_code)
"""


def test_a_torchrun_that_starts_its_ranks_again_goes_on(starter: Any, tmp_path: Path) -> None:
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE)
    env = {"PYTHON_EXEC": sys.executable}  # a rank that knows its torchrun by being its child
    run = starter.start_torchrun("--nproc-per-node", "1", "--max-restarts", "1", "fails_once.py", env=env)
    assert run.wait() == 0, run.stderr
    (folder,) = (tmp_path / "outputs").iterdir()
    saves = [line for line in run.stdout.splitlines() if line.startswith(("saves", "resume"))]
    name = f"outputs/{folder.name}"
    assert saves == [f"saves   {name}", f"saves   {name}", f"resume  {name}/checkpoints/step_2, step 2 of epoch 2"]


# Two runs, whose processes are children of the script.
TRAINS_TWICE = f"""
import os
import launcher.trainer.loop  # once for both
from launcher.distributed import leave
from launcher.trainer.__main__ import main
for _ in range(2):
    if os.fork() == 0:
        leave(main({SHORT!r}))
    os.wait()
"""


def test_each_run_of_a_script_under_torchrun_has_its_own_folder(
    train: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, starter: Any, tmp_path: Path
) -> None:
    """A script that trains twice is the parent of both runs, and no torchrun that starts one of them again."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    first, other = train(), train("--lr", "1e-2")
    assert (other.line("resume"), other.line("saves") == first.line("saves")) == (None, False)
    again = train()
    assert again.line("resume") == f"{first.line('saves')}/checkpoints/step_2, step 2 of epoch 2"

    shutil.rmtree(OUTPUTS)
    sweep = starter.start(["-c", TRAINS_TWICE], {"TORCHELASTIC_RUN_ID": "none"})
    assert sweep.wait() == 0
    assert sweep.stdout.count("final loss") == len(list(OUTPUTS.iterdir())) == 2


def test_two_runs_of_one_second_have_a_folder_each(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    made = [make_new(tmp_path, "a") for _ in range(2)]
    assert made == [tmp_path / "a-2", tmp_path / "a-3"]


LAUNCHED = {"LAUNCH_MARK": "20261120-091233.0123.0", "LAUNCH_SLURM_JOB": "", "LAUNCH_COMMAND": "launch --cpu"}
NAMED = Attempt("20261120-091233", "launch --cpu")


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, Attempt()),
        (LAUNCHED, NAMED),
        ({"SLURM_JOB_ID": "41"}, Attempt("slurm-41", job_id="41")),
        ({"SLURM_JOB_ID": "41", "SLURM_RESTART_COUNT": "2"}, Attempt("slurm-41", job_id="41", requeues=2)),
        # A job that was submitted from within a run, and one whose own launcher started this rank.
        ({**LAUNCHED, "SLURM_JOB_ID": "41"}, Attempt("slurm-41", job_id="41")),
        (
            {**LAUNCHED, "SLURM_JOB_ID": "41", "LAUNCH_SLURM_JOB": "41"},
            Attempt("20261120-091233", "launch --cpu", job_id="41"),
        ),
    ],
)
def test_what_a_run_is_called(environ: dict[str, str], attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert find_attempt() == attempt


@pytest.mark.parametrize(
    ("launched_by", "attempt", "argv", "epochs", "command"),
    [
        ("single process", Attempt(), [], 0, f"{PYTHON} -m launcher.trainer --save-dir o --resume"),
        (
            "single process",
            Attempt(),
            ["--save_dir", "x", "--resume", "--data", "a b", "--resume=none", "--epochs", "3", "--lr=1"],
            0,
            f"{PYTHON} -m launcher.trainer --data 'a b' --epochs 3 --lr=1 --save-dir o --resume",
        ),
        (
            "torchrun",
            Attempt(),
            ["--epochs", "3"],
            4,
            "torchrun --nproc-per-node 1 -m launcher.trainer --save-dir o --epochs 4 --resume",
        ),
        ("mpirun", Attempt(), ["--resume", "p"], 0, f"mpirun ... {PYTHON} -m launcher.trainer --save-dir o --resume"),
        ("torchrun", NAMED, ["--lr", "1"], 0, "launch --cpu --lr 1 --save-dir o --resume"),
    ],
)
def test_the_command_that_goes_on(
    launched_by: str, attempt: Attempt, argv: list[str], epochs: int, command: str
) -> None:
    world = World(0, 1, 0, 1, torch.device("cpu"), "gloo", launched_by)
    assert continue_command(argv, world, attempt, "o", epochs) == command


@pytest.mark.parametrize(
    ("launched_by", "ranks", "device", "step"),
    [
        ("srun", 4, "cpu", "--nodes=2 --ntasks-per-node=2 --cpus-per-task={cpus}"),
        ("torchrun", 16, "cuda", "--nodes=2 --ntasks-per-node=8 --cpus-per-task={cpus} --gpus-per-node=2"),
        ("srun", 3, "cpu", "--nodes=2 --ntasks=3 --cpus-per-task={cpus}"),
    ],
)
def test_in_slurm_the_command_that_goes_on_is_an_srun(launched_by: str, ranks: int, device: str, step: str) -> None:
    world = World(0, ranks, 0, 2, torch.device(device), "gloo", launched_by, node_count=2, job_id="41")
    command = continue_command(["--lr", "1"], world, Attempt("slurm-41", job_id="41", partition="a100"), "o", 2)
    trainer = f"{PYTHON} -m launcher.trainer --lr 1 --save-dir o --epochs 2 --resume"
    assert command == f"srun {step.format(cpus=cpu_count())} --partition=a100 {trainer}"


def test_the_script_that_was_typed_goes_on(starter: Any, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[2] / "train.py", tmp_path)
    run = starter.start(["train.py", *SHORT], warm=True)
    assert run.wait() == 0, run.stderr
    assert run.stdout.splitlines()[-1].partition(" --")[0] == f"to train longer: {PYTHON} train.py"
