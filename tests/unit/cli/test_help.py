"""Help as it is seen at 80 columns, and its examples; command_lines.txt has the whole texts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.cli.command_table import COMMANDS, DEFAULT_COMMAND, EXAMPLES
from launcher.errors import EXIT_USAGE

Launch = Callable[..., tuple[int, str, str]]

# launcher.toml has no defaults for them
WITHOUT_DEFAULTS = ("again", "ps", "attach", "logs", "wait", "stop", "fetch", "report", "completion")


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(
    ("words", "alike"),
    [
        ("-h", "--help"),
        ("help", "--help"),
        ("exec -h", "exec --help"),
        ("help exec", "exec --help"),
        ("stop -h", "stop --help"),
        ("help singlenode", "singlenode --help"),
        ("--hosts a -h", "run -h"),
    ],
)
def test_help_is_called_in_each_way(launch: Launch, words: str, alike: str) -> None:
    """Its text is in command_lines.txt."""
    assert launch(*words.split()) == launch(*alike.split())


def test_help_after_the_script_is_the_scripts(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    code, out, err = launch("--hosts", "gpu1", "--gpus", "1", "--dry-run", "train.py", "-h")
    assert (code, out.rstrip().endswith("train.py -h"), err) == (0, True, "")


@pytest.mark.parametrize("name", [*COMMANDS, "test-distributed"])
def test_every_line_fits_and_every_option_is_in_a_group(launch: Launch, name: str) -> None:
    entry = cli.main_test_distributed if name == "test-distributed" else cli.main
    code, out, err = launch(*([] if name == "test-distributed" else [name]), "--help", entry=entry)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    general = out.partition("\nGeneral:\n")[2].splitlines()
    options = [line.split()[0].rstrip(",") for line in general if re.match("  +-", line)]
    config = [] if name in WITHOUT_DEFAULTS else ["--config"]
    assert options == [*config, "-h"], "give the others a heading"
    assert _examples(name) in out


def _examples(name: str) -> str:
    return "\n\nExamples:\n" + "".join(f"  {line}\n" for line in EXAMPLES[name]) + "\n"


def test_help_for_what_is_no_command(launch: Launch) -> None:
    said = "launch: no command 'chekc'\n  fix: see launch --help for the commands\n"
    assert launch("help", "chekc") == (EXIT_USAGE, "", said)


def test_the_top_fits_on_a_small_terminal(launch: Launch) -> None:
    lines = launch("--help")[1].splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80


def _split(line: str) -> tuple[str, list[str]]:
    program, *words = shlex.split(line)
    if program == "test-distributed":
        return program, words
    return (words[0], words[1:]) if words[0] in COMMANDS else (DEFAULT_COMMAND, words)


def test_every_command_has_two_examples_of_itself() -> None:
    assert {*EXAMPLES} == {*COMMANDS, "test-distributed"}
    assert {len(lines) for lines in EXAMPLES.values()} == {2}
    for name in (*COMMANDS, "test-distributed"):
        assert {_split(line)[0] for line in EXAMPLES[name]} == {name}
