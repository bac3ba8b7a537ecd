"""What went wrong with hosts in earlier runs, as the records of the runs that this machine controlled say.

Nobody is excluded for it, and a record that can't be read costs nothing but what it says.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime

from launcher.errors import LauncherError
from launcher.runs.run_json import INCIDENTS
from launcher.runs.run_list import ORIGIN, ListedRun, RunList
from launcher.wording import count

_MENTIONED_S = 16 * 86400.0  # after the last incident of a host
_MOST_RUNS = 10  # of each host
_MOST_ENTRIES = 100  # of the list, each of which takes 0.4 ms to read
_MOST_BYTES = 3_000_000  # of records, which take 15 ms: of 9 runs on 128 hosts, or of more on fewer
_DAY_S = 86400

_Incidents = dict[str, float]  # in a run: what went wrong with a host, and when it did last


def describe(runs: RunList, names: Collection[str], now: float) -> dict[str, str]:
    """Return for each host with recent incidents `lost in 2 of its last 3 runs, the last time 2 days ago`.

    now: in wall-clock seconds.
    """
    known: dict[str, list[_Incidents]] = {name: [] for name in names}
    left_bytes = _MOST_BYTES
    with suppress(LauncherError):  # a list that can't be read, or that others can write
        for run in runs.read_all(_MOST_ENTRIES):
            left = [name for name, found in known.items() if len(found) < _MOST_RUNS]
            record = _read_record(runs, run) if isinstance(run, ListedRun) else b""
            left_bytes -= len(record)
            if not left or left_bytes < 0:
                break
            used = _read_attempts(record, now)
            for name in used.keys() & left:
                known[name].append(used[name])
    return {name: words for name, found in known.items() if (words := _describe(found, now))}


def _read_record(runs: RunList, run: ListedRun) -> bytes:
    """Return the run.json of a run, unless its hosts were those of `launch demo`, whose names others may have."""
    with suppress(OSError, ValueError, AttributeError):
        if json.loads(runs.read_kept(run.id, ORIGIN) or b"{}").get("command") != "demo":
            return (run.folder / "run.json").read_bytes()
    return b""


def _read_attempts(record: bytes, now: float) -> dict[str, _Incidents]:
    """Return what went wrong with each host that a run has used; of what has another form, what came before it."""
    incidents: dict[str, _Incidents] = {}
    # The form of all of it takes longer to check than its JSON to read.
    with suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        for attempt in json.loads(record)["attempts"]:
            for host in attempt["hosts"]:
                incidents.setdefault(host, {})
            at = datetime.fromisoformat(attempt["ended_at"]).timestamp()
            for host, what in attempt["blamed"].items():
                # A clock that was ahead would blame for years.
                if host in incidents and what in INCIDENTS and at <= now + _DAY_S:
                    incidents[host][what] = at  # the last one, since attempts are in their order
    return incidents


def _describe(runs: Collection[_Incidents], now: float) -> str:
    """Return what happened to a host in the last of these runs, and when; empty if that is long ago."""
    times = sorted((at, what) for incidents in runs for what, at in incidents.items())
    if not times or now - times[-1][0] > _MENTIONED_S:
        return ""
    what = " or ".join(dict.fromkeys(what for _, what in times))
    which = "its last run" if len(runs) == 1 else f"{sum(map(bool, runs))} of its last {len(runs)} runs"
    return f"{what} in {which}, the last time {_ago(now - times[-1][0])}"


def _ago(seconds: float) -> str:
    if seconds < 3600:
        return f"{count(max(1, round(seconds / 60)), 'minute')} ago"
    if seconds < 2 * _DAY_S:
        return f"{count(round(seconds / 3600), 'hour')} ago"
    return f"{count(round(seconds / _DAY_S), 'day')} ago"
