"""What went wrong with hosts in earlier runs, as the records of the runs that this machine controlled say.

Nobody is excluded for it, and a record that can't be read costs nothing but what it says.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime

from launcher.errors import LauncherError
from launcher.runs.run_json import INCIDENTS
from launcher.runs.run_list import ListedRun, RunList
from launcher.wording import age

_MENTIONED_S = 16 * 86400.0
_MOST_RUNS = 30  # the newest; a record of 128 hosts takes 2 ms to read
_DAY_S = 86400


def describe(runs: RunList, names: Collection[str], now: float) -> dict[str, str]:
    """Return for each host with which something went wrong lately `lost 2 days ago, in run 20261120-091233`.

    now: in wall-clock seconds.
    """
    found: dict[str, str] = {}
    with suppress(LauncherError):  # a list that can't be read, or that others can write
        for run in runs.read_all(_MOST_RUNS):
            for name, (what, ago_s) in _read_incidents(run, now).items() if isinstance(run, ListedRun) else ():
                if name in names and ago_s < _MENTIONED_S:
                    found.setdefault(name, f"{what} {age(max(0.0, ago_s))} ago, in run {run.id}")
    return found


def _read_incidents(run: ListedRun, now: float) -> dict[str, tuple[str, float]]:
    """Return what went wrong last with each host, and how many seconds ago."""
    incidents = {}
    # The form of all of it takes longer to check than its JSON to read.
    with suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError):
        for attempt in run.read_json()["attempts"]:
            ago_s = now - datetime.fromisoformat(attempt["ended_at"]).timestamp()
            for host, what in attempt["blamed"].items():
                if what in INCIDENTS and ago_s > -_DAY_S:  # a clock that was ahead would blame for years
                    incidents[host] = what, ago_s
    return incidents
