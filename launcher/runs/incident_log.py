"""What a machine remembers of each host: the last runs that used it, and what went wrong with it there.

A memory only: nobody is excluded for it. It is one small JSON file of the user's. Several runs may write it at the same
time, so each change is made under a lock, and the file is replaced as a whole. A file that can't be read or written
costs nothing but the memory.

A launch host and the hosts that control its runs have a file each, and tell each other what is in it whenever they
exchange anything. They tell times by the launch host's clock, because clocks differ. For a host that was forgotten, the
file keeps the time of that: what went wrong before isn't learned again from a machine that still remembers it.
"""

from __future__ import annotations

import fcntl
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
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
_MOST_TOLD = 200  # entries of a host
_SAME_S = 60.0  # what is told takes a while to arrive, and so its time comes out a little later
_MOST_TIME = 1e12

Incident = Literal[
    "lost", "failed its checks", "failed test-distributed", "had a broken GPU", "kept GPU memory in use",
    "had a GPU filled by another program",
]  # fmt: skip
_INCIDENTS = get_args(Incident)

_Result = TypeVar("_Result")
_Run = dict[str, Any]  # one incident in a run, or that there was none: `run`, `at` and `what`


@dataclass(slots=True)
class _Memory:
    """What is remembered of one host."""

    runs: list[_Run]  # by time
    forgotten_at: float = 0.0  # in wall-clock seconds; what was before isn't learned again


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

        def edit(hosts: _Hosts) -> None:
            for host, what in incidents.items():
                memory = hosts.setdefault(host, _Memory([]))
                memory.runs = _add(memory.runs, {"run": run_id, "at": round(at), "what": what})

        self._change(edit)

    def forget(self, names: Collection[str], now: float) -> list[str]:
        """Remove what is known of these hosts, and learn nothing older again.

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

    def tell(self, hosts: Collection[str]) -> str:
        """Return what is known of these hosts, for a host that will control a run of them."""
        return _encode({name: memory for name, memory in self._read().items() if name in hosts})

    def learn(self, told: str, ahead_s: float) -> None:
        """Add what the launch host tells: also forget what was forgotten there. A text that can't be read adds nothing.

        ahead_s: of this machine's clock, compared with that of the launch host.
        """

        found = _shift(_decode(told), ahead_s)

        def edit(hosts: _Hosts) -> None:
            for name, new in found.items():
                memory = hosts.setdefault(name, _Memory([]))
                if new.forgotten_at > memory.forgotten_at + _SAME_S:
                    memory.forgotten_at = new.forgotten_at
                    memory.runs = [run for run in memory.runs if run["at"] > new.forgotten_at]
                _add_told(memory, new.runs)

        if found:
            self._change(edit)

    def tell_of_runs(self, runs: Collection[str], ahead_s: float) -> str:
        """Return what is known of any host from these runs, for the launch host; ahead_s: as for `learn`."""
        hosts = {
            name: _Memory([run for run in memory.runs if run["run"] in runs]) for name, memory in self._read().items()
        }
        return _encode(_shift(hosts, -ahead_s))

    def learn_of_runs(self, told: str, runs: Mapping[str, Collection[str]], now: float) -> None:
        """Add what a host tells of these runs, each with the names of its hosts, and nothing else.

        A hostile host can thus blame the hosts of its own runs, as it can in any message, but no others.
        """

        added = {
            name: [
                {**run, "at": min(run["at"], round(now))}
                for run in memory.runs[:_MOST_TOLD]
                if name in runs.get(run["run"], ()) and run["what"] in (None, *_INCIDENTS)
            ]
            for name, memory in _decode(told).items()
        }

        def edit(hosts: _Hosts) -> None:
            for name, found in added.items():
                memory = hosts.setdefault(name, _Memory([]))
                memory.forgotten_at = min(memory.forgotten_at, round(now))  # by a clock that was ahead
                _add_told(memory, found)

        if any(added.values()):
            self._change(edit)

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


@dataclass(frozen=True, slots=True)
class SharedIncidents:
    """What a launch host and a host that controls runs of it exchange."""

    log: IncidentLog  # of the launch host
    runs: Mapping[str, Collection[str]]  # with the names of the hosts of each

    def tell(self) -> str:
        """Return what this machine knows of the hosts of these runs."""
        return self.log.tell({name for hosts in self.runs.values() for name in hosts})

    def learn(self, told: str) -> None:
        """Add what the other host tells of these runs."""
        self.log.learn_of_runs(told, self.runs, time.time())


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


def _shift(hosts: _Hosts, ahead_s: float) -> _Hosts:
    """Return the same with times of a clock that is so much ahead."""
    moved = {}
    for name, memory in hosts.items():
        runs = [{**run, "at": round(run["at"] + ahead_s)} for run in memory.runs]
        moved[name] = _Memory(runs, round(memory.forgotten_at + ahead_s) if memory.forgotten_at else 0)
    return moved


def _add(runs: list[_Run], new: _Run, same_s: float = 0.0) -> list[_Run]:
    """Return the last runs of a host with one more incident, or with a run in which there was none, by time.

    same_s: one that is known from the same run keeps its time, unless it happened again that much later.
    """
    same = [run for run in runs if run["run"] == new["run"]]
    if new["what"] is None and same:
        return runs
    if any(run["what"] == new["what"] and new["at"] <= run["at"] + same_s for run in same):
        return runs
    kept = [run for run in runs if run["run"] != new["run"] or run["what"] not in (None, new["what"])]
    ordered = sorted([*kept, new], key=lambda run: float(run["at"]))
    last = list(dict.fromkeys(run["run"] for run in ordered))[-_MOST_RUNS:]
    return [run for run in ordered if run["run"] in last]


def _add_told(memory: _Memory, runs: Iterable[_Run]) -> None:
    """Add what another machine knows of a host, unless that is older than what was forgotten."""
    for run in runs:
        if run["at"] > memory.forgotten_at:
            memory.runs = _add(memory.runs, run, _SAME_S)


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
