"""python -m bench record | compare: keep the results of a commit in record.json, and find what is worse than they are.

They are those of the measures that take eight minutes in all and vary little. Ratios are compared on every machine;
what has another unit says something only on the machine that the record names.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measures import MEASURES, missing_programs
from bench.timing import Row

RECORD = Path(__file__).with_name("record.json")
RECORDED = ("help", "first-all-reduce", "checks", "start", "flood", "many-hosts")
LEAST_NOISE = 0.03  # of a value: medians on a quiet machine differ by that much


@dataclass(frozen=True, slots=True)
class Comparison:
    """One result beside that of the record."""

    name: str
    now: float
    before: float
    noise: float  # by how much they may differ without a cause

    @property
    def is_worse(self) -> bool:
        """Whether the result is worse than the record by more than the noise; all of these are better if smaller."""
        return self.now - self.before > self.noise

    def describe(self) -> str:
        """Return the line to print."""
        end = "WORSE" if self.is_worse else "ok"
        return f"{self.name}: {self.now:.3g}, recorded {self.before:.3g}, noise {self.noise:.2g}: {end}"


def main(words: Sequence[str]) -> int:
    """Measure, and write the record or compare with it; return 1 if something is worse."""
    if list(words) not in (["record"], ["compare"]):
        raise SystemExit("bench: record and compare take no arguments")
    record = read_record(RECORD) if words[0] == "compare" else {}  # before minutes of measuring
    rows = [row for name in RECORDED for row in _measure(name)]
    if words[0] == "record":
        head = {"commit": _read_commit(), "date": f"{datetime.date.today()}", "machine": find_machine()}
        RECORD.write_text(json.dumps({**head, "results": as_results(rows)}, indent=2) + "\n")
        print(f"bench: recorded in {RECORD}")
        return 0
    print(f"bench: compared with {record['commit']} of {record['date']} on {record['machine']}")
    found = compare(record, rows, find_machine())
    print("\n".join(each.describe() for each in found))
    return 1 if any(each.is_worse for each in found) else 0


def as_results(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return the rows by their names, as the record keeps them."""
    return {row.name: {"value": row.value, "unit": row.unit, "spread": row.spread} for row in rows}


def read_record(path: Path) -> Mapping[str, Any]:
    """Return the record; exit if there is none."""
    if not path.exists():
        raise SystemExit(f"bench: no {path.name} to compare with; make it with python -m bench record")
    record: Mapping[str, Any] = json.loads(path.read_text())
    return record


def compare(record: Mapping[str, Any], rows: Iterable[Row], machine: str) -> list[Comparison]:
    """Return each row that the record has too, and that means the same on this machine."""
    found = []
    for row in rows:
        kept = record["results"].get(row.name)
        if kept is not None and (row.unit == "ratio" or machine == record["machine"]):
            noise = max(kept["spread"], row.spread, LEAST_NOISE * kept["value"])
            found.append(Comparison(row.name, row.value, kept["value"], noise))
    return found


def find_machine() -> str:
    """Return what tells this machine from others: its processor, cores and system."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def _measure(name: str) -> list[Row]:
    measure, programs = MEASURES[name]
    if missing := missing_programs(programs):
        raise SystemExit(f"bench: {name} needs {', '.join(missing)}")
    print(f"bench: {name} ...", file=sys.stderr, flush=True)
    return measure()


def _read_commit() -> str:
    argv = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(argv, cwd=RECORD.parent, capture_output=True, text=True, check=True).stdout.strip()
