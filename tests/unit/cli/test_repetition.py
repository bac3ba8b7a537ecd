"""How a run was typed: it comes back word for word, without secrets, and with other options where some are given."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.repositories import make_repository

from launcher.cli.command_table import load_command
from launcher.cli.main import launch
from launcher.cli.options.request import Request
from launcher.cli.repetition import (
    Typed,
    keep_origin,
    lacks_secret,
    override,
    parse_options,
    read_typed,
    resume,
    typed_of,
)
from launcher.cli.tree_request import read_tree
from launcher.errors import LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.node.code.listing import hash_listing
from launcher.runs.records import Result
from launcher.runs.run_list import ORIGIN, RunList
from launcher.runs.run_rows import make_row
from launcher.session.node_state import Census

RUN = load_command("run")
FREE = st.text(st.characters(codec="utf-8", exclude_characters="\0")).filter(lambda text: "***" not in text)
OPTIONS = st.lists(
    st.sampled_from([
        ["--hosts", "a,gpu[1-4]"], ["--hosts=a"], ["--gpus", "8"], ["-q"], ["-m"], ["--restarts", "3"], ["--detach"],
        ["--env", "A=1"], ["--env=B"], ["--setup", "--notify x"], ["--name", "--env"], ["--no-stacks"], ["--sync="],
        ["--queue"], ["--sync", "sub"], ["--hang-timeout", "off"], ["--log-dir", "my logs"],
    ])
)  # fmt: skip


def parse(words: list[str]) -> click.Context:
    return RUN.make_context("run", [*words], resilient_parsing=True)


def read(words: list[str]) -> Typed:
    with parse(words):
        return read_typed()


def store(typed: Typed) -> Typed:
    values = {name: getattr(typed, name) for name in ("command", "options", "words")}
    return typed_of(json.loads(json.dumps(values)))


@given(OPTIONS, st.lists(FREE), st.booleans())
def test_what_was_typed_comes_back(options: list[list[str]], args: list[str], has_script: bool) -> None:
    """Once it was kept as JSON, too."""
    script = ["train.py"] if has_script else ["--"]
    typed = [word for option in options for word in option] + script + args
    context, found = parse(typed), store(read(typed))
    if lacks_secret(found):  # an argument looks like one
        return
    assert parse(found.rest).params == context.params


@pytest.mark.parametrize(
    ("typed", "kept", "lacks"),
    [
        ("--notify 'curl hunter2' train.py", "--notify '***' train.py", True),
        ("--notify=hunter2 --notify hunter2 -q train.py", "--notify '***' -q train.py", True),
        ("--env API_TOKEN=hunter2 --env=B_TOKEN=hunter2 --env A=1 t.py", "--env API_TOKEN --env B_TOKEN --env A=1 t.py",
         False),
        ("--hosts a t.py --api-key hunter2", "--hosts a t.py --api-key '***'", True),
        ("--setup 'export API_TOKEN=hunter2' t.py", "--setup 'export API_TOKEN=***' t.py", True),
        ("--env URL=https://a:hunter2@b t.py", "--env URL t.py", False),
    ],
)  # fmt: skip
def test_no_secret_is_kept(typed: str, kept: str, lacks: bool) -> None:
    found = read(shlex.split(typed))
    assert "hunter2" not in repr(found)
    assert shlex.join(found.line) == kept
    assert lacks_secret(found) == lacks


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("--hosts a ps", "--hosts a -- ps"),
        ("ps x", "-- ps x"),
        ("--hosts=a -qv --no-detach t.py -- --hosts b", "--hosts a -q -v --no-detach t.py -- --hosts b"),
        ("--name=-x -- t.py --dry-run", "--name=-x -- t.py --dry-run"),
        ("--hosts a -- --lr 1", "--hosts a -- --lr 1"),
        ("--sync t.py", "--sync= t.py"),
    ],
)
def test_how_it_is_typed_again(typed: str, line: str) -> None:
    assert shlex.join(read(shlex.split(typed)).line) == line


@pytest.mark.parametrize(
    ("typed", "given", "line"),
    [
        ("--restarts 3 t.py", "--restarts 10", "--restarts 10 t.py"),
        ("--hosts a t.py --x", "-q --name a", "--hosts a -q --name a t.py --x"),
        ("--hostfile h t.py", "--hosts=a", "--hosts a t.py"),
        ("--gpus 8 t.py", "--nproc 2 --cpu", "--nproc 2 --cpu t.py"),
        ("--env A=1 --env B=2 t.py", "--env A=3 --env C=4", "--env B=2 --env A=3 --env C=4 t.py"),
        ("--notify x t.py", "--notify y", "--notify y t.py"),
        ("--hosts a -- --lr 1", "-q", "--hosts a -q -- --lr 1"),
        ("t.py", "--sync --restarts 3", "--sync= --restarts 3 t.py"),
        ("--sync= t.py", "--sync lib", "--sync=/here/lib t.py"),
        ("--hosts a t.py", "--hostfile h --log-dir=../l --env-file ~/e --ssh-config /c --python p",
         "--hostfile /here/h --log-dir /l --env-file '~/e' --ssh-config /c --python p t.py"),
    ],
)  # fmt: skip
def test_options_instead_of_those_of_the_run(
    typed: str, given: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here/lib").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    line = line.replace(" /l ", f" {tmp_path}/l ")
    line = line.replace("/here/", f"{tmp_path}/here/")
    options, others = parse_options(RUN, shlex.split(given))
    found = override(read(shlex.split(typed)), options)
    assert (shlex.join(found.line), others) == (line, [])


def test_words_are_read_without_a_change_to_the_command() -> None:
    """Click keeps the help option of the first context that it meets."""
    command = load_command("clean")
    parse_options(command, ["--hosts", "a"])
    option = command.get_help_option(click.Context(command))
    assert option is not None and option.opts == ["-h", "--help"]


def test_an_option_that_the_command_lacks_is_refused_before_its_value_is_looked_at() -> None:
    with pytest.raises(click.NoSuchOption, match="--note"):
        parse_options(RUN, ["--note", "x"])
    for typed in (Typed("demo", {"dry_run": True}, ()), Typed("run", {"note": "x"}, ("t.py",))):
        with pytest.raises(click.NoSuchOption, match=r"--(dry-run|note)"):
            print(typed.line)


def test_other_words_are_refused(sent: Path) -> None:
    with pytest.raises(UsageError, match=r"got 'other\.py'"):
        call("again", "-q", "other.py")


@pytest.mark.parametrize(
    ("typed", "origin", "line"),
    [
        ("--hosts a", {"is_default": True, "save_dir": "outputs/R"},
         "--hosts a -m launcher.trainer --save-dir outputs/R --resume auto"),
        ("-m launcher.trainer --lr 1", {"save_dir": "outputs/R"},
         "-m launcher.trainer --lr 1 --save-dir outputs/R --resume auto"),
        ("-m launcher.trainer --save_dir=o", {"save_dir": "o"}, "-m launcher.trainer --save_dir=o --resume auto"),
        ("-m launcher.trainer --config c", {"save_dir": None}, "-m launcher.trainer --config c --resume auto"),
        ("--hosts a", {"save_dir": "outputs/R"}, "--hosts a -- --save-dir outputs/R --resume auto"),
        ("train.py", {"save_dir": "outputs/R"}, "train.py --save-dir outputs/R --resume auto"),
        ("train.py", {"is_trainer": False, "save_dir": None}, "train.py"),
    ],
)  # fmt: skip
def test_the_trainer_continues(typed: str, origin: dict[str, Any], line: str) -> None:
    assert shlex.join(resume(read(shlex.split(typed)), {"is_trainer": True, **origin}).line) == line


def test_a_demo_starts_over() -> None:
    typed = Typed("demo", {"ssh_hosts": "3"}, ())
    assert resume(typed, {"is_trainer": True, "is_default": True, "save_dir": "outputs/R"}) == typed


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose script was sent by a run that failed, and was changed since."""
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    monkeypatch.setattr("os.environ", env)
    monkeypatch.setattr("sys.argv", ["launch"])
    root = make_repository(tmp_path / "proj", "train.py", "gone.py")
    monkeypatch.chdir(root)
    words = ["--hosts", "a", "--nproc", "1", "--cpu", "--sync=", "train.py"]
    runs, run_id = RunList.of_user(env), "20261120-091233"
    entry = runs.begin(run_id, None, root / "logs")
    with RUN.make_context("run", [*words]):
        tree, _ = read_tree(Request(sync=""), None, root)
        job = Job(Program(ProgramKind.SCRIPT, "train.py"), tree=tree)
        with keep_origin(runs, run_id, job, [Host("a", source="test")], Request()):
            pass
    entry.end(Result(3, 1.0, Census({}, {})))
    entry.close(is_kept=True)
    (root / "train.py").write_text("changed")
    (root / "gone.py").unlink()
    return root


def call(*words: str) -> None:
    assert launch.main([*words], prog_name="launch", standalone_mode=False) == 0


def test_the_code_of_now_and_that_of_the_run(
    sent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = (tmp_path / ".local/state/launch/runs/20261120-091233/code.listing").read_bytes()
    name = hash_listing(listing)[:7]
    monkeypatch.chdir(tmp_path)
    call("again", "--dry-run")
    said = capsys.readouterr()
    assert f"run 20261120-091233 had {name}, and --same-code uses it" in said.err
    assert f"code {name}" not in said.out
    call("again", "--same-code", "--dry-run", "--hosts", "b,a")
    said = capsys.readouterr()
    assert f"launch: the code is that of run 20261120-091233 ({name})\n" in said.err
    assert "launch: the hosts differ from those of run 20261120-091233: with b\n" in said.err
    assert f"# code {name}: 2 files, " in said.out

    call("fetch", "--code", "2026", str(tmp_path / "copy"))
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"gone.py", "train.py"}
    for path in (tmp_path / ".cache/launch/content").glob("*/*"):
        path.unlink()
    with pytest.raises(UsageError, match=r"isn't kept any more: gone\.py, train\.py$"):
        call("again", "--same-code", "--dry-run")


def test_a_secret_that_is_not_kept(sent: Path) -> None:
    runs = RunList.of_user(os.environ)
    origin = json.loads(read_bytes_of_first(sent))
    secret = {**origin, "options": {**origin["options"], "setup": "export API_TOKEN=***"}}
    runs.keep("20261120-091233", ORIGIN, json.dumps(secret).encode())
    with pytest.raises(UsageError, match="had a secret in its command line") as raised:
        call("again", "--venv", "export B_TOKEN=hunter2", "--dry-run")
    assert f"cd {sent} && launch --hosts a" in raised.value.fix and "hunter2" not in raised.value.fix
    call("again", "--setup", "export API_TOKEN=hunter2", "--dry-run")


def test_the_code_of_a_run_that_would_not_be_sent(sent: Path) -> None:
    """Its --sync was in launcher.toml."""
    origin = json.loads(read_bytes_of_first(sent))
    options = {name: value for name, value in origin["options"].items() if name != "sync"}
    data = json.dumps({**origin, "options": options}).encode()
    RunList.of_user(os.environ).keep("20261120-091233", ORIGIN, data)
    with pytest.raises(UsageError, match="doesn't say sync any more"):
        call("again", "--same-code", "--dry-run")
    call("again", "--same-code", "--dry-run", "--sync")


def test_a_run_that_may_live_is_not_started_again(sent: Path) -> None:
    entry = RunList.of_user(os.environ).begin("20261120-101500", "base", sent / "logs")
    try:
        RunList.of_user(os.environ).keep("20261120-101500", ORIGIN, read_bytes_of_first(sent))
        with pytest.raises(UsageError, match="run 20261120-101500 still runs"):
            call("again", "base")
    finally:
        entry.close(is_kept=False)


def test_a_run_whose_controller_died_is_started_again(sent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its host has rebooted since; launch ps says so."""
    runs = RunList.of_user(os.environ)
    entry = runs.begin("20261120-101500", None, sent / "logs")
    entry.close(is_kept=True)
    runs.keep("20261120-101500", ORIGIN, read_bytes_of_first(sent))
    (run,) = (run for run in runs.read() if run.id == "20261120-101500")
    assert run.death == "its launch was killed"
    written = run.place / "controller.json"
    written.write_text(json.dumps({**json.loads(written.read_text()), "boot_id": "before"}))
    (run,) = (run for run in runs.read() if run.id == "20261120-101500")
    assert run.death == f"{run.controller.host} has rebooted"
    row = make_row(run, time.time())
    assert (row.state, row.last_line) == ("killed", f"{run.death}; launch again {run.id} runs it again")
    call("again", "--dry-run")
    assert "launch: again run 20261120-101500, which was killed: " in capsys.readouterr().err


def read_bytes_of_first(sent: Path) -> bytes:
    return (sent.parent / ".local/state/launch/runs/20261120-091233/origin.json").read_bytes()


OF_VERSION_0_2 = b'{"command": "run", "options": [["--hosts", "a"]], "words": [], "directory": "/", "hosts": []}'


@pytest.mark.parametrize("data", [b"{}", OF_VERSION_0_2, b"\xff"])
def test_an_origin_that_is_damaged(sent: Path, data: bytes) -> None:
    RunList.of_user(os.environ).keep("20261120-091233", ORIGIN, data)
    with pytest.raises(UsageError, match="isn't kept on this machine"):
        call("again")


def test_results_come_only_from_hosts_that_the_run_was_started_with(sent: Path) -> None:
    """Whoever controls the controller's host could name any other in the record."""
    node = {"host": "bank", "node_rank": 0, "first_rank": 0, "nproc": 1, "cwd": "/w"}
    (sent / "logs").mkdir()
    (sent / "logs/run.json").write_text(json.dumps({"plan": {"nodes": [node]}}))
    with pytest.raises(LauncherError, match="run 20261120-091233 was started without bank"):
        call("fetch", "20261120-091233", "outputs/")
