"""Words typed wrong: one line says what was meant to stand there, and no host is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.cli import runner
from launcher.errors import EXIT_USAGE
from launcher.job.job import Job, Program, ProgramKind

Launch = Callable[[str], tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a few files, in an environment that has no more than a home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {"COLUMNS": "80", "HOME": str(tmp_path)})
    for name, text in {
        "train.py": "#!/bin/sh\n", "train.sh": "", "train": "#!/bin/sh\n", "zsh_it": "#!/usr/bin/env zsh\n",
        "compiled": "\x7fELF", "script": "#!/usr/bin/env python3\n", "plain": "print()\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    (tmp_path / "logs").mkdir()
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").touch()
    return tmp_path


@pytest.fixture
def launch(capsys: pytest.CaptureFixture[str]) -> Launch:
    """Return a function that calls a command and gives (exit code, stdout, stderr)."""

    def call(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(line.split())
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Take the jobs instead of running them."""
    taken: list[Job] = []

    def take(job: Job, *_: object) -> int:
        taken.append(job)
        return 0

    monkeypatch.setattr(runner, "run_job", take)
    return taken


BEFORE = "options of launch stand before it: launch"
COMMANDS = "launch --help lists the commands"
OPTIONS = "launch run --help lists the options"

A_TIME = "a time such as 90, 90s, 10m or 2h"
TIMES = {"silence": "0.5", "stop-timeout": "0", "connect-timeout": "0.1", "rdzv-timeout": "1", "hang-timeout": "0.1"}

WRONG = [
    # options after the script, which go to the script
    ("train.py --hosts n5", "no hosts given: --hosts n5 after train.py goes to train.py",
     f"{BEFORE} --hosts n5 train.py"),
    ("train.py --lr 1 --hostfile=f x", "no hosts given: --hostfile=f after train.py goes to train.py",
     f"{BEFORE} --hostfile=f train.py"),
    ("--gpus 8 train.py --hosts n5", "no hosts given: --hosts n5 after train.py goes to train.py",
     f"{BEFORE} ... --hosts n5 train.py"),
    ("exec uptime --hosts n5", "no hosts given: --hosts n5 after uptime goes to uptime",
     f"{BEFORE} exec --hosts n5 -- uptime"),
    ("check train.py --hosts n5", "no hosts given: --hosts n5 after train.py goes to train.py",
     f"{BEFORE} check --hosts n5 train.py"),
    ("--hosts a --cpu train.py --nproc 2",
     "--cpu needs a number of processes: --nproc 2 after train.py goes to train.py",
     f"{BEFORE} ... --nproc 2 train.py"),
    ("sbatch train.py --gpus 8",
     "Slurm must know how many GPUs of each node: --gpus 8 after train.py goes to train.py",
     f"{BEFORE} sbatch --gpus 8 train.py"),
    ("node train.py --nnodes 2", "--nnodes is missing: --nnodes 2 after train.py goes to train.py",
     f"{BEFORE} node --nnodes 2 train.py"),
    # what launch starts itself
    ("python train.py", "python: launch starts Python itself", "leave it out: launch ... train.py"),
    ("--hosts a python3.11 -u -m pkg --lr 1", "python3.11: launch starts Python itself",
     "leave it out: launch ... -m pkg"),
    ("--hosts a --workdir /d /opt/bin/python train.py", "/opt/bin/python: launch starts Python itself",
     "leave it out: launch ... --python /opt/bin/python train.py"),
    ("torchrun --nproc_per_node 8 train.py",
     "torchrun: launch starts the ranks itself, with torchrun on every host",
     "leave it out: launch ... --gpus 8 train.py"),
    ("--hosts a accelerate launch", "accelerate: launch starts the ranks itself, with torchrun on every host",
     "leave it out: launch ... SCRIPT"),
    ("--hosts a -m torch.distributed.run --nproc-per-node=2 -m pkg",
     "torch.distributed.run: launch starts the ranks itself, with torchrun on every host",
     "leave it out: launch ... --gpus 2 -m pkg"),
    # what Python can't run
    ("train.sh", "train.sh is a shell script, and launch runs SCRIPT with Python",
     "every rank runs it as a command: launch ... --no-python bash train.sh"),
    ("--hosts a --workdir /d x.sh", "x.sh is a shell script, and launch runs SCRIPT with Python",
     "every rank runs it as a command: launch ... --no-python bash x.sh"),
    ("./train", "./train is a script for sh, and launch runs SCRIPT with Python",
     "every rank runs it as a command: launch ... --no-python ./train"),
    ("--hosts a zsh_it", "zsh_it is a script for zsh, and launch runs SCRIPT with Python",
     "every rank runs it as a command: launch ... --no-python ./zsh_it"),
    ("--hosts a ./compiled", "./compiled is a program, and launch runs SCRIPT with Python",
     "every rank runs it as a command: launch ... --no-python ./compiled"),
    ("logs", "logs is a directory, not a script", COMMANDS),
    ("--hosts a ./logs", "./logs is a directory, not a script", COMMANDS),
    ("singlenode --nproc 1 --cpu logs", "logs is a directory, not a script", COMMANDS),
    ("--hosts a -m train.py", "-m takes a module, and train.py is a file",
     "launch ... train.py, or launch ... -m train"),
    # options behind --
    ("--hosts a -- -m pkg --lr 1", "'-m' is taken for the script: options of launch stand before '--'",
     "launch ... -m pkg --lr 1"),
    ("--hosts a --no-python -- -x", "'-x' is taken for the script: options of launch stand before '--'",
     "launch ... -x"),
    # guesses
    ("attach", "no file or command 'attach'", COMMANDS),
    ("--hosts a --detach train.py", "no option '--detach'", OPTIONS),
    ("--hots a train.py", "no option '--hots'; did you mean '--hosts'?", OPTIONS),
    ("-hosts a train.py", "no option '-hosts'; did you mean '--hosts'?", OPTIONS),
    ("-H a train.py", "no option '-H'; did you mean '--hosts'?", OPTIONS),
    ("-Z", "no option '-Z'", OPTIONS),
    ("--nproc_per_node 8 train.py", "no option '--nproc_per_node'; did you mean '--gpus'?", OPTIONS),
    ("--master_port 8 train.py", "no option '--master_port'; did you mean '--master-port'?", OPTIONS),
    # what click refuses
    ("--hosts a --nproc 0 t.py", "--nproc: want a whole number from 1 on, got 0", OPTIONS),
    ("--hosts a --nproc x t.py", "--nproc: want a whole number from 1 on, got x", OPTIONS),
    ("--hosts a --master-port 65536 t.py", "--master-port: want a whole number from 1 to 65535, got 65536", OPTIONS),
    ("node --nnodes 2 t.py", "--node-rank is missing", "launch node --help lists the options"),
    *(
        (f"--hosts a --{name} {value} t.py", f"--{name}: want {wanted}, got {value!r}", OPTIONS)
        for name, least in TIMES.items()
        for value, wanted in [
            ("x", A_TIME), ("-1", A_TIME), ("nan", A_TIME), ("1e3", A_TIME), ("2d", A_TIME),
            *([("0m", f"at least {least}s")] if least != "0" else []),
        ]
    ),
    ("--cpu=3", "--cpu takes no value", ""),
    ("--hosts", "--hosts needs a value", ""),
    ("clean n5 n6", "launch clean takes no word, got 'n5 n6'",
     "hosts are named with --hosts: launch clean --hosts n5"),
    ("demo x", "launch demo takes no word, got 'x'", "launch demo --help lists the options"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message", "hint"), WRONG)
def test_a_slip_is_one_line_that_tells_how(launch: Launch, line: str, message: str, hint: str) -> None:
    hinted = f"  hint: {hint}\n" if hint else ""
    assert launch(line) == (EXIT_USAGE, "", f"launch: {message}\n{hinted}")


@pytest.mark.parametrize(
    "word", ["train.py", "script", "plain", "app", "./elsewhere/train", "x/y.pyz", f"/{'x' * 300}"]
)
def test_what_python_may_run_is_left_to_the_hosts(launch: Launch, jobs: list[Job], word: str) -> None:
    assert launch(f"--hosts a {word}") == (0, "", "")
    assert [job.program for job in jobs] == [Program(ProgramKind.SCRIPT, word)]


def test_a_command_is_any_command(launch: Launch, jobs: list[Job]) -> None:
    for words in ("bash train.sh", "torchrun train.py", "./train"):
        assert launch(f"--hosts a --nproc 1 --no-python {words}")[0] == 0
    assert [job.program.target for job in jobs] == ["bash", "torchrun", "./train"]


def test_an_argument_that_names_hosts_is_not_stolen_in_silence(launch: Launch, jobs: list[Job], folder: Path) -> None:
    (folder / "launcher.toml").write_text('hosts = "a"\n')
    assert launch("train.py --hosts b") == (
        0,
        "",
        "launch: using launcher.toml (hosts)\n"
        "launch: --hosts b after train.py goes to train.py; options of launch stand before it\n",
    )
    assert launch("--hosts c train.py --hosts b") == (0, "", "launch: using launcher.toml (hosts)\n")
    assert [job.program.args for job in jobs] == [("--hosts", "b")] * 2


def test_the_script_of_the_file_may_have_arguments(launch: Launch, jobs: list[Job], folder: Path) -> None:
    (folder / "launcher.toml").write_text('hosts = "a"\nscript = ["train.py", "--lr", "a b"]\n')
    assert launch("")[0] == launch("-- --lr 1")[0] == launch("./t.py -- --lr 1")[0] == 0
    (folder / "launcher.toml").write_text('hosts = "a"\nscript = "a path.py"\n')
    assert launch("")[0] == 0
    assert [(job.program.target, job.program.args) for job in jobs] == [
        ("train.py", ("--lr", "a b")),
        ("train.py", ("--lr", "a b", "--lr", "1")),
        ("./t.py", ("--", "--lr", "1")),
        ("a path.py", ()),
    ]


def test_arguments_in_a_path_of_the_file_are_told_from_it(launch: Launch, folder: Path) -> None:
    (folder / "launcher.toml").write_text('hosts = "a"\nscript = "train.py --lr 1"\n')
    assert launch("--no-check") == (
        EXIT_USAGE,
        "",
        "launch: using launcher.toml (hosts, script)\n"
        "launch: script = 'train.py --lr 1' is one path\n"
        '  hint: with arguments it is a list: script = ["train.py", "--lr", "1"]\n',
    )


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("5s", 5), ("1.5m", 90), ("2h", 7200)])
def test_every_time_is_written_alike(launch: Launch, jobs: list[Job], folder: Path, text: str, seconds: float) -> None:
    assert launch(" ".join(["--hosts a", *(f"--{name} {text}" for name in TIMES), "t.py"]))[0] == 0
    (folder / "launcher.toml").write_text("".join(f'{name} = "{text}"\n' for name in TIMES))
    assert launch("--hosts a t.py")[0] == 0
    (folder / "launcher.toml").write_text("".join(f"{name} = {float(seconds)}\n" for name in TIMES))
    assert launch("--hosts a t.py")[0] == 0
    for job in jobs:
        times = {job.silence_s, job.stop_timeout_s, job.connect_timeout_s, job.rendezvous_timeout_s, job.hang_timeout_s}
        assert (times, job.wants_stacks) == ({seconds}, True)
    _, out, _ = launch(f"sbatch --nproc 1 --cpu --hang-timeout {text} t.py")
    assert out.endswith(f" --hang-timeout {seconds} t.py\n")
