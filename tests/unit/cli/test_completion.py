"""What a Tab is answered: the place of the cursor, the words of all commands, and the names of hosts and runs."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path

import click
import pytest

from launcher import __version__
from launcher.cli import command_group
from launcher.cli import main as cli
from launcher.cli.command_table import COMMANDS
from launcher.cli.completion.answer import describe_answer
from launcher.cli.completion.command import INSTALL
from launcher.cli.completion.vocabulary import read_vocabulary
from launcher.errors import EXIT_USAGE

ROOT = Path(__file__).parents[3]
KIND = b"ssh-ed25519"
KEY = base64.b64encode(len(KIND).to_bytes(4, "big") + KIND + (32).to_bytes(4, "big") + bytes(32)).decode()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory, which is the current one."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def ask(*words: str, program: str = "launch") -> list[str]:
    """Return the lines of the answer in fish's form, without the descriptions."""
    return [line.partition("\t")[0] for line in describe_answer(["fish", program, *words]).splitlines()]


def ask_bash(line: str, part: str) -> list[str]:
    return describe_answer(["bash", "launch", part, line]).splitlines()


# the place of the cursor


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["singl"], ["file", "singlenode"]),
        (["help", "singl"], ["word", "singlenode"]),
        (["--vers"], ["word", "--version"]),
        (["--restar"], ["word", "--restarts"]),
        (["run", "--restar"], ["word", "--restarts"]),
        (["--restarts", "1", "--restar"], ["word"]),  # once is enough
        (["--env", "A", "--env"], ["word", "--env", "--env-file"]),
        (["--restarts", "1", "--transport", "fa"], ["word", "fabric"]),
        (["--transport=fa"], ["word", "--transport=fabric"]),
        (["--transport=fabric", "--nod"], ["word"]),
        (["--gpus", ""], ["word", "auto"]),
        (["--cpu", "train.py", "--restar"], ["file"]),
        (["--", "--restar"], ["file"]),
        (["--sync", "train.py", "--restar"], ["file"]),
        (["--sync", ".ssh", "--restar"], ["word", "--restarts"]),
        (["--hostfile", ""], ["file"]),
        (["--log-dir", ""], ["directory"]),
        (["sync", ""], ["directory"]),
        (["exec", "--", ""], ["file"]),
        (["fetch", "a", ""], ["file"]),
        (["again", "a", "--restar"], ["word", "--restarts"]),
        (["stop", "x", ""], ["word", "--now", "--ask", "--hosts", "--controller", "--ssh-config", "--help", "-h"]),
        (["logs", "--foll", ""], ["word"]),
        (["hosts", "--to", "sl"], ["word", "slurm"]),
    ],
)
def test_a_place(words: list[str], answer: list[str]) -> None:
    found = ask(*words)
    assert found[:1] + sorted(found[1:]) == answer[:1] + sorted(answer[1:])


def test_the_other_program() -> None:
    assert ask("2", "--plo", program="/opt/bin/test-distributed") == ["word", "--plot"]
    assert ask("", program="test-distributed") == ["word"]


@pytest.mark.parametrize(
    ("line", "part", "answer"),
    [
        ("launch --transport=f", "f", ["word", "fabric"]),
        ("launch --transport=", "", ["word", "srun", "fabric", "ssh", "pdsh"]),
        ('launch "sing', "sing", ["file", "singlenode"]),
        ("launch 'sing", "sing", ["file", "singlenode"]),
        ("launch $(x) --stack", "--stack", ["file"]),
        ("launch \\$x", "\\$x", []),  # as bash has it, with its quotes
    ],
)
def test_a_line_of_bash(line: str, part: str, answer: list[str]) -> None:
    assert ask_bash(line, part) == answer


# the words of all commands


def test_every_option_can_be_completed() -> None:
    group = click.Context(command_group.launch, **command_group.launch.context_settings)
    for name in COMMANDS:
        command = command_group.launch.get_command(group, name)
        assert command is not None
        params = command.get_params(click.Context(command, parent=group, **command.context_settings))
        options = [param for param in params if isinstance(param, click.Option)]
        of_no_hosts = {
            option.name for option in options if option.metavar == "LIST" and not getattr(option, "lists", "")
        }
        assert of_no_hosts <= {"ranks", "constraint"}, "declare which are lists of hosts"
        names = {each for option in options for each in (*option.opts, *option.secondary_opts)}
        assert names <= {each for option in read_vocabulary().find(name).options for each in option.names}


def test_the_words_are_kept_until_launch_changes(home: Path) -> None:
    ask("")
    kept = home / "launch/completion.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_text(kept.read_text().replace('"singlenode": ', '"fewernodes": '))
    assert ask("fewer") == ["file", "fewernodes"]
    kept.write_text(kept.read_text().replace(f'"version": ["{__version__}"', '"version": ["0.0.0"'))
    assert ask("fewer") == ["file"]
    kept.write_text("{")
    assert ask("singl") == ["file", "singlenode"]


def test_a_cache_that_cant_be_written(home: Path) -> None:
    (home / "launch").write_text("")
    assert ask("singl") == ["file", "singlenode"]


# hosts


def test_hosts_of_ssh_files(home: Path) -> None:
    (home / ".ssh/config").write_text(f"Host a *.lan !b c?\nUserKnownHostsFile {home}/mine\nInclude d\nMatch host e\n")
    (home / ".ssh/d").write_text("Host f\n")
    hashed = "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg="
    lines = [f"g,10.0.0.1 ssh-ed25519 {KEY}", f"[h]:2222 ssh-ed25519 {KEY}", f"{hashed} ssh-ed25519 {KEY}"]
    lines += [f"@cert-authority i ssh-ed25519 {KEY}", f"*.j ssh-ed25519 {KEY}", "k ssh-ed25519 broken"]
    (home / ".ssh/known_hosts").write_text("\n".join(lines))
    (home / "mine").write_text(f"m ssh-ed25519 {KEY}\n")
    assert ask("--hosts", "") == ["list", "a", "f", "m", "g", "10.0.0.1", "h"]
    assert ask("--controller", "") == ["word", "here", "a", "f", "m", "g", "10.0.0.1", "h"]


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        (["--hosts", "x[1-2],y:8", "--exclude"], ["x1", "x2", "y"]),
        (["--hostfile", "two", "--exclude"], ["n1", "n2"]),
        (["--exclude"], ["t1", "t2"]),
        (["--config", "other.toml", "--exclude"], ["o1"]),
        (["--config", "none.toml", "--exclude"], ["a"]),
        (["--hostfile", "none", "--exclude"], ["a"]),
        (["--hostfile", "pipe", "--exclude"], ["a"]),
        (["--hosts", "x[", "--exclude"], ["a"]),
        (["--hosts"], ["t1", "t2", "a"]),
        (["--hostfile", "two", "--hosts"], ["n1", "n2", "a"]),
    ],
)
def test_hosts_that_are_listed(home: Path, words: list[str], hosts: list[str]) -> None:
    (home / ".ssh/config").write_text("Host a\n")
    (home / "two").write_text("n1 slots=8\nn2 slots=8\n")
    (home / "launcher.toml").write_text('hostfile = "three"\n')
    (home / "three").write_text("t1\nt2\n")
    (home / "other.toml").write_text('hosts = ["o1"]\n')
    os.mkfifo(home / "pipe")
    assert ask(*words, "") == ["list", *hosts]


def test_a_hostfile_of_a_launcher_toml_above(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "launcher.toml").write_text('hostfile = "three"\n')
    (home / "three").write_text("t1\n")
    (home / "below").mkdir()
    monkeypatch.chdir(home / "below")
    assert ask("--exclude", "") == ["list", "t1"]


@pytest.mark.parametrize("text", ["hosts = [", "hosts = 3\n", "hostfile = [1]\n", "hosts = ['a;b']\n", "\0"])
def test_a_broken_launcher_toml_costs_no_other_host(home: Path, text: str) -> None:
    (home / ".ssh/config").write_text("Host a\n")
    (home / "launcher.toml").write_text(text)
    assert ask("--hosts", "") == ["list", "a"]


@pytest.mark.parametrize("text", ["Host 'open", "Host\n", "Include %d/x\n", "Include config\n", "\0", "Host a\nHost"])
def test_a_broken_ssh_config_costs_no_other_host(home: Path, text: str) -> None:
    (home / ".ssh/config").write_text(text)
    (home / ".ssh/known_hosts").write_text(f"b ssh-ed25519 {KEY}\n")
    assert ask("--hosts", "") == ["list", "b"]


def test_a_list(home: Path) -> None:
    (home / ".ssh/config").write_text("Host a b c\n")
    assert ask("--hosts", "a,root@b,") == ["list", "a,root@b,c"]
    assert ask("--include", "a:0,1@") == ["list", "a:0,1@a", "a:0,1@b", "a:0,1@c"]
    assert ask("--hosts", "$(x),") == ["list"]


@pytest.mark.parametrize(
    "name", ["$(x)", "`x`", "a b", "a;b", "a'", '"', "-rf", "\x1b]0;x\x07", "a\u202eb", "é", "a\\"]
)
def test_a_hostile_name_is_not_offered(home: Path, name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    (home / ".ssh/config").write_text(f'Host good "{quoted}"\n')
    _list_run(home, "20261120-091233", name)
    assert ask("--hosts", "") == ["list", "good"]
    assert ask("attach", "") == ["word"]


# runs


def _list_run(home: Path, run_id: str, name: str | None, entry: str = "controller.json") -> None:
    place = home / "launch/runs" / run_id
    place.mkdir(parents=True)
    (place / entry).write_text(json.dumps({"name": name}))


def test_runs_by_id_and_name(home: Path) -> None:
    _list_run(home, "20261120-091233", "baseline")
    _list_run(home, "20261121-091233", "baseline", "planted.json")
    _list_run(home, "20261122-091233", None)
    (home / "launch/runs/20261123-091233").mkdir()  # an id that was taken, without a run yet
    (home / "launch/runs/20261124-091233").mkdir()
    (home / "launch/runs/20261124-091233/controller.json").write_text("[")
    newest_first = ["20261122-091233", "20261121-091233", "20261120-091233"]
    assert ask("wait", "x", "") == ["word", "baseline", *newest_first]
    described = describe_answer(["zsh", "launch", "stop", "b"])
    assert described == "word\nbaseline:20261121-091233\n"


# the script


def test_the_scripts_and_the_guide_have_the_line_that_installs_them(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (ROOT / "LAUNCH_GUIDE.md").read_text("utf-8")
    for shell, line in INSTALL.items():
        assert _print(capsys, shell)[1].splitlines()[2 if shell == "zsh" else 1] == f"#   {line}"
        assert re.search(rf"^\| {shell} \| `{re.escape(line)}` \|$", guide, re.MULTILINE)


def test_the_default_is_the_shell_of_the_user(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    assert _print(capsys)[1].startswith("#compdef launch")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    said = "launch: SHELL is '/bin/tcsh', which has no completion\n  fix: name one: launch completion bash\n"
    assert _print(capsys) == (EXIT_USAGE, "", said)


def _print(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["completion", *words])
    return end.value.code, *capsys.readouterr()
