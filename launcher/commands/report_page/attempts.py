"""The attempts of a run as run.json has them, as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, tzinfo
from itertools import zip_longest

from launcher.runs.run_json import Cause, EndedAttempt, RunJson
from launcher.wording import count, duration

_MOST_SHOWN = 200  # attempts, the last ones
_MOST_LETTERS = 300  # of the cause of one; torch names all keys that a state_dict lacks in one line
_STEPS = ("connect", "check", "start", "first line", "output for", "silent", "stop")  # one after the other
_TOLD = ("connect", "check", "start", "first line", "output for", "stop", "pause")
_HEADS = ("#", "began", "ended as", *_TOLD, "hosts", "further")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt; times in wall-clock seconds."""

    began_at: float
    ended_at: float
    took_s: Mapping[str, float]  # by the step
    ended: str
    hosts: int
    has_progress: bool = False
    then: str = ""


def read_attempts(record: RunJson, runs_since: float | None, now: float) -> list[Attempt]:
    """Return the attempts of a run.json, which has those that have ended, and the one that runs.

    runs_since: when its ranks were started, if there is one.
    """
    ended = [*map(_read_attempt, record.attempts)]
    if runs_since is None:
        return ended
    return [*ended, Attempt(runs_since, now, {"output for": now - runs_since}, "not yet", len(record.plan.nodes))]


def _read_attempt(found: EndedAttempt) -> Attempt:
    cause = found.result.cause
    ends = [*asdict(found.steps).values(), cause and cause.at, found.ended_at]
    began_at = at = _read_time(found.began_at)
    took_s = {}
    for step, end in zip(_STEPS, ends, strict=True):
        if end and _read_time(end) > at:  # a rank may print before all of them are started
            took_s[step] = _read_time(end) - at
            at = _read_time(end)
    why = _describe_cause(cause) if cause else found.result.error
    ended = f"{found.outcome}: {why}" if why else found.outcome
    ended_at = _read_time(found.ended_at)
    return Attempt(began_at, ended_at, took_s, ended, len(found.hosts), found.progress, found.then or "")


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
class Row:
    """An attempt in the table."""

    before: Sequence[str]
    ended: str
    then: str
    after: Sequence[str]


@dataclass(frozen=True, slots=True)
class AttemptTable:
    """The attempts as the page shows them."""

    heading: str
    rows: Sequence[Row]
    heads: Sequence[str] = _HEADS


def tabulate(attempts: Sequence[Attempt], zone: tzinfo) -> AttemptTable | None:
    """Return the part of the page about the attempts; None without any."""
    if not attempts:
        return None
    first = max(0, len(attempts) - _MOST_SHOWN)
    shown = attempts[first:]
    pairs = enumerate(zip_longest(shown, shown[1:]), first)
    return AttemptTable(
        f"{count(len(attempts), 'attempt')}{f', of which the last {_MOST_SHOWN}' if first else ''}",
        [_describe(number, attempt, following, zone) for number, (attempt, following) in pairs],
    )


def _describe(number: int, attempt: Attempt, following: Attempt | None, zone: tzinfo) -> Row:
    took_s = dict(attempt.took_s)
    if following is not None:
        took_s["pause"] = following.began_at - attempt.ended_at
    times = [duration(took_s[step]) if step in took_s else "" for step in _TOLD]
    return Row(
        (str(number), show_time(attempt.began_at, zone)),
        attempt.ended,
        attempt.then,
        (*times, str(attempt.hosts), "yes" if attempt.has_progress else ""),
    )
