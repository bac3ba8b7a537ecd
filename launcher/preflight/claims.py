"""Say which GPUs that a run would use are claimed by other runs, and what can be done about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.clock import short_time
from launcher.errors import ChecksFailed
from launcher.hosts.ranges import fold_numbers
from launcher.job.facts import BoxClaim
from launcher.preflight.findings import PROBLEM, WARNING, CheckedHost, Finding, refuse_problems
from launcher.wording import age


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """What a run claims on its hosts, for one attempt."""

    run: str
    name: str | None
    since: float  # wall-clock seconds
    hosts: int  # the first of them; those behind are spares, which are only looked at
    shares: bool = False  # start on claimed GPUs, too
    continues: bool = False  # after an attempt, whose GPUs others may share
    until: float | None = None  # wall-clock seconds: when the run will be stopped

    def as_fields(self, *, waits: bool = False) -> dict[str, Any]:
        """Return what CLAIM says of it to a host; waits: for a place in the queue."""
        return {
            "run": self.run, "name": self.name, "since": self.since, "shares": self.shares,
            "continues": self.continues, "until": self.until, "waits": waits,
        }  # fmt: skip


class GpusClaimedError(ChecksFailed):
    """Other runs have claimed what this one would use, and nothing else is wrong."""


def refuse_claimed(findings: Iterable[Finding], claimed: Collection[Finding]) -> None:
    """Raise ChecksFailed if a finding would break the run, and GpusClaimedError if only the claimed ones would."""
    findings = list(findings)
    refuse_problems(finding for finding in findings if finding not in claimed)
    try:
        refuse_problems(findings)
    except ChecksFailed as error:
        raise GpusClaimedError(error.message, hosts=error.hosts, findings=error.findings) from None


def find_claimed(
    node: CheckedHost, gpus: Collection[int], claims: Sequence[BoxClaim], now: float, *, shares: bool
) -> list[Finding]:
    """Return a finding for each run that has claimed what this one would use.

    gpus: that it would use; claims: of other runs that overlap with them; now: wall-clock seconds.
    """
    fix = "wait with --queue, or start anyway with --share"
    if free := node.name_free(len(gpus)):
        fix = f"choose free GPUs with {free}, {fix}"
    return [
        Finding((node.name,), _describe(claim, gpus, now), "" if shares else fix, WARNING if shares else PROBLEM)
        for claim in claims
    ]


def _describe(claim: BoxClaim, gpus: Collection[int], now: float) -> str:
    own = sorted({*claim.gpus} & {*gpus})
    what = f"GPU {fold_numbers(own)}" if own else "GPUs"
    return f"{what}: {describe_claim(claim, now)}"


def describe_claim(claim: BoxClaim, now: float) -> str:
    """Return `ann, run 20261124-091233 (nightly), for 2 h`; now: wall-clock seconds."""
    name = f" ({claim.name})" if claim.name else ""
    waiting = ", in the queue" if claim.is_waiting else ""
    until = f", until {short_time(claim.until, now)}" if claim.until is not None else ""
    shared = ", shared (--share)" if claim.is_shared else ""
    if not claim.run:
        return f"{claim.user}, a run that doesn't respond{waiting}"
    return f"{claim.user}, run {claim.run}{name}, for {age(max(0.0, now - claim.since))}{until}{shared}{waiting}"
