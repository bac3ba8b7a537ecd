"""What `launch` says and tells of its built-in trainer, before a run begins."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.cli.options.request import Request
from launcher.cli.repetition import describe_origin
from launcher.cli.runner import read_run_options
from launcher.errors import UsageError
from launcher.job.job import TRAINER_MODULE, Job, Program, ProgramKind
from launcher.runs.execution import find_checkpoints


@pytest.mark.parametrize(
    ("program", "typed", "words"),
    [
        ("{bin}/launch", ["python3", "{bin}/launch"], "launch"),
        ("{bin}/test-distributed", ["python3", "{bin}/test-distributed"], "test-distributed"),
        ("env/bin/launch", ["python3", "env/bin/launch"], "env/bin/launch"),
        ("/site/launcher/__main__.py", ["python3", "-u", "-m", "launcher"], "python3 -m launcher"),
        ("/site/launcher/__main__.py", ["/my python", "-m", "launcher"], "'/my python' -m launcher"),
    ],
)
def test_the_program_is_named_as_it_can_be_typed_again(
    program: str, typed: list[str], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("launch", "test-distributed"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [program.format(bin=tmp_path), "--cpu"])
    monkeypatch.setattr("sys.orig_argv", [*(word.format(bin=tmp_path) for word in typed), "--cpu"])
    assert describe_origin(Request())["command"] == f"{words} --cpu"


@pytest.mark.parametrize(
    ("args", "folder"),
    [
        ((), "outputs/RUN/checkpoints"),
        (("--save-dir", "a"), "a/checkpoints"),
        (("--lr", "1", "--save_dir=my_dir"), "my_dir/checkpoints"),
        (("--config", "c.yaml"), None),  # the file may name another one
    ],
)
def test_where_the_built_in_trainer_saves(args: tuple[str, ...], folder: str | None) -> None:
    assert find_checkpoints(Job(Program(ProgramKind.BUILTIN, TRAINER_MODULE, args)), "RUN") == folder
    assert find_checkpoints(Job(Program(ProgramKind.SCRIPT, "train.py", args)), "RUN") is None


def test_a_time_limit_is_absolute() -> None:
    options = read_run_options(Request(until=f"{time.localtime().tm_hour}:00"))
    assert options.until_at is not None and 0 < options.until_at - time.time() <= 25 * 3600
    assert read_run_options(Request(for_s=60.0)).for_s == 60.0


@pytest.mark.parametrize(
    ("request_", "message", "fix"),
    [
        (Request(until="18:00", for_s=60.0), "--until and --for are both given", "only one"),
        (
            Request(until="2026-01-01 09:00"),
            "--until 2026-01-01 09:00: that time has passed; it is ",
            "a later one",
        ),
        (Request(until="2999-01-01 09:00"), "--until 2999-01-01 09:00: must be within 365 days", "run until the end"),
        (Request(until="6h"), "--until: must be a time such as 18:00 or .*, got '6h'", "--for 6h"),
        (Request(until="0001-01-01 00:00"), "--until.* 0001-01-01 00:00|--until: must be", ""),
    ],
)
def test_other_time_limits_are_refused(request_: Request, message: str, fix: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        read_run_options(request_)
    assert fix in raised.value.fix
