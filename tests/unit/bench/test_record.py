"""What is worse than the record, and what only differs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import record
from bench.__main__ import main
from bench.measures import MEASURES
from bench.timing import Row, compare_turns

MACHINE = "a processor, 2 cores, Linux"


def kept(value: float, spread: float = 0.0, unit: str = "ratio") -> dict[str, object]:
    row = Row("x", value, unit, 9, "", spread=spread)
    return {"commit": "1f3a", "date": "2026-11-24", "machine": MACHINE, "results": record.as_results([row])}


@pytest.mark.parametrize(
    ("before", "spread_before", "now", "spread_now", "is_worse"),
    [
        (1.0, 0.0, 1.02, 0.0, False),  # every median differs by so much
        (1.0, 0.0, 1.04, 0.0, True),
        (1.0, 0.1, 1.09, 0.0, False),
        (1.0, 0.0, 1.09, 0.1, False),
        (1.0, 0.1, 1.11, 0.1, True),
        (1.0, 0.0, 0.5, 0.0, False),
    ],
)
def test_worse_by_more_than_the_noise(before, spread_before, now, spread_now, is_worse):
    row = Row("x", now, "ratio", 9, "", spread=spread_now)
    (found,) = record.compare(kept(before, spread_before), [row], MACHINE)
    assert found.is_worse == is_worse


def test_seconds_are_compared_on_the_same_machine_only():
    row = Row("x", 5.0, "s", 9, "")
    assert [each.is_worse for each in record.compare(kept(1.0, unit="s"), [row], MACHINE)] == [True]
    assert record.compare(kept(1.0, unit="s"), [row], "another") == []
    assert len(record.compare(kept(1.0), [Row("x", 5.0, "ratio", 9, "")], "another")) == 1


def test_a_new_measure_is_compared_with_nothing():
    assert record.compare(kept(1.0), [Row("y", 5.0, "ratio", 9, "")], MACHINE) == []


def test_one_disturbed_turn_changes_neither_ratio_nor_spread():
    row = compare_turns("x", [2.0, 2.0, 2.0, 2.0, 9.0], [4.0] * 5, 0.6)
    assert (row.value, row.spread, row.detail) == (0.5, 0.0, "2.00 s against 4.00 s")


def test_a_record_is_compared_with_what_comes_later(monkeypatch, tmp_path, capsys):
    values = iter([1.0, 1.0, 1.5])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # which main removes
    monkeypatch.setattr(record, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(record, "RECORDED", ("x",))
    monkeypatch.setitem(MEASURES, "x", (lambda: [Row("x", next(values), "ratio", 9, "")], ()))
    monkeypatch.setattr(record, "_read_commit", lambda: "1f3a")
    codes = []
    for word in ("record", "compare", "compare"):
        monkeypatch.setattr(sys, "argv", ["bench", word])
        codes.append(main())
    assert codes == [0, 0, 1]
    assert capsys.readouterr().out.splitlines()[-1] == "x: 1.5, recorded 1, noise 0.03: WORSE"
    assert json.loads(Path(record.RECORD).read_text())["results"]["x"]["value"] == 1.0


def test_without_a_record_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "RECORD", tmp_path / "record.json")
    with pytest.raises(SystemExit, match="make it with python -m bench record"):
        record.main(["compare"])


def test_the_recorded_measures_exist():
    assert set(record.RECORDED) <= set(MEASURES)


@pytest.mark.parametrize("words", [["--help"], ["record", "-h"], ["compare", "--help"], ["scaling", "--help"]])
def test_the_help_measures_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    assert main() == 0
    assert capsys.readouterr().out.startswith("python -m bench [MEASURE...]: run the measures")
