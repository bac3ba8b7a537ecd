"""What a run does now, as its process writes it down, and `launch ps`, `attach` and `wait` show it.

Times in the file are wall-clock seconds of the machine that controls the run. It is asked there, so what is told
elsewhere are the seconds since then.
"""

# The types of fields are looked at by launcher.forms, so annotations are not postponed.
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from launcher.clock import wall_clock
from launcher.errors import LauncherError
from launcher.forms import Count, Most, Within
from launcher.hosts.ranges import fold_names
from launcher.wording import age, count, ordinal

if TYPE_CHECKING:
    from launcher.output.write_queue import WriteQueue

_MOST_LETTERS = 30  # more hosts than that are counted
_MOST_S = float((1 << 32) - 1)
_MOST_FOLDED = 16  # another machine may have named them; ClusterShell takes minutes for many with several numbers

Seconds = Annotated[float, Within(0, _MOST_S)]
Name = Annotated[str, Most(255)]
Names = Annotated[tuple[Name, ...], Most(10_000)]


class Activity(str, Enum):
    """What a run does."""

    STARTING = "starting"  # it checks the hosts and starts the ranks
    RUNNING = "running"  # all ranks have started
    STOPPING = "stopping"  # the ranks are being stopped: by the user, or after a failure
    SEARCHING = "searching"  # for the host to blame, between two attempts
    PAUSED = "paused"  # until another attempt begins
    WAITING = "waiting"  # for hosts without which no attempt can start
    QUEUED = "queued"  # for GPUs that other runs have claimed


@dataclass(frozen=True, slots=True)
class Doing:
    """What a run does now, as `launch ps --json` has it."""

    # `starting`, `running`, `waiting` (for hosts), `paused` (before a restart), `searching` (for the host to blame),
    # `stopping` or `queued` (for GPUs that other runs have claimed)
    what: Activity
    for_s: Seconds  # for how many seconds
    restart: Count  # the number of the restart that runs or follows; 0 for the first attempt
    hosts: Names = ()  # the hosts that a waiting run waits for
    left_s: Seconds | None = None  # the seconds that are left of a pause; `null` else
    place: Count = 0  # of a run that is `queued`: 1 if no other run waits before it
    behind: Name = ""  # the run right before it, or the one that has what it waits for: `ann's nightly`
    odd: Names = ()  # of a `running` run: the GPUs and hosts that stand out

    def __str__(self) -> str:
        """Return `running`, `waiting for g2 (4 min 10 s)`, `paused 20 s before restart 3` and the like."""
        if self.what is Activity.WAITING and self.hosts:
            return f"waiting for {fold_briefly(self.hosts)} ({age(self.for_s)})"
        if self.what is Activity.PAUSED and self.left_s is not None:
            return f"paused {age(self.left_s)} before restart {self.restart}"
        if self.what is Activity.QUEUED:
            return f"queued, {ordinal(self.place)}" + (f", behind {self.behind}" if self.behind else "")
        if self.what is Activity.STARTING and self.restart:
            return f"starting restart {self.restart}"
        if self.what is Activity.RUNNING and self.odd:
            first, *others = self.odd
            return f"running, odd: {first}" + (f" and {len(others)} more" if others else "")
        return "searching for the host to blame" if self.what is Activity.SEARCHING else self.what.value


@dataclass(frozen=True, slots=True)
class RestartCount:
    """How the restarts of a run are counted, with the one that follows or runs now.

    Another try to reach hosts is no restart.
    """

    # how many restarts the run had used by the end of the attempt, with the one that follows, whose number it is
    used: Count = 0
    # of those, how many count toward `--restarts N`: see [restarts](restarts.md#how-restarts-are-counted)
    without_progress: Count = 0
    left: Count = 0  # how many may still follow without progress

    def describe(self) -> str:
        """Return `3 restarts used, 1 without progress, 2 left`."""
        return f"{count(self.used, 'restart')} used, {self.without_progress} without progress, {self.left} left"


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run does, since when, and how its restarts are counted."""

    what: Activity
    since: float
    restarts: RestartCount
    hosts: Names = ()  # that it waits for
    until: float | None = None  # the end of a pause
    place: Count = 0  # in the queue
    behind: Name = ""
    odd: Names = ()

    def as_doing(self, now: float) -> Doing:
        """Return it for a row of `launch ps`; now: in wall-clock seconds."""
        return Doing(
            self.what,
            _round(now - self.since),
            self.restarts.used,
            self.hosts,
            None if self.until is None else _round(self.until - now),
            self.place,
            self.behind,
            self.odd,
        )


def fold_briefly(names: Sequence[str]) -> str:
    """Return `gpu[1-4]`, or how many these are if that is long."""
    folded = fold_names(names) if len(names) <= _MOST_FOLDED else ""
    return folded if 0 < len(folded) <= _MOST_LETTERS else count(len(names), "host")


def _round(seconds: float) -> float:
    return round(min(max(0.0, seconds), _MOST_S), 1)


class StateKeeper:
    """Knows what its run does, and writes each change down in another thread, so that no disk delays the run."""

    def __init__(self, write: Callable[[RunState], object] | None, disk: "WriteQueue") -> None:
        self._write = write
        self._disk = disk
        self.state = RunState(Activity.STARTING, wall_clock(), RestartCount())

    def change(self, what: Activity, **values: Any) -> None:
        """Note what the run does from now on; values: of RunState. A wait continues, whichever hosts it is for."""
        since = self.state.since if what is self.state.what else wall_clock()
        self.state = RunState(what, since, self.state.restarts, **values)
        if self._write is not None:
            with contextlib.suppress(LauncherError):  # no thread is left; a run needs no state
                self._disk.put(partial(self._write, self.state))

    def note_odd(self, subjects: Sequence[str]) -> None:
        """Note which GPUs and hosts stand out now."""
        if self.state.what is Activity.RUNNING:
            self.change(Activity.RUNNING, odd=tuple(subjects))

    def count(self, restarts: RestartCount) -> None:
        """Note how the restarts are counted from now on; the next change writes it."""
        self.state = replace(self.state, restarts=restarts)
