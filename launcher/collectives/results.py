"""The results of a run of the checks: the summary line, and results.json for plots and comparisons."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.collectives.bandwidth import Speed
from launcher.collectives.checks import OK, Outcome
from launcher.collectives.matrix import Pair

FILE_NAME = "results.json"


@dataclass(frozen=True)
class Results:
    """All results; they are the same on every rank."""

    ranks: int
    hosts: Sequence[str]
    backend: str
    device: str
    initialised_s: float
    checks: Sequence[Outcome]
    bandwidth: Sequence[Speed]  # bytes per second
    pairs: Sequence[Pair]

    @property
    def passed(self) -> bool:
        """Return whether nothing was wrong; a skipped check isn't wrong."""
        return not any(outcome.is_wrong for outcome in self.checks)

    def __str__(self) -> str:
        total = len(self.checks)
        wrong = sum(outcome.is_wrong for outcome in self.checks)
        right = sum(outcome.result == OK for outcome in self.checks)
        skipped = total - wrong - right
        words = f"all {total} checks passed" if right == total else f"{right} of {total} checks passed"
        words += (f", {wrong} failed" if wrong else "") + (f", {skipped} skipped" if skipped else "")
        return f"{words} with {count_words(self.ranks, len(self.hosts))} ({self.backend}, {self.device})"

    def write(self, folder: Path) -> None:
        """Write results.json to `folder`."""
        content = {**asdict(self), "passed": self.passed}
        (folder / FILE_NAME).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def count_words(ranks: int, hosts: int) -> str:
    """Return `4 ranks on 2 hosts`."""
    return f"{_count(ranks, 'rank')} on {_count(hosts, 'host')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
