"""The request instead of click's mapping: what it holds, and what of launcher.toml a typed option leaves in it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import get_annotations
from pathlib import Path
from typing import Any

import click
import pytest

from launcher.api.child import as_words
from launcher.cli.command_table import COMMANDS, load_command
from launcher.cli.options.command import gather, make_request, settle
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import HANGS, HOSTS, JOB, KEYS, OPTIONS, OUTPUT, REACH, Option, Request
from launcher.cli.repetition import parse_options, typed_of
from launcher.cli.run import command as run_command
from launcher.cli.test_distributed import command as test_distributed
from launcher.job.job import Timeouts
from launcher.transports.base import TransportSettings

Read = Callable[..., Request]
CLI = Path(__file__).parents[3] / "launcher" / "cli"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Return a function that gives what the command gets for a line, and for a launcher.toml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {"HOME": str(tmp_path)})
    got: list[Request] = []

    @click.command(params=[CONFIG, *HOSTS, *JOB, *HANGS, *REACH, *OUTPUT])
    @gather
    def command(*, request: Request) -> int:
        got.append(request)
        return 0

    def call(line: str, toml: str = "", words: Sequence[str] = ()) -> Request:
        Path("launcher.toml").write_text(toml)
        command.main([*line.split(), *words], standalone_mode=False)
        return got.pop()

    return call


@pytest.mark.parametrize("option", [each for each in KEYS.values() if each.is_flag], ids=lambda option: option.name)
def test_a_switch_of_the_file_can_be_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: Option
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {"HOME": str(tmp_path)})
    Path("launcher.toml").write_text(f"{option.name.replace('_', '-')} = true\n")
    command = click.Command("x", params=[CONFIG, option], callback=lambda **options: options[option.name])
    assert option.secondary_opts, "no form turns it off"
    for words, value in (([], True), ([option.secondary_opts[0]], False)):
        assert command.main(words, standalone_mode=False) is value


def test_each_field_is_the_option_of_its_name(read: Read) -> None:
    line = (
        "--hostfile f --exclude b --num-nodes 2 --transport ssh --ssh-config c --ask-password "
        "--connect-timeout 2 --gpus 4 -m --start warm --workdir /w --env A=1 --env B --env-file e --rdzv-timeout 7 "
        "--venv d --setup s --silence 3s --hang-timeout 10m --no-stacks -q --ranks 0,8 --json --log-dir l "
        "--name base.line-1_2 -v"
    )
    got = read(line)
    assert got == Request(
        hostfile=Path("f"), exclude="b", num_nodes=2, transport="ssh", ssh_config=Path("c"), ask_password=True,
        connect_timeout_s=2.0, silence_s=3.0, gpus=4, is_module=True, start="warm", workdir="/w", env=("A=1", "B"),
        env_file=(Path("e"),), rdzv_timeout_s=7, venv="d", setup="s", stacks=False, hang_timeout_s=600.0, quiet=True,
        ranks="0,8", as_json=True, log_dir=Path("l"), verbose=True, name="base.line-1_2",
    )  # fmt: skip
    assert got.reach == TransportSettings("ssh", Path("c"), ask_password=True, silence_s=3.0)
    assert got.timeouts == Timeouts(2.0, 3.0)


def test_a_typed_option_drops_the_defaults_that_contradict_it(read: Read) -> None:
    toml = 'hosts = "a"\ngpus = 8\npython = "/p"\nsetup = "s"\n'
    got = read("--hostfile f --nproc 2 --venv d --no-python", toml)
    assert got == Request(hostfile=Path("f"), nproc=2, venv="d", setup="s", no_python=True)
    assert read("--transport srun", 'hosts = "a"\nexclude = "b"\n') == Request(transport="srun")


@pytest.mark.parametrize(
    ("line", "env"),
    [
        ("", ("A=1", "B")),
        ("--env C=3", ("A=1", "B", "C=3")),
        ("--env A=2 --env B=4", ("A=2", "B=4")),
    ],
)
def test_a_typed_list_adds_to_that_of_the_file(read: Read, line: str, env: tuple[str, ...]) -> None:
    got = read(f"--env-file typed {line}", 'env = ["A=1", "B"]\nenv-file = "file"\n')
    assert got.env == env
    assert got.env_file == (Path("file"), Path("typed"))


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("5s", 5), ("1.5m", 90), ("2h", 7200)])
def test_every_time_is_written_alike(read: Read, text: str, seconds: float) -> None:
    names = ("silence", "stop-timeout", "connect-timeout", "rdzv-timeout", "hang-timeout")
    for got in (
        read(" ".join(f"--{name} {text}" for name in names)),
        read("", "".join(f'{name} = "{text}"\n' for name in names)),
        read("", "".join(f"{name} = {float(seconds)}\n" for name in names)),
    ):
        assert got.timeouts == Timeouts(seconds, seconds, seconds)
        assert (got.rdzv_timeout_s, got.hang_timeout_s) == (seconds, seconds)


FIELDS = {field.name.removesuffix("_s"): field for field in fields(Request)}


@pytest.mark.parametrize(
    "option", [each for each in OPTIONS.values() if each.name in FIELDS], ids=lambda each: each.name
)
def test_an_option_that_a_command_lacks_has_its_default(option: Option) -> None:
    command = click.Command("x", params=[option], callback=lambda **options: options[option.name])
    assert command.main([], standalone_mode=False) == FIELDS[option.name].default


# Each option of a run, as Python and launcher.toml give it, and its value in the request.
SAMPLES: dict[str, tuple[Any, Any]] = {
    "hosts": (["a", "b"], "a,b"), "hostfile": ("f", Path("f")), "include": ("a", "a"), "exclude": ("b", "b"),
    "num_nodes": (2, 2), "transport": ("ssh", "ssh"), "ssh_config": ("c", Path("c")), "ask_password": (True, True),
    "enter": ("sudo  -u a", "sudo -u a"),
    "connect_timeout": ("2m", 120.0), "sync": ("lib", "lib"), "no_sync": (True, True),
    "sync_limit": ("2GB", 2_000_000_000), "link": (["d=/d", "e=/e"], ("d=/d", "e=/e")), "master_addr": ("h", "h"),
    "gpus": (4, 4), "nproc": (3, 3), "cpu": (True, True), "is_module": (True, True), "no_python": (True, True),
    "start": ("warm", "warm"), "no_numa": (True, True), "workdir": ("/w", "/w"), "python": ("/p", "/p"),
    "venv": ("v", "v"), "conda": ("base", "base"), "setup": ("x y", "x y"), "env": (["A=1", "B"], ("A=1", "B")),
    "env_file": (["e", "f"], (Path("e"), Path("f"))), "master_port": (7, 7), "rdzv_timeout": (7, 7.0),
    "silence": ("3s", 3.0), "stop_timeout": (1.5, 1.5), "hang_timeout": ("off", math.inf), "on_hang": ("end", "end"),
    "stacks": (False, False), "restarts": (3, 3), "progress_dir": ("p", "p"), "spares": (1, 1), "min_nodes": (2, 2),
    "dry_run": (True, True), "check": (True, True), "no_check": (True, True), "until": ("18:00", "18:00"),
    "for": ("6h", 21600.0), "queue": ("2h", 7200.0), "no_queue": (True, True), "share": (True, True),
    "quiet": (True, True), "ranks": ("0,8", "0,8"), "as_json": (True, True),
    "log_dir": ("l", Path("l")), "name": ("n", "n"), "verbose": (True, True),
    "detach": (True, True), "controller": ("a", "a"), "notify": ("x", "x"),
}  # fmt: skip


def parse_run(words: Sequence[str]) -> Request:
    with run_command.make_context("run", [*words]) as context:
        return make_request(settle(context.params))


@pytest.mark.parametrize(
    "option", [each for each in run_command.params if isinstance(each, Option) and each.name != "config"]
)
def test_an_option_comes_whole_from_each_source(
    option: Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From words, Python and launcher.toml, and from the JSON of which `launch again` makes words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {"HOME": str(tmp_path)})
    Path("lib").mkdir()
    names = [name for name in (option.needs, option.name) if name]
    request = Request(**{FIELDS[name].name: SAMPLES[name][1] for name in names})
    flags = {name: max(OPTIONS[name].opts, key=len)[2:] for name in names}
    words = as_words({flags[name].replace("-", "_"): SAMPLES[name][0] for name in names})
    assert parse_run(words) == request
    if option.name not in ("env", "env_file", "link", "stacks") and not option.is_flag:
        assert parse_run([part for word in words for part in word.split("=", 1)]) == request
    if not option.is_secret:
        options, _ = parse_options(run_command, words)
        kept = typed_of(json.loads(json.dumps({"command": "run", "options": options, "words": []})))
        assert parse_run(kept.rest) == request
    if option.in_file:
        values = {flags[name]: SAMPLES[name][0] for name in names}
        Path("launcher.toml").write_text("".join(f"{key} = {json.dumps(each)}\n" for key, each in values.items()))
        assert parse_run([]) == request


def test_every_field_of_the_request_is_used() -> None:
    """In cli/, as nothing below gets it; --no-queue only drops a queue of launcher.toml."""
    read = {
        node.attr
        for path in CLI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == ("self" if path.name == "request.py" else "request")
    }
    assert {field.name for field in fields(Request)} - read == {"no_queue"}


@pytest.mark.parametrize("command", [*map(load_command, COMMANDS), test_distributed], ids=lambda command: command.name)
def test_a_command_takes_each_of_its_options(command: click.Command) -> None:
    taken = {name.removesuffix("_s") for name in get_annotations(command.callback)}
    known = taken | (FIELDS.keys() if "request" in taken else set())
    assert {parameter.name for parameter in command.params} - known <= {"config"}


@pytest.mark.parametrize("command", [*map(load_command, COMMANDS), test_distributed], ids=lambda command: command.name)
def test_an_option_of_several_commands_is_one_to_launcher_toml(command: click.Command) -> None:
    """A command may word the help of an option anew; the rest is looked up by its name."""
    for option in command.params:
        if isinstance(option, Option) and option.in_file:
            assert option.place == KEYS[option.name].place


def test_every_word_on_an_option_names_one() -> None:
    for option in OPTIONS.values():
        assert {*option.rivals, *filter(None, [option.needs])} <= OPTIONS.keys()
