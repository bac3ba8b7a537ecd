"""What follows a failed attempt: another one, with which hosts and after which pause, or none, and why.

Nothing here does I/O: `decide` takes what is known of the attempts so far, and returns a value; `use_verdict` adds what
a search for the host to blame has found. The rules are those of
docs/decisions/0016-restarts.md; the table of tests/unit/runs/test_policy.py has a row for each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from launcher.hosts.ranges import fold_names
from launcher.runs.bisection import Verdict
from launcher.runs.run_state import RestartCount

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
MOST_WAITS = 300  # for hosts or the network, in a row: a day and an hour at the longest pause


class Outcome(Enum):
    """What ended an attempt, in the distinctions that decide what follows."""

    STOPPED = "stopped"  # by the user, or by a signal to `launch`
    INPUT = "input"  # wrong arguments, a missing script, a syntax error
    IMPORT = "import"  # a module is missing
    ERROR = "error"  # a rank failed by itself
    CONSEQUENCE = "consequence"  # ranks lost each other, or waited for each other too long
    HANG = "hang"
    HOST = "host"  # a host was lost, failed its checks, has a broken or busy GPU, or its helper got SIGTERM
    NETWORK = "network"  # all hosts were lost at once, or this machine was suspended
    DISK = "disk"  # a disk is full


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, as far as it decides what follows."""

    outcome: Outcome
    suspects: tuple[str, ...] = ()  # the hosts where it failed; empty if nothing points to a host
    signature: str | None = None  # of the failure; None: it may be any
    is_everywhere: bool = False  # it failed in the same way on all hosts
    has_trained: bool = False  # its ranks ran, and wrote something
    has_progress: bool = False  # it got further than the attempts before it
    is_refused: bool = False  # it could not start
    is_replaced: bool = False  # and other hosts take the place of those that failed
    has_spare: bool = False  # an idle host could take the place of the suspects
    is_start: bool = False  # a host was lost while the run still had to prove that it can do without its terminal
    has_left: bool = False  # processes of it are still alive, although they were killed


@dataclass(frozen=True, slots=True)
class Stop:
    """The run ends with the failure of its last attempt."""

    why: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Another attempt follows."""

    why: str
    pause_s: float
    without: tuple[str, ...] = ()  # hosts that others replace, if there are any
    is_blamed: bool = False  # these hosts are; otherwise they are the ones where something was noticed first
    is_unexplained: bool = False  # ranks waited for each other once more: a search may find the host to blame


def decide(attempts: Sequence[Ending], restarts: int) -> Stop | Restart:
    """Return what follows the last of these attempts; restarts: how many may follow without progress."""
    last = attempts[-1]
    why = _find_reason_to_stop(attempts)
    if why:
        return Stop(why)
    if not restarts or _count_spent(attempts) > restarts:
        return Stop(count_restarts(attempts, restarts).describe() if restarts else "--restarts is 0")
    is_suspicious = _is_of_one_host(attempts)
    is_out = last.outcome in _BLAMES_HOSTS or is_suspicious or _is_repeated_wait(attempts)
    return Restart(
        why=f"the same failure of {last.suspects[0]} twice" if is_suspicious else describe(last),
        pause_s=_find_pause(attempts),
        without=last.suspects if is_out else (),
        is_blamed=last.outcome in _BLAMES_HOSTS,
        is_unexplained=_is_repeated_wait(attempts),
    )


def count_restarts(attempts: Sequence[Ending], restarts: int, *, follows: bool = False) -> RestartCount:
    """Count the restarts after these attempts; follows: one more does, or runs now."""
    spent = _count_spent(attempts) if follows else _count_spent(attempts[:-1])
    if not follows and attempts and attempts[-1].has_progress:
        spent = 0
    used = number_next(attempts if follows else attempts[:-1])
    return RestartCount(used, spent, max(0, restarts - spent))


def number_next(attempts: Sequence[Ending]) -> int:
    """Return the number of the attempt that follows these: 0 for the first one, then that of its restart.

    One for which hosts were not there is tried again under the same number.
    """
    return sum(not waits_for_hosts(attempt) for attempt in attempts)


def waits_for_hosts(attempt: Ending) -> bool:
    """Return whether an attempt could not start because of hosts that may be usable later."""
    return attempt.is_refused and attempt.outcome in (Outcome.HOST, Outcome.NETWORK)


def use_verdict(decision: Restart, verdict: Verdict, hosts: Collection[str]) -> Restart:
    """Return the decision after a search among these hosts; what all of them have in common is blamed on none."""
    guilty = {*verdict.alone, *(found.culprits[0] for found in verdict.together if len(found.culprits) == 1)}
    if guilty and guilty < set(hosts):
        return replace(decision, without=tuple(name for name in hosts if name in guilty), is_blamed=True)
    if verdict.together and not guilty:  # without one of them, the others work
        members = verdict.together[0].hosts
        noticed = [name for name in decision.without if name in members]
        return replace(decision, without=tuple(noticed or members)[:1])
    return decision


_BLAMES_HOSTS = (Outcome.HOST, Outcome.DISK, Outcome.IMPORT)
_WAITS = (Outcome.CONSEQUENCE, Outcome.HANG)
_MAY_REPEAT = (Outcome.ERROR, Outcome.IMPORT, Outcome.DISK)


def _find_reason_to_stop(attempts: Sequence[Ending]) -> str:
    """Return why another attempt would fail in the same way, or an empty string."""
    last = attempts[-1]
    if last.outcome is Outcome.STOPPED:
        return "stopped"
    if last.is_start:
        return "a host was lost before the run could continue without its terminal"
    if last.has_left:  # never two attempts at once
        return "processes of this attempt are still running"
    if last.outcome is Outcome.INPUT:
        return "it would fail in the same way again"
    if last.outcome is Outcome.IMPORT:
        if last.is_everywhere:
            return "the module is missing on all hosts"
        if not any(attempt.has_trained for attempt in attempts):
            return "no attempt has imported it yet"
    if last.outcome is Outcome.DISK and last.is_everywhere:
        return "the disk that all hosts share is full"
    if _is_repeated(attempts) and not _is_of_one_host(attempts):
        return "the same failure twice without progress"
    if len(attempts) > MOST_WAITS and all(map(_is_waiting, attempts[-MOST_WAITS - 1 :])):
        return "no attempt could start for a day"
    return ""


def _is_waiting(attempt: Ending) -> bool:
    """Return whether the run only waits until its hosts respond again: nobody knows how long that takes."""
    return attempt.outcome is Outcome.NETWORK or (attempt.is_refused and attempt.outcome is Outcome.HOST)


def _is_repeated(attempts: Sequence[Ending]) -> bool:
    """Return whether the last attempt failed like one before it, without progress."""
    last, earlier = attempts[-1], _find_earlier(attempts)
    is_new = last.has_progress or earlier is None or earlier.signature != last.signature
    return last.outcome in _MAY_REPEAT and not is_new


def _is_of_one_host(attempts: Sequence[Ending]) -> bool:
    """Return whether the same failure came twice of one host alone, and a spare can show whether that host is to blame.

    If the spare fails in the same way, it is the second host: then the run ends.
    """
    last, earlier = attempts[-1], _find_earlier(attempts)
    is_its_own = len(last.suspects) == 1 and not last.is_everywhere and last.has_spare
    return is_its_own and _is_repeated(attempts) and earlier is not None and earlier.suspects == last.suspects


def _find_earlier(attempts: Sequence[Ending]) -> Ending | None:
    """Return the last failure before this one that has a signature, unless progress was made since."""
    for attempt in reversed(attempts[:-1]):
        if attempt.signature is not None and attempt.outcome in _MAY_REPEAT:
            return attempt
        if attempt.has_progress:
            break
    return None


def _count_spent(attempts: Sequence[Ending]) -> int:
    """Return how many restarts are spent with the next one: progress gives all back.

    A wait for hosts costs none.
    """
    spent = 0
    for attempt in attempts:
        if attempt.has_progress:
            spent = 0
        spent += not _is_waiting(attempt)
    return spent


def _is_repeated_wait(attempts: Sequence[Ending]) -> bool:
    """Return whether ranks waited for each other twice in a row without progress: a host may be the reason."""
    is_row = len(attempts) > 1 and all(attempt.outcome in _WAITS for attempt in attempts[-2:])
    return is_row and not attempts[-1].has_progress


def _find_pause(attempts: Sequence[Ending]) -> float:
    """Return the seconds to wait: none after the first failure, then twice as long each time."""
    last = attempts[-1]
    if last.is_replaced or (len(attempts) < 2 and last.outcome is not Outcome.NETWORK):
        return 0.0
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** max(0, min(len(attempts), 16) - 2)))


def describe(ending: Ending) -> str:
    """Return what ended an attempt that another one may follow, in a few words."""
    if ending.is_refused and not ending.suspects and ending.outcome is Outcome.ERROR:
        return "it could not start"
    hosts = fold_names(ending.suspects)
    return {
        Outcome.IMPORT: f"a module is missing on {hosts}",
        Outcome.ERROR: "a rank failed",
        Outcome.CONSEQUENCE: "ranks lost each other",
        Outcome.HANG: "the run hung",
        Outcome.HOST: f"{hosts} failed",
        Outcome.NETWORK: "the network of this machine failed",
        Outcome.DISK: f"a disk of {hosts} is full",
    }[ending.outcome]
