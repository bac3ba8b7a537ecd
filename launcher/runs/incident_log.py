"""What the launch host remembers of each host: the last runs that used it, and what went wrong with it there.

A memory only: nobody is excluded for it. It is one small JSON file of the user's. Several runs may write it at the same
time, so each change is made under a lock, and the file is replaced as a whole. A file that can't be read or written
costs nothing but the memory.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from launcher.errors import LauncherError
from launcher.private_files import open_private
from launcher.runs.state_home import find_state, own_state
from launcher.wording import count

HALF_LIFE_S = 7 * 86400.0  # of the blame for an incident
_LEAST_BLAME = 0.2  # of what is still mentioned: one incident for about 16 days
_MOST_RUNS = 10  # of each host
_MOST_HOSTS = 10_000
_DAY_S = 86400

_Result = TypeVar("_Result")
_Hosts = dict[str, list[dict[str, Any]]]  # host -> its runs, each with `run`, `at` and `what`


class IncidentLog:
    """The incidents of hosts in earlier runs, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def of_user(variables: Mapping[str, str]) -> IncidentLog:
        """Return what is remembered for this user on this machine; variables: the environment."""
        return IncidentLog(find_state(variables) / "hosts.json")

    def note(self, run_id: str, at: float, incidents: Mapping[str, str | None]) -> None:
        """Record that a run used these hosts, each with what went wrong with it, if anything did.

        at: wall-clock seconds. A run counts once, however often it is noted, and so does each kind of incident in it.
        """

        def edit(hosts: _Hosts) -> None:
            for host, what in incidents.items():
                known = hosts.get(host, [])
                if what is None and any(run["run"] == run_id for run in known):
                    continue
                runs = [run for run in known if run["run"] != run_id or run["what"] not in (None, what)]
                runs.append({"run": run_id, "at": round(at), "what": what})
                last = list(dict.fromkeys(run["run"] for run in runs))[-_MOST_RUNS:]
                hosts[host] = [run for run in runs if run["run"] in last]

        self._change(edit)

    def forget(self, names: Collection[str]) -> list[str]:
        """Remove what is known of these hosts; return those of which anything was; raise LauncherError if it can't."""
        forgotten = self._change(lambda hosts: [name for name in names if hosts.pop(name, None)])
        if forgotten is None:
            raise LauncherError(f"can't write {self._path}", "see who owns it, and whether its disk is full")
        return forgotten

    def describe(self, names: Collection[str], now: float) -> dict[str, str]:
        """Return for each host with recent incidents `lost in 2 of its last 3 runs, the last time 2 days ago`."""
        found = {}
        hosts = self._read()
        for name in names:
            runs = hosts.get(name, [])
            if find_blame(runs, now) >= _LEAST_BLAME:
                found[name] = _describe(runs, now)
        return found

    def _change(self, edit: Callable[[_Hosts], _Result]) -> _Result | None:
        """Change the content under a lock; return what `edit` returns, or None if the file can't be written."""
        try:
            own_state(self._path.parent)
            with open(self._path.with_suffix(".lock"), "w", opener=open_private) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                hosts = self._read()
                result = edit(hosts)
                self._write(hosts)
                return result
        except OSError:  # no home directory, a full or read-only disk: a run needs no memory
            return None

    def _read(self) -> _Hosts:
        try:
            if self._path.exists():
                own_state(self._path.parent)
            content = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {
            str(host): [run for run in runs if _is_run(run)] for host, runs in content.items() if isinstance(runs, list)
        }

    def _write(self, hosts: _Hosts) -> None:
        kept = sorted(hosts.items(), key=lambda entry: entry[1][-1]["at"] if entry[1] else 0)[-_MOST_HOSTS:]
        fresh = self._path.with_suffix(f".{os.getpid()}")
        with open(fresh, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(dict(kept), file)
        fresh.replace(self._path)


def find_blame(runs: Collection[Mapping[str, Any]], now: float) -> float:
    """Return the number of incidents, each of them worth half as much after every week."""
    ages = [max(0.0, now - run["at"]) for run in runs if run["what"]]
    return math.fsum(0.5 ** (age / HALF_LIFE_S) for age in ages)


def _describe(runs: Collection[Mapping[str, Any]], now: float) -> str:
    incidents = [run for run in runs if run["what"]]
    distinct = {run["run"] for run in runs}
    bad = {run["run"] for run in incidents}
    what = " or ".join(dict.fromkeys(run["what"] for run in incidents))
    which = "its last run" if len(distinct) == 1 else f"{len(bad)} of its last {len(distinct)} runs"
    return f"{what} in {which}, the last time {_ago(now - incidents[-1]['at'])}"


def _ago(seconds: float) -> str:
    if seconds < 3600:
        return f"{count(max(1, round(seconds / 60)), 'minute')} ago"
    if seconds < 2 * _DAY_S:
        return f"{count(round(seconds / 3600), 'hour')} ago"
    return f"{count(round(seconds / _DAY_S), 'day')} ago"


def _is_run(run: object) -> bool:
    return (
        isinstance(run, dict)
        and isinstance(run.get("run"), str)
        and isinstance(run.get("at"), int | float)
        and isinstance(run.get("what"), str | None)
    )
