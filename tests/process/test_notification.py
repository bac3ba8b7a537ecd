"""--notify: what its command gets, and what is said if it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.node.agents import notice
from launcher.runs.execution import Notifier
from launcher.runs.records import Result
from launcher.session.node_state import Census

ENDED = Result(0, 1.0, Census({}, {}))


def make(command: str, said: list[str]) -> Notifier:
    return Notifier(command, "20261124-010203", "base", os.environ, said.append)


def test_the_command_knows_the_run_and_its_name(tmp_path: Path) -> None:
    said: list[str] = []
    make(f'echo "$LAUNCH_EVENT $LAUNCH_RUN $LAUNCH_NAME $LAUNCH_EXIT_CODE" >{tmp_path}/got', said)("end", ENDED)
    assert ((tmp_path / "got").read_text(), said) == ("end 20261124-010203 base 0\n", [])


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("exit 3", "launch: --notify failed (exit code 3)"),
        ("/nowhere/tell token=x", "launch: --notify failed (exit code 127, it wasn't found)"),
        ("kill -9 $$", "launch: --notify failed (signal 9)"),
        ("exec sleep 600", "launch: --notify was killed after 0.1 s"),
    ],
)
def test_a_failure_is_said_without_the_command(command: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "sleep" in command:
        monkeypatch.setattr(notice, "LONGEST_S", 0.1)
    said: list[str] = []
    make(command, said)("end", ENDED)
    assert said == [line]


@pytest.mark.parametrize(
    ("command", "missing"),
    [("no-such-teller x", "no-such-teller"), ("/nowhere/tell", "/nowhere/tell"), ("echo x", ""), ("A=1 x", ""),
     ("$HOME/x", ""), ('"a b"', ""), ("if true; then :; fi", "")],
)  # fmt: skip
def test_what_is_not_found_is_said_at_the_start(command: str, missing: str) -> None:
    said: list[str] = []
    make(command, said).warn()
    assert [line.partition(" isn't found on ")[0] for line in said[:1]] == (
        [f"launch: --notify won't run: {missing}"] if missing else []
    )
