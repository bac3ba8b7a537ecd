"""What earlier versions had: refused with what takes its place."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from launcher.cli.main import main, main_test_distributed
from launcher.cli.mistakes import GONE
from launcher.errors import EXIT_USAGE

# What was typed, and what is offered instead.
TYPED = {
    "stop --ask r --hosts a": "launch free, which names the owner",
    "ps --hosts a --all-users": "launch free --hosts LIST",
    "hosts --hosts a --to slurm": "--json",
    "hosts --forget a": "launch ps --forget RUN",
    "check --hosts a --accept-new-host-keys": "StrictHostKeyChecking accept-new in ssh_config",
    "run --hosts a --sync-secrets t.py": "git add for what may be sent",
    "run --hosts a --queue --queue-timeout 2h t.py": "--queue 2h",
    "run --hosts a --fetch o t.py": "launch fetch RUN PATH, after the run or during it",
    "rejoin r": "launch stop RUN, and launch again RUN once all hosts are back",
    "sbatch --nodes 2 t.py": "a batch script in which launch finds its nodes, as in docs/slurm.md",
    "run --hosts a --claim-cpus t.py": "a run on GPUs, which claims them",
    "run --hosts a:8 --colon slots t.py": "host:8 for slots, host:2222 for a port",
    "run --hosts a --legacy t.py": "--start plain",
    "check --hosts a --verbose": "launch check, whose first line names what launcher.toml sets",
    "check --hosts a --packages": "launch check --json, which has the packages of each host",
    "check --hosts a --gpus-under-load 1s": "test-distributed N --hosts LIST --gpus-under-load SECONDS",
    "test-distributed 2 --plot p.svg": "results.json among the logs, with all pairs of hosts",
    "run --hosts a --no-samples t.py": "leave it out: a sample takes no time of the ranks",
    "top --controller a": "launch top --hosts LIST",
    "run --hosts a --note x t.py": "--name NAME",
    "run --hosts a --detach --survive-reboots t.py": "launch again RUN, after a reboot of its controller host",
}
PAGE = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {"HOME": str(tmp_path)})
    return tmp_path


def refuse(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the first line of the error with which a command line is refused."""
    is_other = line.startswith("test-distributed ")
    with pytest.raises(SystemExit) as end:
        (main_test_distributed if is_other else main)(shlex.split(line)[is_other:])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (EXIT_USAGE, "")
    return err.splitlines()[0]


@pytest.mark.parametrize("line", TYPED)
def test_what_is_gone_names_what_takes_its_place(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    word = next(word for gone in GONE for word in shlex.split(line) if word == gone.split()[-1])
    kind = "option" if word.startswith("-") else "command"
    assert refuse(line, capsys) == f"launch: no {kind} {word!r} any more; instead: {TYPED[line]}"


@pytest.mark.parametrize("gone", GONE)
def test_each_is_tried_and_documented(gone: str) -> None:
    assert any({*gone.split()} <= {*shlex.split(line)} for line in TYPED)
    assert gone.split()[-1] in PAGE


def test_a_key_of_launcher_toml_that_is_gone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "launcher.toml").write_text('note = "x"\n')
    assert refuse("--hosts a t.py", capsys) == "launch: launcher.toml: no option 'note' any more; instead: --name NAME"
