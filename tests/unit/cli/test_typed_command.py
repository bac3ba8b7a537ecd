"""Which of the options that were typed can be typed again: for another host, for a job, for another command."""

from __future__ import annotations

import shlex

import click
import pytest

from launcher.cli import command_group
from launcher.cli.typed_command import load_command, parse_options, typed_options


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("run", "--sync train.py", "--sync="),
        ("run", "--sync=launcher/here --sync-limit 5MB --link a=/b --link c=/d", None),
        ("run", "--queue 2h --no-detach -q -- train.py --lr 1", "--queue=2h --no-detach -q"),
        ("run", "--env A=1 --env=MY_TOKEN=x --env B train.py --env C", "--env A=1 --env MY_TOKEN --env B"),
        ("run", "-qv --hosts a train.py", "-q -v --hosts a"),
        ("logs", "20261120 --since 10m -f --controller=gpu1", "--since 10m -f"),
        ("wait", "--controller gpu1 -- base", ""),
    ],
)
def test_what_was_typed_can_be_typed_again(name: str, line: str, words: str | None) -> None:
    launch = command_group.launch
    parent = click.Context(launch, info_name="launch", **launch.context_settings)
    command = launch.get_command(parent, name)
    assert command is not None

    def typed(line: str) -> str:
        with command.make_context(name, shlex.split(line), parent):
            return shlex.join(typed_options(lambda name: name != "controller"))

    words = line if words is None else words
    assert typed(line) == words
    assert typed(f"{words} train.py") == words


def test_words_are_read_without_a_change_to_the_command() -> None:
    """Click keeps the help option of the first context that it meets."""
    command = load_command("clean")
    parse_options(command, ["--hosts", "a"])
    option = command.get_help_option(click.Context(command))
    assert option is not None and option.opts == ["-h", "--help"]
