"""The table of `python -m bench peers`: what a cell says, and that docs/bench.md has what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import environment, peers
from bench.faults import Fate

RESULT: dict[str, Any] = {
    "date": "2026-11-28",
    "machine": "a processor, 2 cores, Linux",
    "turns": {"connect": 3, "faults": 1},
    "cap_s": 40.0,
    "versions": {"Python": "3.11.7", "torch": "2.13.0", "launch": "commit 1f3a", "ssh": "9.2"},
    "missing": {"torchrunx": "no such package"},
    "connect": {"2": {"launch": [0.5, 0.7, 9.0], "ssh": [0.25]}},
    "start": {"launch": [6.0, 8.0, None], "ssh": [None]},
    "idle": {"seconds": 600.0, "launch": [0.512, 61.0]},
    "faults": {
        "Ctrl-C": {
            "launch": {"seconds": 0.31, "left": 0, "exit_code": 130, "is_named": None},
            "ssh": {"seconds": None, "left": 6, "exit_code": None, "is_named": None},
        },
        "a rank is killed": {
            "launch": {"seconds": 0.31, "left": 0, "exit_code": 137, "is_named": True},
            "ssh": {"seconds": None, "left": 0, "exit_code": -9, "is_named": False},
        },
    },
}

QUOTED, QUOTED_TOOLS = (
    ("a rank is killed", "Ctrl-C", "a host's cable is pulled"),
    ("launch", "ssh", "mpirun", "deepspeed"),
)


def test_the_tables_as_they_are_shown() -> None:
    lines = [*peers.describe(RESULT)]
    assert lines[:22] == [
        "2026-11-28, a processor, 2 cores, Linux. Medians of these numbers of turns: connect 3, faults 1.",
        "",
        "### Speed",
        "",
        "| | launch | ssh |",
        "|---|---|---|",
        "| `true` on 2 hosts | 0.7 s | 0.25 s |",
        "| first all-reduce, 2 hosts x 2 ranks | 7 s, then failed | failed |",
        "| 64 idle hosts, of a core | 0.512 % | - |",
        "| 64 idle hosts, memory | 61 MiB | - |",
        "",
        "### Faults",
        "",
        "| | launch | ssh |",
        "|---|---|---|",
        "| a rank is killed | 0.3 s, exit 137, named | over 40 s, exit 137, not named |",
        "| Ctrl-C | 0.3 s, exit 130 | **6 left**, hangs |",
        "",
        "### Versions and settings",
        "",
        "| tool | version | settings |",
        "|---|---|---|",
    ]
    assert "| launch --start warm | commit 1f3a | defaults |" in lines
    assert "| torchrunx | not measured | no such package |" in lines
    assert "Ray (" in lines[-1]


def test_one_tool_that_is_measured_again_replaces_its_own_values() -> None:
    kept = {"seconds": 60, "2": {"ssh": [1.0], "pdsh": [2.0]}, "pdsh": {"seconds": None, "left": 2}}
    new = {"seconds": 30, "2": {"pdsh": [3.0]}, "pdsh": {"seconds": 1.0, "left": 0}}
    assert peers.merge(kept, new) == new | {"2": {"ssh": [1.0], "pdsh": [3.0]}}


def test_something_that_was_left_once_is_left() -> None:
    ended, worse, left = Fate(1.0, 0, 1, True), Fate(3.0, 0, 1, False), Fate(None, 4, 1, True)
    assert peers._middle([ended, worse]) == Fate(2.0, 0, 1, False)
    assert peers._middle([ended, left]) == left


def test_a_tool_that_fails_stops_only_itself() -> None:
    tools = [tool for tool in peers.TOOLS.values() if tool.name in ("pdsh", "ssh")]
    seen = []

    def measure(tool: peers.Tool) -> float:
        seen.append(tool.name)
        if tool.name == "ssh":
            raise RuntimeError("exit code 1")
        return 2.0

    assert peers._take_turns("x", tools, "execute", 2, measure) == {"ssh": [None], "pdsh": [2.0, 2.0]}
    assert seen == ["ssh", "pdsh", "pdsh"]


def test_a_peer_that_cant_be_had_is_named_with_the_reason() -> None:
    assert environment._run(["sh", "-c", "echo trying; echo 'no such package' >&2; exit 1"]) == "no such package"
    assert environment._run(["true"]) == ""
    assert environment._find_version("no-such-package") == ""


def test_an_unknown_tool_or_part_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["--tools", "launch,slurm"])
    assert "there is no 'slurm'; fix: choose from launch, " in capsys.readouterr().err


def test_readme_quotes_the_table() -> None:
    result = json.loads(Path(peers.KEPT).read_text("utf-8"))
    text = (peers.ROOT / "README.md").read_text("utf-8")
    for fault in QUOTED:
        assert f"| {fault} | {' | '.join(peers.fates(result, fault, QUOTED_TOOLS))} |" in text
    assert f"Measured on {result['date']}" in text


def test_the_page_has_what_was_measured() -> None:
    page = Path(peers.PAGE).read_text("utf-8")
    assert peers.update_page(page, json.loads(Path(peers.KEPT).read_text("utf-8"))) == page, "run bench peers --write"
