"""Find the rank that did not join a collective, from the errors of those that timed out. Nothing here does I/O.

On GPUs the error comes from the watchdog thread of PyTorch's ProcessGroupNCCL, which names the collective by its
sequence number (SeqNum); the missing rank prints nothing, or a lower number. gloo prints no number, and its
other ranks then lose their connection to the one that gave up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from launcher.diagnosis.signatures import Explanation, Kind
from launcher.wording import fold_ranks

# `[PG ID 0 PG GUID 0(default_pg) Rank 1]` or `[Rank 14]`, depending on torch's version.
_REPORT = re.compile(
    r"\[(?P<group>[^\[\]]{0,100})Rank \d+\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(?P<number>\d{1,18}), OpType=(?P<operation>\w{1,60})"
)
_GLOO = re.compile(r"Timed out waiting \d{1,18}ms for (?:recv|send) operation")
_LOST = re.compile(r"Connection (?:closed|reset) by peer|Broken pipe")
_MAX_NAMED = 8  # ranges of ranks


@dataclass(frozen=True, slots=True)
class _Wait:
    """The collective in which a rank timed out; sequence numbers count per process group."""

    number: int
    operation: str
    group: str

    def __str__(self) -> str:
        return f"{self.operation} number {self.number}"


def explain_wait(stderr_of: Mapping[int, str], ranks: Collection[int]) -> Explanation | None:
    """Name the ranks to suspect, or return None if no collective timed out.

    stderr_of: the end of each rank's stderr, by rank; ranks: all ranks of the run, empty if unknown.
    """
    waits = {rank: wait for rank, stderr in stderr_of.items() if (wait := _find_wait(stderr)) is not None}
    return _compare(waits, ranks) if waits else _find_silent(stderr_of, ranks)


def _find_silent(stderr_of: Mapping[int, str], ranks: Collection[int]) -> Explanation | None:
    waiting = {rank for rank, stderr in stderr_of.items() if _GLOO.search(stderr)}
    silent = set(ranks) - waiting - {rank for rank, stderr in stderr_of.items() if _LOST.search(stderr)}
    if not waiting or not silent:
        return None
    return _explain(
        f"{name_ranks(waiting)} waited for the others, and {name_ranks(silent)} never joined", name_ranks(silent)
    )


def _compare(waits: Mapping[int, _Wait], ranks: Collection[int]) -> Explanation:
    if len({wait.group for wait in waits.values()}) > 1:
        return _explain(
            f"{name_ranks(waits)} waited for others, in several process groups", "the ranks that printed nothing"
        )
    low, high = (pick(waits.values(), key=lambda wait: wait.number) for pick in (min, max))
    if low.number < high.number:
        late = [rank for rank, wait in waits.items() if wait.number == low.number]
        verb = "was" if len(late) == 1 else "were"
        return _explain(f"{name_ranks(late)} {verb} still in {low} while others waited in {high}", name_ranks(late))
    silent = set(ranks) - waits.keys()
    is_part = "GUID" in high.group and "default_pg" not in high.group  # silent ranks may not belong to it
    if silent and not is_part:
        waiting = f"{name_ranks(waits)} waited in {high}"
        return _explain(f"{waiting}, and {name_ranks(silent)} never joined", name_ranks(silent))
    if ranks and not is_part:
        return Explanation(
            "watchdog",
            f"all ranks waited in {high}: the network between them fails, or one step takes longer than the timeout",
            "test the network with launch check; allow more time with init_process_group(timeout=...)",
            Kind.CONSEQUENCE,
        )
    return _explain(f"{name_ranks(waits)} waited in {high}, and another never joined", "the one that printed nothing")


def name_ranks(ranks: Collection[int]) -> str:
    """Return `rank 3` or `ranks 0, 2-7`: up to eight ranges, and the number of all other ranks."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {fold_ranks(ranks, most=_MAX_NAMED)}"


def _explain(cause: str, suspect: str) -> Explanation:
    fix = f"check whether the last lines of {suspect} show a hang or another branch of the script"
    return Explanation("watchdog", cause, fix, Kind.CONSEQUENCE)


def _find_wait(stderr: str) -> _Wait | None:
    """Return the earliest collective that timed out on a rank; later ones only waited for that one."""
    waits: Sequence[_Wait] = [
        _Wait(int(report["number"]), report["operation"], report["group"]) for report in _REPORT.finditer(stderr)
    ]
    return min(waits, key=lambda wait: wait.number, default=None)
