"""What `python -m bench` says of a claim, and that what it has measured stands in the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import record
from bench.record import CLAIMS, MEASURES, Claim, Row

ROOT = Path(__file__).parents[3]
RESULTS = ("docs/gpu.md", "docs/bench.md")  # with their dates
SECONDS, RATIO = (Claim("stop", unit, 3.0, "README.md", "") for unit in ("s", ""))
MACHINE = "a processor, 2 cores, Linux"


def row(value: float, spread: float = 0.0, machine: str = MACHINE) -> Row:
    return Row(value, spread, 5, "2026-11-24", "1f3a", machine)


@pytest.mark.parametrize(
    ("claim", "now", "before", "machine", "said"),
    [
        (RATIO, row(1.09), row(1.0), MACHINE, "ok"),  # a median is known to 5 %, and so is the record's
        (RATIO, row(1.11), row(1.0), MACHINE, "WORSE"),
        (RATIO, row(1.45, 0.36), row(1.10), MACHINE, "WORSE"),  # turns that are far apart excuse nothing
        (RATIO, row(3.01, 0.36), row(3.0), MACHINE, "OVER THE LIMIT"),  # however far apart the turns are
        (RATIO, row(0.5), row(1.0), MACHINE, "ok"),
        # A record that isn't tight leaves the limit.
        (RATIO, row(2.9), row(1.0, 0.06), MACHINE, "ok"),
        (RATIO, row(3.1), row(1.0, 0.06), MACHINE, "OVER THE LIMIT"),
        # Seconds are compared on the same machine only.
        (SECONDS, row(2.0), row(1.0), MACHINE, "WORSE"),
        (SECONDS, row(1.5), row(1.0), MACHINE, "ok"),  # nobody feels it
        (SECONDS, row(2.0), row(1.0), "another", "ok"),
        (SECONDS, row(4.0), row(1.0), "another", "OVER THE LIMIT"),
        (RATIO, row(2.0), row(1.0), "another", "WORSE"),
    ],
)
def test_worse_by_more_than_the_noise(claim: Claim, now: Row, before: Row, machine: str, said: str) -> None:
    assert record.judge(claim, now, before, machine) == said


def test_a_missing_row_is_an_error_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = record.read_record()
    record.require_rows(kept)
    with pytest.raises(SystemExit, match="no row for 64 idle hosts; fix: python -m bench record idle"):
        record.require_rows({name: each for name, each in kept.items() if name != "64 idle hosts"})


# ---- the documents --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_recorded_holds_and_is_quoted(name: str) -> None:
    claim, kept = CLAIMS[name], record.read_record()
    assert claim.measure in MEASURES
    assert record.judge(claim, kept[name], None, "") == "ok"
    assert claim.text.format(kept[name].value) in (ROOT / claim.document).read_text("utf-8")


def test_the_record_has_no_other_rows() -> None:
    assert {*record.read_record()} == {*CLAIMS}


@pytest.mark.parametrize("document", RESULTS)
def test_results_have_a_date(document: str) -> None:
    assert re.search(r"^20\d\d-\d\d-\d\d\b", (ROOT / document).read_text("utf-8"), re.MULTILINE)
