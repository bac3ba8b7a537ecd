"""The queue for GPUs that other runs have claimed: on each host a line of places (node/claims.py).

A run takes a place on all of its hosts. They have the runs in one order, by when they began, so no two of them wait for
each other. When no run is before it on as many hosts as it needs, and these are free, it claims all of them, or none.

Processes without a claim, of which no host says when they end, are looked for at each start of the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NoReturn

from launcher.errors import EXIT_PREFLIGHT, HostsUnreachable, LauncherError
from launcher.hosts.host import Host
from launcher.job.facts import BoxClaim
from launcher.job.job import Job
from launcher.job.plan import used_gpus
from launcher.node import messages
from launcher.preflight.claims import ClaimOrder
from launcher.preflight.findings import CheckedHost
from launcher.preflight.gpus import name_user
from launcher.session.connection import Event
from launcher.session.session import Session
from launcher.wording import ordinal

AGAIN_S = 20.0  # between two looks at hosts that were lost or busy, while the run keeps its places in the queue
_FRESH_S = 10.0  # how long it counts which processes were seen on GPUs


class QueueTimeoutError(LauncherError):
    """The run was in the queue for as long as --queue allows."""

    exit_code = EXIT_PREFLIGHT


class BusyError(Exception):
    """It is the run's turn, and processes without a claim use the GPUs: the hosts are to be looked at again."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a run in the queue."""

    number: int  # 1: no other run waits before it
    whom: str = ""  # `ann's nightly`: right before it, or has what it waits for; `pid 42 (python) of bob` has no claim
    host: str = ""  # where that is so

    def describe(self) -> str:
        """Return `2nd, behind ann's nightly on gpu1`."""
        return ordinal(self.number) + (f", behind {self.whom} on {self.host}" if self.whom else "")


class Queue:
    """The places of a run on hosts, over one session; only it sends CLAIM there."""

    def __init__(
        self, job: Job, session: Session, order: ClaimOrder, needed: int, on_place: Callable[[Place], object], *,
        with_checks: bool = True,
    ) -> None:  # fmt: skip
        """needed: how many of the session's hosts; on_place: gets the place, again and again, but not the turn.

        with_checks: wait also for the end of processes without a claim.
        """
        self._job = job
        self._session = session
        self._order = order
        self._needed = needed
        self._on_place = on_place
        self._wanted: dict[int, list[int]] = {}  # GPUs, by index of the host; none: a run doesn't wait there
        self._rivals: dict[int, Sequence[BoxClaim]] = {}  # in the way, by index of the host
        self._with_checks = with_checks
        self._busy: dict[int, str] = {}  # what uses the GPUs, by index of the host, with or without a claim
        self._seen_at = 0.0  # by time.monotonic()
        self._decided: dict[int, bool] = {}  # whether its GPUs are claimed, while that is tried

    async def wait(self, deadline: float) -> tuple[Host, ...]:
        """Return the hosts whose GPUs are now the run's; `Session.idle` holds them until its attempt takes them.

        deadline: by time.monotonic(). Raise Interrupted for a signal, QueueTimeoutError, HostsUnreachable if too few
        hosts respond, and BusyError; with these two the hosts hold the places.
        """
        session = self._session
        holding: Collection[int] = ()
        with session.catch_signals(), session.subscribe(messages.CLAIMED, self._take):
            try:
                await self._line_up()
                if self._is_short():  # the places on the other hosts stay for the next try
                    await session.pump(self._has_all_answers)
                self._refuse_lost()
                while True:
                    await session.pump(lambda: self._may_claim() or self._is_short(), deadline)
                    self._refuse_lost()
                    refuse_late(deadline)
                    free = self._find_free()
                    chosen = [index for index in free if index not in self._busy][: self._needed]
                    if len(chosen) < self._needed:
                        await self._wait_for_busy(free, deadline)
                    if await self._claim(chosen):
                        holding = chosen
                        return tuple(session.hosts[index] for index in chosen)
            except (HostsUnreachable, BusyError):
                holding = range(len(session.hosts))
                raise
            finally:
                await session.stop_all(timeout_s=0, stays=holding)

    async def _line_up(self) -> None:
        """Ask which GPUs the hosts have, and take a place on each."""
        session, states, job = self._session, self._session.states, self._job
        session.open(facts=True, gpus=job.wants_gpus, pythons=[], workdir=None, script=None, checks=False)
        await session.pump(lambda: all(state.facts or state.failure for state in states))
        for index, state in enumerate(states):
            if state.facts is not None and state.failure is None:
                if self._with_checks and (user := name_user(CheckedHost(job, session.hosts[index], state.facts))):
                    self._busy[index] = user
                self._wanted[index] = [gpu.index for gpu in used_gpus(job, session.hosts[index], state.facts)]
                if self._wanted[index]:
                    self._send(index, waits=True)
        self._seen_at = time.monotonic()

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def _living(self) -> list[int]:
        return [index for index, state in enumerate(self._session.states) if state.failure is None]

    def _is_short(self) -> bool:
        return len(self._living()) < self._needed

    def _refuse_lost(self) -> None:
        if self._is_short():
            raise HostsUnreachable(self._session.failures())

    # ---- places -----------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        """Take an answer: what is in the way of a place, or of a claim."""
        index, rivals = event.index, event.fields["rivals"]
        if not event.fields["waits"]:
            self._decided[index] = not rivals
            return
        self._rivals[index] = rivals

    def _has_all_answers(self) -> bool:
        """Return whether all hosts have said what is before this run; say its place."""
        living = self._living()
        place = self._find_place(living)
        if place.whom:
            self._on_place(place)
        return all(index in self._rivals for index, gpus in self._wanted.items() if gpus and index in living)

    def _find_place(self, living: Collection[int]) -> Place:
        rivals = [(index, claim) for index, claims in self._rivals.items() if index in living for claim in claims]
        ahead = [(index, claim) for index, claim in rivals if claim.is_waiting]
        holders = [(index, claim) for index, claim in rivals if not claim.is_waiting]
        number = 1 + len({(claim.user, claim.run) for _, claim in ahead})
        for index, claim in [*reversed(ahead), *holders]:
            return Place(number, claim.title, self._session.hosts[index].name)
        return Place(number)

    # ---- the turn ---------------------------------------------------------------------------------------------------

    def _may_claim(self) -> bool:
        """Return whether enough hosts are free, where no run is before this one."""
        return self._has_all_answers() and len(self._find_free()) >= self._needed

    def _find_free(self) -> list[int]:
        """Return the hosts where nobody is in the way, or on which it needs no GPU."""
        return [index for index in self._living() if index in self._wanted and not self._rivals.get(index)]

    async def _wait_for_busy(self, free: Sequence[int], deadline: float) -> NoReturn:
        """Wait a while for processes on these hosts; what was seen long ago may have ended since."""
        if time.monotonic() - self._seen_at < _FRESH_S:
            index = next(index for index in free if index in self._busy)
            self._on_place(Place(1, self._busy[index], self._session.hosts[index].name))
            await self._session.pump(self._is_short, min(deadline, time.monotonic() + AGAIN_S))
            self._refuse_lost()
        refuse_late(deadline)
        raise BusyError

    async def _claim(self, chosen: Sequence[int]) -> bool:
        """Claim the GPUs of these hosts; if some can't be, none is, and the places stay as they are."""
        asked = [index for index in chosen if self._wanted[index]]
        self._decided = {}
        for index in asked:
            self._send(index, waits=False)
        states = self._session.states
        await self._session.pump(lambda: all(index in self._decided or states[index].failure for index in asked))
        if all(self._decided.get(index) for index in asked):
            return True
        for index in asked:
            del self._rivals[index]  # until it says what is in the way now
            self._send(index, waits=True)
        return False

    def _send(self, index: int, *, waits: bool) -> None:
        fields = self._order.as_fields(waits=waits)
        self._session.send(index, messages.CLAIM, is_look=False, gpus=self._wanted[index], **fields)


def refuse_late(deadline: float) -> None:
    """Raise QueueTimeoutError after the deadline."""
    if time.monotonic() >= deadline:
        raise QueueTimeoutError("its time in the queue (--queue) is over")
