"""What a run does now, as its process writes it down (runs.state_keeper), and `launch ps`, `attach` and `wait` show it.

Times in the file are wall-clock seconds of the machine that controls the run. It is asked there, so what is told
elsewhere are the seconds since then. Nothing here does I/O.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from launcher.escapes import one_line
from launcher.hosts.ranges import fold_names
from launcher.wording import age, count, listed, ordinal

_MOST_HOSTS = 10_000
_MOST_NAME = 255
_MOST_NAMES = 30  # characters; more hosts than that are counted
_MOST_S = 1 << 32
_MOST_FOLDED = 100
_NUMBER = re.compile(r"[0-9]+")

Doing = dict[str, Any]  # what `launch ps --json` says of it


class Activity(Enum):
    """What a run does."""

    STARTING = "starting"  # it checks the hosts and starts the ranks
    RUNNING = "running"  # all ranks have started
    STOPPING = "stopping"  # the ranks are being stopped: by the user, or after a failure
    SEARCHING = "searching"  # for the host to blame, between two attempts
    PAUSED = "paused"  # until another attempt begins
    WAITING = "waiting"  # for hosts without which no attempt can start
    QUEUED = "queued"  # for GPUs that other runs have claimed


@dataclass(frozen=True, slots=True)
class RestartCount:
    """How the restarts of a run are counted, with the one that follows or runs now.

    A retry after a taken port, and another try to reach hosts, is no restart.
    """

    used: int = 0  # in all: the number of the newest one
    without_progress: int = 0  # of those, the ones that count toward --restarts N
    left: int = 0  # how many may still follow without progress

    def describe(self) -> str:
        """Return `3 restarts used, 1 without progress, 2 left`."""
        return f"{count(self.used, 'restart')} used, {self.without_progress} without progress, {self.left} left"


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run does, since when, and how its restarts are counted."""

    what: Activity
    since: float
    restarts: RestartCount
    hosts: Mapping[str, float] = field(default_factory=dict)  # that it waits for, and since when each is missing
    until: float | None = None  # the end of a pause
    place: int = 0  # in the queue
    behind: str = ""  # the run before it there: `ann's nightly`
    odd: tuple[str, ...] = ()  # GPUs and hosts that stand out while it runs

    def as_text(self) -> str:
        """Return it for the file."""
        return json.dumps({**asdict(self), "what": self.what.value})

    def as_doing(self, now: float, rebooting: Collection[str] = ()) -> Doing:
        """Return it for a row of `launch ps --json`; now: in wall-clock seconds; rebooting: hosts known to reboot."""
        since = min(self.hosts.values(), default=self.since)
        return {
            "what": self.what.value,
            "for_s": _round(now - since),
            "hosts": [*self.hosts],
            "rebooting": [name for name in self.hosts if name in rebooting],
            "left_s": None if self.until is None else _round(self.until - now),
            "restart": self.restarts.used,
            "place": self.place,
            "behind": self.behind,
            "odd": [*self.odd],
        }


def _round(seconds: float) -> float:
    return round(min(max(0.0, seconds), float(_MOST_S - 1)), 1)


def describe_doing(doing: Doing) -> str:
    """Return `running`, `waiting for g2 (rebooting, 4 min)`, `paused 20 s before restart 3` and the like."""
    what, restart = doing["what"], doing["restart"]
    if what == Activity.WAITING.value:
        rebooting = set(doing["rebooting"])
        parts = [
            ("rebooting, ", [name for name in doing["hosts"] if name in rebooting]),
            ("", [name for name in doing["hosts"] if name not in rebooting]),
        ]
        waited = _passed(doing["for_s"])
        return "waiting for " + listed(f"{fold_briefly(names)} ({word}{waited})" for word, names in parts if names)
    if what == Activity.PAUSED.value and doing["left_s"] is not None:
        return f"paused {_passed(doing['left_s'])} before restart {restart}"
    if what == Activity.QUEUED.value:
        return f"queued, {ordinal(doing['place'])}" + (f", behind {doing['behind']}" if doing["behind"] else "")
    if what == Activity.STARTING.value and restart:
        return f"starting restart {restart}"
    if what == Activity.RUNNING.value and doing["odd"]:
        first, *others = doing["odd"]
        return f"running, odd: {first}" + (f" and {len(others)} more" if others else "")
    if what == Activity.SEARCHING.value:
        return "searching for the host to blame"
    return str(what)


def fold_briefly(names: Sequence[str]) -> str:
    """Return `gpu[1-4]`, or how many these are if that is long; quick for any names."""
    # Another machine may have named them, and ClusterShell takes minutes for many names with several numbers.
    is_soon = len(names) <= _MOST_FOLDED and all(len(_NUMBER.findall(name)) <= 1 for name in names)
    folded = fold_names(names) if is_soon else ",".join(names)
    return folded if len(folded) <= _MOST_NAMES else count(len(names), "host")


def _passed(seconds: float) -> str:
    """Return whole minutes for what takes minutes: nobody needs the seconds of a wait."""
    minutes = int(seconds // 60)
    return f"{minutes} min" if 1 <= minutes < 60 else age(round(seconds)) if minutes else f"{round(seconds)} s"


def read_doing(found: object) -> Doing | None:
    """Return what `as_doing` gave on another machine, with clean names; None if it can't be that."""
    if not isinstance(found, dict) or found.get("what") not in [each.value for each in Activity]:
        return None
    names = [found.get("hosts"), found.get("rebooting")]
    numbers = [found.get("for_s"), found.get("restart")]
    is_left = found.get("left_s") is None or _is_number(found["left_s"])
    if not all(map(_are_names, names)) or not all(map(_is_number, numbers)) or not is_left:
        return None
    if found["what"] == Activity.WAITING.value and not found["hosts"]:
        return None
    place, behind = found.get("place", 0), found.get("behind", "")  # an older version has none
    if not isinstance(place, int) or not _is_number(place) or not isinstance(behind, str):
        return None
    odd = found.get("odd", [])
    if not _are_names(odd):
        return None
    hosts, rebooting, odd = ([one_line(name, _MOST_NAME) for name in some] for some in (*names, odd))
    return {**{key: found.get(key) for key in ("what", "for_s", "left_s", "restart")}, "hosts": hosts,
            "rebooting": rebooting, "place": place, "behind": one_line(behind, _MOST_NAME), "odd": odd}  # fmt: skip


def _are_names(found: object) -> bool:
    return isinstance(found, list) and len(found) <= _MOST_HOSTS and all(isinstance(each, str) for each in found)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST_S


def parse_state(text: str | bytes) -> RunState | None:
    """Return the state that `as_text` gave; None if it can't be that: another version may have written it."""
    try:
        found = json.loads(text)
        values = {key: found[key] for key in ("since", "hosts", "until")}
        values |= {key: found[key] for key in ("place", "behind") if key in found}
        values["odd"] = tuple(map(str, found.get("odd", ())))
        restarts = {key: found["restarts"][key] for key in ("used", "without_progress", "left")}
        state = RunState(Activity(found["what"]), restarts=RestartCount(**restarts), **values)
        times = [state.since, 0.0 if state.until is None else state.until, *state.hosts.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    is_well_formed = all(isinstance(time, (int, float)) and math.isfinite(time) for time in times)
    counts = [*asdict(state.restarts).values(), state.place]
    are_counts = all(isinstance(number, int) and _is_number(number) for number in counts)
    is_waiting = state.what is not Activity.WAITING or bool(state.hosts)
    return state if is_well_formed and are_counts and is_waiting and isinstance(state.behind, str) else None
