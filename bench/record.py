"""python -m bench [NAME...] | record [NAME...]: measure what README claims, against its limits and the record.

A claim has a name, a limit, and the sentence of a document that quotes its value; a test finds each number of the
documents here. record.json has a row for each claim, with its own date, commit and machine. Seconds are compared with
a row of the same machine only, ratios and shares with any.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import faults, measures
from bench.lab import lab
from bench.tools import TOOLS

RECORD = Path(__file__).with_name("record.json")
TIGHT = 0.05  # a median is known well enough if it is known to this share of itself
LEAST_TURNS, MOST_TURNS = 5, 11
LEAST_FELT_S = 0.5
IDLE_S = 30.0

Turn = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a document says; `text` is a part of a sentence there, with the recorded value in it. Less is better."""

    measure: str
    unit: str  # "" for a ratio
    limit: float
    document: str
    text: str


CLAIMS = {
    "first all-reduce / by hand": Claim("start", "", 1.25, "README.md", "{:.2f} times as long as torchrun by hand"),
    "warm: first all-reduce / by hand": Claim("start", "", 0.75, "README.md", "{:.2f} times as long with"),
    "8 million lines / pdsh": Claim("lines", "", 0.25, "README.md", "8 million lines take {:.2f} times as long as"),
    "64 idle hosts": Claim("idle", "% of a core", 1.0, "README.md", "64 idle hosts cost {:.1f} % of one core"),
    "Ctrl-C, until nothing runs": Claim("stop", "s", 3.0, "README.md", "stop within seconds"),
    "launch killed, until nothing runs": Claim("stop", "s", 3.0, "README.md", "stop within seconds"),
    "a rank killed, until nothing runs": Claim("stop", "s", 3.0, "README.md", "stop within seconds"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """The median of the turns, and how well it is known: the middle half of them / the root of their number."""

    value: float
    spread: float
    turns: int
    date: str = ""
    commit: str = ""
    machine: str = ""


def main(words: Sequence[str]) -> int:
    """Measure the claims of the named measures, or all; return 1 if one doesn't hold or is worse than recorded."""
    is_record, names = list(words[:1]) == ["record"], [word for word in words if word != "record"] or list(MEASURES)
    if unknown := [name for name in names if name not in MEASURES]:
        raise SystemExit(f"bench: no measure {unknown[0]!r}; fix: choose from {', '.join(MEASURES)}")
    kept = read_record()
    if not is_record:
        require_rows(kept)
        print(describe_age(kept, datetime.date.today()))
    console, bad = Console(highlight=False), 0
    table = Table("claim", "value", "spread", "limit", "recorded", "")
    for name in names:
        console.print(f"bench: {name} ...", style="dim")
        try:
            with MEASURES[name]() as turn:
                found = take_turns(turn)
        except RuntimeError as error:
            raise SystemExit(f"bench: {name}: {error}") from None
        for claim_name, row in found.items():
            claim, old = CLAIMS[claim_name], kept.get(claim_name)
            verdict = judge(claim, row, None if is_record else old, find_machine())
            bad += verdict != "ok"
            tight = "" if row.spread <= TIGHT else ", not under 5 %"
            cells = [f"{row.value:.3g} {claim.unit}", f"{row.spread:.1%} of {row.turns} turns{tight}"]
            table.add_row(claim_name, *cells, f"{claim.limit:g}", f"{old.value:.3g}" if old else "-", verdict)
        if is_record:
            head = {"date": f"{datetime.date.today()}", "commit": read_commit(), "machine": find_machine()}
            kept |= {name: Row(row.value, row.spread, row.turns, **head) for name, row in found.items()}
            rows = {name: asdict(kept[name]) for name in CLAIMS if name in kept}
            RECORD.write_text(json.dumps(rows, indent=2) + "\n")
    console.print(table)
    return 1 if bad else 0


def read_record() -> dict[str, Row]:
    """Return the rows of record.json by their claims."""
    return {name: Row(**row) for name, row in json.loads(RECORD.read_text()).items()}


def require_rows(kept: Mapping[str, Row]) -> None:
    """Exit if a claim has no row: a comparison that skips it would hide it."""
    if missing := [name for name in CLAIMS if name not in kept]:
        words = " ".join(dict.fromkeys(CLAIMS[name].measure for name in missing))
        raise SystemExit(f"bench: the record has no row for {', '.join(missing)}; fix: python -m bench record {words}")


def describe_age(kept: Mapping[str, Row], today: datetime.date) -> str:
    """Return which row is the oldest, and its age."""
    name = min(kept, key=lambda each: kept[each].date)
    days = (today - datetime.date.fromisoformat(kept[name].date)).days
    return f"bench: the oldest row is {name!r}, {days} days old ({kept[name].commit}, {kept[name].machine})"


def take_turns(turn: Turn) -> dict[str, Row]:
    """Repeat the turn until the median of each value is tight, or often enough."""
    turns: list[Mapping[str, float]] = []
    while True:
        turns.append(turn())
        if len(turns) < LEAST_TURNS:
            continue
        rows = {name: summarize([each[name] for each in turns]) for name in turns[0]}
        if len(turns) >= MOST_TURNS or all(row.spread <= TIGHT for row in rows.values()):
            return rows


def summarize(values: Sequence[float]) -> Row:
    """Return the median, and how well it is known; one disturbed turn changes neither much."""
    first, middle, third = statistics.quantiles(values, method="inclusive")
    return Row(middle, (third - first) / middle / len(values) ** 0.5, len(values))


def judge(claim: Claim, row: Row, old: Row | None, machine: str) -> str:
    """Return "ok", or what is wrong; only the limit counts if the record isn't tight, or has seconds of elsewhere."""
    if row.value > claim.limit:
        return "OVER THE LIMIT"
    if old is None or old.spread > TIGHT or (claim.unit == "s" and old.machine != machine):
        return "ok"
    felt = LEAST_FELT_S if claim.unit == "s" else 0.0
    return "WORSE" if row.value > old.value * (1 + 2 * TIGHT) + felt else "ok"


def find_machine() -> str:
    """Return what tells this machine from others: its processor, cores and system."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def read_commit() -> str:
    """Return the commit, with "-dirty" if launcher/ has been changed since; a measure changes the record itself."""
    git = ["git", "-C", str(RECORD.parents[1])]
    commit = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True).stdout
    is_dirty = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "launcher"], check=False).returncode
    return commit.strip() + "-dirty" * bool(is_dirty)


@contextlib.contextmanager
def _start() -> Iterator[Turn]:
    """Compare the runs of each turn, one right after the other: a machine's speed drifts."""
    with lab(2) as hosts:

        def turn() -> Mapping[str, float]:
            ours, warm, by_hand = (
                measures.first_all_reduce(hosts, TOOLS[name]) for name in ("launch", "launch --start warm", "ssh")
            )
            return {"first all-reduce / by hand": ours / by_hand, "warm: first all-reduce / by hand": warm / by_hand}

        yield turn


@contextlib.contextmanager
def _lines() -> Iterator[Turn]:
    with lab(measures.LINE_HOSTS) as hosts:
        yield lambda: {
            "8 million lines / pdsh": measures.show_lines(hosts, TOOLS["launch"])
            / measures.show_lines(hosts, TOOLS["pdsh"])
        }


@contextlib.contextmanager
def _idle() -> Iterator[Turn]:
    with lab(measures.IDLE_HOSTS) as hosts:
        yield lambda: {"64 idle hosts": measures.idle(hosts, TOOLS["launch"], IDLE_S)[0]}


@contextlib.contextmanager
def _stop() -> Iterator[Turn]:
    causes = {"Ctrl-C": "Ctrl-C", "launch killed": "SIGKILL to the tool", "a rank killed": "a rank is killed"}
    known = {fault.name: fault for fault in faults.FAULTS}
    with lab(2) as hosts:

        def seconds(name: str) -> float:
            fate = faults.cause(hosts, TOOLS["launch"], known[name])
            if fate.seconds is None:
                raise RuntimeError(f"{name}: {fate.left} processes are left")
            return fate.seconds

        yield lambda: {f"{words}, until nothing runs": seconds(name) for words, name in causes.items()}


MEASURES = {"start": _start, "lines": _lines, "idle": _idle, "stop": _stop}
