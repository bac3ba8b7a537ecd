"""What `python -m bench` says of a claim, and that every number of the documents was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import record
from bench.record import CLAIMS, MEASURES, Claim, Row

ROOT = Path(__file__).parents[3]
DOCUMENTS = ("README.md", "LAUNCH_GUIDE.md", "TROUBLESHOOTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))
RESULTS = ("docs/gpu.md", "docs/bench.md")  # with their dates
# Speeds, shares and comparisons. Settings, limits and sizes that the code defines look otherwise.
MEASURED = re.compile(
    r"\b\d[\d.,]* ?(?:[TG]FLOP/s|[kMG]i?B/s|tokens/s|% of (?:a|one) core|times as (?:long|fast|much|many))"
    r"|\babout \d[\d.,]* ?(?:%|ms|s|[kMG]i?B)\b|\b(?:faster|slower) than (?:torchrun|ssh|pdsh|by hand)\b"
    r"|\bin half (?:of )?the time\b|\bhalf a percent\b|\bfew tenths\b|\bMeasured\b(?! on 20)"
)
LIMITS = ("over 5 times as long as the others'", "swaps 50 MiB/s")  # of what the code looks for
SECONDS, RATIO = (Claim("stop", unit, 3.0, "README.md", "") for unit in ("s", ""))
MACHINE = "a processor, 2 cores, Linux"


def row(value: float, spread: float = 0.0, machine: str = MACHINE) -> Row:
    return Row(value, spread, 5, "2026-11-24", "1f3a", machine)


def unmeasured(text: str, claimed: list[str]) -> Iterator[str]:
    """Yield each number of a document that is neither claimed nor in a block that is called an example."""
    said, is_fenced = "", False
    for line in text.splitlines():
        is_fenced ^= line.startswith("```")
        if is_fenced or line.startswith(("    ", "```")):
            if "xample" in said:
                continue
        elif line:
            said = line
        for words in (*claimed, *LIMITS):
            line = line.replace(words, "")
        yield from (found[0] for found in MEASURED.finditer(line))


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


@pytest.mark.parametrize("document", sorted({*DOCUMENTS} - {*RESULTS}))
def test_every_number_was_measured(document: str) -> None:
    kept = record.read_record()
    claimed = [claim.text.format(kept[name].value) for name, claim in CLAIMS.items() if claim.document == document]
    assert [*unmeasured((ROOT / document).read_text("utf-8"), claimed)] == []


def test_an_unmeasured_number_is_found() -> None:
    text = "1.20 times as long, at 453 TFLOP/s.\n\nAn example of it:\n\n    55.1 GB/s\n\nIt prints:\n\n    8 GB/s\n"
    assert [*unmeasured(text, ["1.20 times as long"])] == ["453 TFLOP/s", "8 GB/s"]


@pytest.mark.parametrize("document", RESULTS)
def test_results_have_a_date(document: str) -> None:
    assert re.search(r"^20\d\d-\d\d-\d\d\b", (ROOT / document).read_text("utf-8"), re.MULTILINE)
