"""What a machine remembers of each host: the last runs that used it, and what went wrong with it there.

A memory only: nobody is excluded for it. It is one small JSON file of the user's. Several runs may write it at the same
time, so each change is made under a lock, and the file is replaced as a whole. A file that can't be read or written
costs nothing but the memory.

The machine on which runs are started has the file. Of a run that another machine controls, its row says how long ago a
host was blamed (run_rows.py), and whoever reads that notes it here. For a host that was forgotten, the file keeps the
time of that, since such a row may come again.
"""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from launcher.errors import LauncherError
from launcher.forms import FormError, load_json
from launcher.private_files import open_private, replace_private
from launcher.runs.state_home import find_state, own_state
from launcher.wording import count

HALF_LIFE_S = 7 * 86400.0  # of the blame for an incident
_LEAST_BLAME = 0.2  # of what is still mentioned: one incident for about 16 days
_MOST_RUNS = 10  # of each host
_MOST_HOSTS = 10_000
_DAY_S = 86400
_SAME_S = 60.0  # what is told again comes with a slightly later time
_MOST_TIME = 1e12

Incident = Literal[
    "lost", "failed its checks", "failed test-distributed", "had a broken GPU", "kept GPU memory in use",
    "had a GPU filled by another program",
]  # fmt: skip
INCIDENTS = get_args(Incident)

_Result = TypeVar("_Result")
_Run = dict[str, Any]  # one incident in a run, or that there was none: `run`, `at` and `what`


@dataclass(slots=True)
class _Memory:
    """What is remembered of one host."""

    runs: list[_Run]  # by time
    forgotten_at: float = 0.0  # in wall-clock seconds; what was before isn't noted again


_Hosts = dict[str, _Memory]


class IncidentLog:
    """The incidents of hosts in earlier runs, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def of_user(variables: Mapping[str, str]) -> IncidentLog:
        """Return what is remembered for this user on this machine; variables: the environment."""
        return IncidentLog(find_state(variables) / "hosts.json")

    def note(self, run_id: str, at: float, incidents: Mapping[str, Incident | None]) -> None:
        """Record that a run used these hosts, each with what went wrong with it, if anything did.

        at: wall-clock seconds. A run counts once, however often it is noted, and so does each kind of incident in it.
        """
        self.note_all(run_id, [(host, at, what) for host, what in incidents.items()])

    def note_all(self, run_id: str, incidents: Sequence[tuple[str, float, Incident | None]]) -> None:
        """Record the same of incidents at several times: each has its host, when it was, and what went wrong."""

        def edit(hosts: _Hosts) -> None:
            for host, at, what in incidents:
                memory = hosts.setdefault(host, _Memory([]))
                if at > memory.forgotten_at:
                    memory.runs = _add(memory.runs, {"run": run_id, "at": round(at), "what": what})

        self._change(edit)

    def forget(self, names: Collection[str], now: float) -> list[str]:
        """Remove what is known of these hosts, and note nothing older again.

        Return those of which anything was known; raise LauncherError if the file can't be written.
        """

        def edit(hosts: _Hosts) -> list[str]:
            known = [name for name in names if name in hosts and hosts[name].runs]
            hosts.update({name: _Memory([], round(now)) for name in names})
            return known

        forgotten = self._change(edit)
        if forgotten is None:
            raise LauncherError(f"can't write {self._path}", "see who owns it, and whether its disk is full")
        return forgotten

    def describe(self, names: Collection[str], now: float) -> dict[str, str]:
        """Return for each host with recent incidents `lost in 2 of its last 3 runs, the last time 2 days ago`."""
        found = {}
        hosts = self._read()
        for name in names:
            runs = hosts[name].runs if name in hosts else []
            runs = [run for run in runs if run["at"] <= now + _DAY_S]  # a clock that was ahead would blame for years
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
                before = _encode(hosts)
                result = edit(hosts)
                if (after := _encode(hosts)) != before:
                    replace_private(self._path, after)
                return result
        except OSError:  # no home directory, a full or read-only disk: a run needs no memory
            return None

    def _read(self) -> _Hosts:
        try:
            if self._path.exists():
                own_state(self._path.parent)
            return _decode(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}


def _encode(hosts: _Hosts) -> str:
    """Return the content of the file, with the hosts of which something was learned last."""
    entries = {
        name: [*([{"forgotten_at": memory.forgotten_at}] if memory.forgotten_at else []), *memory.runs]
        for name, memory in hosts.items()
    }
    kept = sorted(((name, found) for name, found in entries.items() if found), key=lambda item: _find_time(item[1][-1]))
    return json.dumps(dict(kept[-_MOST_HOSTS:]))


def _find_time(entry: Mapping[str, Any]) -> float:
    return float(entry.get("at", entry.get("forgotten_at")))


def _decode(text: str) -> _Hosts:
    """Return what was encoded; of anything else, what has this form."""
    try:
        content = load_json(text.encode("utf-8", "replace"))
    except FormError:
        return {}
    lists = content.items() if isinstance(content, dict) else ()
    return {host: _decode_memory(entries) for host, entries in lists if isinstance(entries, list)}


def _decode_memory(entries: list[Any]) -> _Memory:
    marks = [entry["forgotten_at"] for entry in entries if isinstance(entry, dict) and "forgotten_at" in entry]
    runs = [{key: entry.get(key) for key in ("run", "at", "what")} for entry in entries if _is_run(entry)]
    return _Memory(runs, max(filter(_is_time, marks), default=0))


def _add(runs: list[_Run], new: _Run) -> list[_Run]:
    """Return the last runs of a host with one more incident, or with a run in which there was none, by time.

    One that is known from the same run keeps its time, unless it happened again later.
    """
    same = [run for run in runs if run["run"] == new["run"]]
    if new["what"] is None and same:
        return runs
    if any(run["what"] == new["what"] and new["at"] <= run["at"] + _SAME_S for run in same):
        return runs
    kept = [run for run in runs if run["run"] != new["run"] or run["what"] not in (None, new["what"])]
    ordered = sorted([*kept, new], key=lambda run: float(run["at"]))
    last = list(dict.fromkeys(run["run"] for run in ordered))[-_MOST_RUNS:]
    return [run for run in ordered if run["run"] in last]


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
        and _is_time(run.get("at"))
        and isinstance(run.get("what"), str | None)
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < _MOST_TIME
