"""The table of `python -m bench peers`: what a cell says, and that docs/bench.md has what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import peers

QUOTED, QUOTED_TOOLS = (
    ("a rank is killed", "Ctrl-C", "a host's cable is pulled"),
    ("launch", "ssh", "mpirun", "deepspeed"),
)


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
