"""What a Tab offers: the words that click knows, the names of hosts and runs, and the scripts of the shells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from launcher.cli import main as cli
from launcher.cli import test_distributed as other_program
from launcher.cli.completion import INSTALL
from launcher.cli.main import launch
from launcher.errors import EXIT_USAGE

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, which is the current one, with one host in its ssh_config."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host a\n")
    return tmp_path


def ask(*words: str) -> list[str]:
    """Return what is offered in place of the last word; `file` and `dir` stand for any of these."""
    *before, last = words
    items: list[CompletionItem] = ShellComplete(launch, {}, "launch", "").get_completions([*before], last)
    return [item.value if item.type == "plain" else item.type for item in items]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["singl"], ["file", "singlenode"]),
        (["help", "singl"], ["file", "singlenode"]),
        (["--vers"], ["--version"]),
        (["--restar"], ["--restarts"]),
        (["run", "--restar"], ["--restarts"]),
        (["--restarts", "1", "--restar"], []),  # once is enough
        (["--env", "A", "--env"], ["--env", "--env-file"]),
        (["--transport", "fa"], ["fabric"]),
        (["--cpu", "tra"], ["file"]),
        (["--cpu", "train.py", "--restar"], []),  # of the script
        (["--cpu", "train.py", ""], ["file"]),
        (["--hostfile", ""], ["file"]),
        (["--env-file", ""], ["file"]),
        (["exec", "--", ""], ["file"]),
        (["fetch", "a", ""], ["file"]),
    ],
)
def test_the_words_of_click(words: list[str], offered: list[str]) -> None:
    assert sorted(ask(*words)) == sorted(offered)


def test_a_tab_imports_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", None)
    assert "singlenode" in ask("")


@pytest.mark.parametrize("text", ["hosts = [", "hostfile = [1]\n", "hosts = ['a;b']\n", "\0"])
def test_a_broken_launcher_toml_costs_no_other_host(home: Path, text: str) -> None:
    (home / "launcher.toml").write_text(text)
    assert ask("--hosts", "") == ["a"]


def test_hosts_of_ssh_config(home: Path) -> None:
    (home / ".ssh/config").write_text("Host a *.lan !b c?\n  HostName x\nhost=d\nMatch host e\nHostKeyAlias f\n\xff\n")
    assert ask("--hosts", "") == ["a", "d"]
    (home / ".ssh/config").unlink()
    assert ask("--hosts", "") == []


def test_a_list(home: Path) -> None:
    (home / ".ssh/config").write_text("Host a b c\n")
    assert ask("--hosts", "a,root@b,") == ["a,root@b,c"]
    assert ask("--include", "a:0,1@") == ["a:0,1@a", "a:0,1@b", "a:0,1@c"]
    assert ask("--hosts", "$(x),") == []


@pytest.mark.parametrize(
    "name", ["$(x)", "`x`", "a;b", "a'", '"', "-rf", "\x1b]0;x\x07", "a\u202eb", "é", "a\\", "a*", "a\0b"]
)
def test_a_hostile_name_is_not_offered(home: Path, name: str) -> None:
    (home / ".ssh/config").write_text(f"Host good {name}\n")
    assert ask("--hosts", "") == ["good"]
    assert ask("--hosts", "x,") == ["x,good"]


def test_runs_by_name_and_id(home: Path) -> None:
    for run_id, name in (("20261120-091233", "baseline"), ("20261121-091233", "$(x)")):
        place = home / "launch/runs" / run_id
        place.mkdir(parents=True)
        (place / "planted.json").write_text(json.dumps({"way": {"name": "gpu1"}, "name": name, "began_at": 1.0}))
    assert sorted(ask("wait", "x", "")) == ["20261120-091233", "20261121-091233", "baseline"]
    for words in (["stop"], ["again"], ["logs"], ["ps", "--forget"]):
        assert ask(*words, "b") == ["baseline"]


def test_the_lines_that_install_it_are_in_the_guide() -> None:
    guide = (ROOT / "LAUNCH_GUIDE.md").read_text("utf-8")
    for shell, line in INSTALL.items():
        assert re.search(rf"^\| {shell} \| `{re.escape(line)}` \|$", guide, re.MULTILINE)


def test_the_default_is_the_shell_of_the_user(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "complete --no-files --command test-distributed" in _print(capsys)[1]
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    said = "launch: SHELL is '/bin/tcsh', which has no completion\n  fix: name one: launch completion bash\n"
    assert _print(capsys) == (EXIT_USAGE, "", said)


def test_the_other_program_completes() -> None:
    items = ShellComplete(other_program.command, {}, "test-distributed", "").get_completions(["2"], "--max-s")
    assert [item.value for item in items] == ["--max-size"]


def _print(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["completion", *words])
    return end.value.code, *capsys.readouterr()
