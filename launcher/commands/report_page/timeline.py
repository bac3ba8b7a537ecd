"""The attempts of a run as run.json has them, laid out on a line of time and as a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, tzinfo
from itertools import zip_longest

from launcher.commands.report_page.plot import TimeRange
from launcher.runs.run_json import Cause, EndedAttempt, RunJson
from launcher.wording import count, duration

_WIDTH = 1000
_LEAST_WIDTH = 3  # of a step that took a moment
_MOST_SHOWN = 200  # attempts, the last ones
_MOST_LETTERS = 300  # of the cause of one; torch names all keys that a state_dict lacks in one line
_STEPS = {
    "connect": "connecting", "check": "checks", "start": "start of the ranks", "first": "until the first line",
    "output": "output", "silent": "no output", "stop": "stop", "pause": "pause",
    "run": "running",
}  # fmt: skip
_HEADS = (
    "#", "began", "ended as", "connect", "check", "start", "first line", "output for", "stop", "pause", "hosts",
    "further",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt; times in wall-clock seconds."""

    hosts: int
    began_at: float
    steps: Sequence[tuple[str, float, float]]  # that it has made, each from when to when
    failed_at: float | None
    ended_at: float
    outcome: str
    cause: str
    has_progress: bool
    then: str


def read_attempts(record: RunJson, runs_since: float | None, now: float) -> list[Attempt]:
    """Return the attempts of a run.json, which has those that have ended, and the one that runs.

    runs_since: when its ranks were started, if there is one.
    """
    ended = [*map(_read_attempt, record.attempts)]
    if runs_since is None:
        return ended
    hosts = len(record.plan.nodes)
    steps = [("run", runs_since, now)]
    return [*ended, Attempt(hosts, runs_since, steps, None, now, "not yet", "", has_progress=False, then="")]


def _read_attempt(found: EndedAttempt) -> Attempt:
    cause = found.result.cause
    ends = [*asdict(found.steps).values(), cause and cause.at, found.ended_at]
    began_at = at = _read_time(found.began_at)
    steps = []
    for step, end in zip(_STEPS, ends, strict=False):  # without the last two, which follow an attempt or replace it
        if end and _read_time(end) > at:  # a rank may print before all of them are started
            steps.append((step, at, _read_time(end)))
            at = _read_time(end)
    return Attempt(
        len(found.hosts),
        began_at,
        steps,
        _read_time(cause.at) if cause else None,
        _read_time(found.ended_at),
        found.outcome,
        _describe_cause(cause) if cause else found.result.error or "",
        found.progress,
        found.then or "",
    )


def show_time(at: float, zone: tzinfo) -> str:
    """Return a time as the logs have it, to the second."""
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S}"


def _read_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _describe_cause(cause: Cause) -> str:
    explained = [cause.explanation.cause] if cause.explanation is not None else []
    text = [*cause.traceback[-1:], *explained, cause.text][0]
    return f"{cause.culprit}: {text if len(text) <= _MOST_LETTERS else f'{text[:_MOST_LETTERS]}...'}"


@dataclass(frozen=True, slots=True)
class Bar:
    """A step on the time line, from the left; words: about it."""

    kind: str
    words: str
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Row:
    """An attempt in the table."""

    before: Sequence[str]
    ended: str
    then: str
    after: Sequence[str]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The attempts as the page shows them."""

    heading: str
    title: str
    bars: Sequence[Bar]
    legend: Sequence[tuple[str, str]]
    rows: Sequence[Row]
    heads: Sequence[str] = _HEADS


def lay_out_attempts(attempts: Sequence[Attempt], times: TimeRange, zone: tzinfo) -> Timeline | None:
    """Return the part of the page about the attempts; None without any."""
    if not attempts:
        return None
    first = max(0, len(attempts) - _MOST_SHOWN)
    shown = attempts[first:]
    used = {step for attempt in shown for step, _, _ in attempt.steps} | ({"pause"} if shown[1:] else set())
    pairs = zip_longest(shown, shown[1:])
    return Timeline(
        f"{count(len(attempts), 'attempt')}{f', of which the last {_MOST_SHOWN}' if first else ''}",
        f"Time line of {count(len(shown), 'attempt')}: {', '.join(attempt.outcome for attempt in shown)}",
        [*_lay_out_bars(shown, times, zone)],
        [(step, words) for step, words in _STEPS.items() if step in used],
        [_describe(number, *pair, zone) for number, pair in enumerate(pairs, first)],
    )


def _describe(number: int, attempt: Attempt, following: Attempt | None, zone: tzinfo) -> Row:
    took = {step: duration(end - begin) for step, begin, end in attempt.steps}
    took["output"] = took.get("output") or took.get("run", "")
    if following is not None:
        took["pause"] = duration(following.began_at - attempt.ended_at)
    times = [took.get(step, "") for step in _STEPS if step not in ("silent", "run")]
    return Row(
        (str(number), show_time(attempt.began_at, zone)),
        f"{attempt.outcome}: {attempt.cause}" if attempt.cause else attempt.outcome,
        attempt.then,
        (*times, str(attempt.hosts), "yes" if attempt.has_progress else ""),
    )


def _lay_out_bars(attempts: Sequence[Attempt], times: TimeRange, zone: tzinfo) -> Iterator[Bar]:
    """Yield a bar for each step, and a mark where an attempt failed."""
    begin = min(times.begin, attempts[0].began_at)
    scale = _WIDTH / max(1e-3, times.end - begin)

    def place(kind: str, words: str, start: float, end: float) -> Bar:
        width = max(_LEAST_WIDTH, (end - start) * scale)
        return Bar(kind, words, min((start - begin) * scale, _WIDTH - width), width)

    for attempt in attempts:
        for step, start, end in attempt.steps:
            yield place(step, f"{_STEPS[step]}: {duration(end - start)}, from {show_time(start, zone)}", start, end)
        if attempt.failed_at is not None:
            words = f"{attempt.cause}, at {show_time(attempt.failed_at, zone)}"
            yield place("failure", words, attempt.failed_at, attempt.failed_at)
