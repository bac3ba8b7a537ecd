"""Words typed wrong: one line says what was meant to stand there, and no host is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import EXIT_USAGE

Launch = Callable[[str], tuple[int, str, str]]
ReadProgram = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a few files, in an environment that has no more than a home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {"COLUMNS": "80", "HOME": str(tmp_path)})
    (tmp_path / "app").mkdir()
    for name, text in {
        "train.py": "#!/bin/sh\n", "train.sh": "", "train": "", "app/it.sh": ""
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    (tmp_path / "logs").mkdir()
    (tmp_path / "app" / "__main__.py").touch()
    return tmp_path


@pytest.fixture
def read_program(launch: Launch) -> ReadProgram:
    """Return a function that gives the program of a line, which must be right, and its arguments."""

    def call(line: str) -> list[str]:
        code, out, err = launch(f"--dry-run --json {line}")
        assert code == 0, err
        program = json.loads(out)["program"]
        return [program["kind"], program["target"], *program["args"]]

    return call


COMMANDS = "see launch --help for the commands"
OPTIONS = "see launch run --help for the options"
OF_TRAINER = "put options of the built-in trainer after -m launcher.trainer"

TIMES = {"silence": "0.5", "connect-timeout": "0.1", "rdzv-timeout": "1", "hang-timeout": "0.1"}

WRONG = [
    # options after the script, which go to the script
    *(
        (line, f"{flag} after {script} would go to {script}, not to launch",
         f"put it before {script}, or put -- before {script} to pass it to {script}")
        for line, flag, script in [
            ("train.py --hosts n5", "--hosts", "train.py"),
            ("train.py --lr 1 --hostfile=f x", "--hostfile", "train.py"),
            ("exec uptime --hosts n5", "--hosts", "uptime"),
            ("--hosts a --cpu --nproc 1 t.py --nproc 4 --dry-run --check=1", "--dry-run", "t.py"),
            ("run --hosts a -m pkg --lr 1 --check", "--check", "pkg"),
            ("singlenode --gpus 1 t.py --dry-run", "--dry-run", "t.py"),
        ]
    ),
    ("--gpus 2 check --hosts n5", "'check' is a command", "write it first: launch check ..."),
    ("--hosts a --nproc 1 --cpu -- demo", "'demo' is a command", "write it first: launch demo ..."),
    ("singlenode --nproc 1 --cpu status", "no file or command 'status'; did you mean 'ps'?", COMMANDS),
    # what launch starts itself
    ("python train.py", "python: launch starts Python itself", "omit it: launch ... SCRIPT"),
    ("--hosts a python3.11 -u -m pkg --lr 1", "python3.11: launch starts Python itself", "omit it: launch ... SCRIPT"),
    ("--hosts a --workdir /d /opt/bin/python train.py", "/opt/bin/python: launch starts Python itself",
     "omit it: launch ... SCRIPT; to run it with this one, pass --python /opt/bin/python"),
    *(
        (line, f"{name}: launch starts the ranks itself, with torchrun on every host",
         "omit it and its options: launch --gpus N ... SCRIPT")
        for line, name in [
            ("torchrun --nproc_per_node 8 train.py", "torchrun"),
            ("--hosts a -m torch.distributed.run --nproc-per-node=2 -m pkg", "torch.distributed.run"),
        ]
    ),
    # what Python can't run
    *(
        (line, f"{script} is no Python script", f"run it as a command on every rank: launch ... --no-python {command}")
        for line, script, command in [
            ("train.sh", "train.sh", "bash train.sh"),
            ("--hosts a --workdir /d x.sh", "x.sh", "bash x.sh"),
            ("--hosts a --workdir /d it's.sh", "it's.sh", """bash 'it'"'"'s.sh'"""),
        ]
    ),
    ("--hosts a ./logs", "./logs is a directory, not a script", COMMANDS),
    ("singlenode --nproc 1 --cpu logs", "logs is a directory, not a script", COMMANDS),
    # options behind --
    ("--hosts a -- -m pkg --lr 1", "'-m' is taken for the script: options of launch must come before '--'",
     "launch ... -m pkg --lr 1"),
    ("--hosts a --no-python -- -x", "'-x' is taken for the script: options of launch must come before '--'",
     "launch ... -x"),
    ("--hosts a -- --steps 20", "'--steps' is taken for the script: options of launch must come before '--'",
     "launch ... --steps 20; for the built-in trainer: launch ... -m launcher.trainer --steps 20"),
    # guesses
    ("attahc", "no file or command 'attahc'; did you mean 'attach'?", COMMANDS),
    ("--hots a train.py", "no option '--hots'; did you mean '--hosts'?", OPTIONS),
    ("-H a train.py", "no option '-H'; did you mean '--hosts'?", OPTIONS),
    ("-Z", "no option '-Z'", f"{OPTIONS}; {OF_TRAINER}"),
    ("hosts --steps 2", "no option '--steps'", "see launch hosts --help for the options"),
    ("--nproc_per_node 8 train.py", "no option '--nproc_per_node'; did you mean '--gpus'?", OPTIONS),
    ("-wdir /x train.py", "no option '-wdir'; did you mean '--workdir'?", OPTIONS),
    ("-N 2 train.py", "no option '-N'; did you mean '--num-nodes'?", OPTIONS),
    ("-np 8 train.py", "no option '-np'", f"{OPTIONS}; {OF_TRAINER}"),
    ("singlenode --standalone train.py", "no option '--standalone'",
     f"see launch singlenode --help for the options; {OF_TRAINER}"),
    # what click refuses
    ("--hosts a --nproc 0 t.py", "--nproc: 0 is not in the range 1<=x<=1024", OPTIONS),
    ("node --nnodes 2 t.py", "--node-rank is missing", "see launch node --help for the options"),
    ("--hosts a --silence nan t.py", "--silence: must be a time such as 90, 90s, 10m, 2h or 2d, got 'nan'", OPTIONS),
    ("--hosts a --hang-timeout -1 t.py",
     "--hang-timeout: must be auto, off or a time such as 10m or 2h, got '-1'", OPTIONS),
    *((f"--hosts a --{name} 0m t.py", f"--{name}: must be at least {least}s, got '0m'", OPTIONS)
      for name, least in TIMES.items()),
    *((f"--{name}= t.py", f"--{name}: needs a path, got ''", OPTIONS)
      for name in ("log-dir", "hostfile", "env-file", "ssh-config", "config")),
    ("node --nnodes 2 --node-rank 0 --master-addr= t.py", "--master-addr needs an address, got ''", ""),
    ("--hosts= t.py", "--hosts: names no host", "give at least one, as in node1,node2"),
    ("--hosts a --include= t.py", "--include: names no host", "choose from a"),
    ("--cpu=3", "--cpu takes no value", ""),
    ("--hosts", "--hosts needs a value", ""),
    ("clean n5 n6", "launch clean takes no argument, got 'n5 n6'",
     "name hosts with --hosts a,b: launch clean --hosts LIST"),
    ("demo x", "launch demo takes no argument, got 'x'", "see launch demo --help for the options"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message", "fix"), WRONG)
def test_a_slip_is_one_line_that_tells_how(launch: Launch, line: str, message: str, fix: str) -> None:
    hinted = f"  fix: {fix}\n" if fix else ""
    assert launch(line) == (EXIT_USAGE, "", f"launch: {message}\n{hinted}")


@pytest.mark.parametrize("word", ["train.py", "train", "app", "./elsewhere/train", f"/{'x' * 300}"])
def test_what_python_may_run_is_left_to_the_hosts(read_program: ReadProgram, word: str) -> None:
    assert read_program(f"--hosts a {word}") == ["script", word]


@pytest.mark.parametrize("words", ["bash train.sh", "torchrun train.py", "./train"])
def test_a_command_is_any_command(read_program: ReadProgram, words: str) -> None:
    assert read_program(f"--hosts a --nproc 1 --no-python {words}") == ["command", *words.split()]


def test_an_argument_that_names_hosts_is_not_stolen_in_silence(launch: Launch, folder: Path) -> None:
    (folder / "launcher.toml").write_text('hosts = "a"\n')
    using = "launch: using launcher.toml (hosts)\n"
    said = (
        "launch: --hosts after train.py would go to train.py, not to launch\n"
        "  fix: put it before train.py, or put -- before train.py to pass it to train.py\n"
    )
    assert launch("--dry-run train.py --hosts b --lr 1") == (EXIT_USAGE, "", using + said)
    for line in ("--hosts c train.py --hosts b", "-- train.py --hosts b", "train.py -- --hosts b"):
        code, out, err = launch(f"--dry-run {line}")
        assert (code, out.endswith(" --hosts b\n"), err) == (0, True, using), line


def test_the_script_of_the_file_may_have_arguments(read_program: ReadProgram, folder: Path) -> None:
    (folder / "launcher.toml").write_text('hosts = "a"\nscript = ["train.py", "--lr", "a b"]\n')
    assert read_program("") == ["script", "train.py", "--lr", "a b"]
    assert read_program("-- --lr 1") == ["script", "train.py", "--lr", "a b", "--lr", "1"]
    assert read_program("./t.py -- --lr 1") == ["script", "./t.py", "--", "--lr", "1"]
    (folder / "launcher.toml").write_text('hosts = "a"\nscript = "a path.py"\n')
    assert read_program("") == ["script", "a path.py"]
