"""Logging in: how often it is tried, for how long, and how many do it at once."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from launcher.errors import HostFailure, HostFailureKind
from launcher.transports.base import Channel, TransportError
from launcher.transports.ssh.failures import is_passing, pass_on

LOGINS_AT_ONCE = 8  # on one sshd, which drops at random beyond 10 (MaxStartups); somebody else may log in as well
_BOOT_TRY_S = 10.0  # TCP asks again after 1, 2, 4, 8, ... s: one long try would find a host that has booted too late


class LoginError(Exception):
    """One login failed; gateway: the hop on the way to the host that is to blame, None for the host itself.

    `failure` is of the one that is to blame; `pass_on` makes that of the host from it.
    """

    def __init__(self, failure: HostFailure, gateway: str | None = None) -> None:
        super().__init__(failure.text)
        self.failure = failure
        self.gateway = gateway


class Gate:
    """What many hosts log in through: one sshd, their gateway's or their own."""

    def __init__(self) -> None:
        self._slots = threading.Semaphore(LOGINS_AT_ONCE)
        self._refusal: tuple[float, LoginError] | None = None

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Wait for a slot; raise what the gateway said meanwhile to another one, if it will say it to all."""
        came_at = time.monotonic()
        with self._slots:
            if self._refusal is not None and self._refusal[0] > came_at:
                raise self._refusal[1]
            try:
                yield
            except LoginError as error:
                if error.gateway is not None and error.failure.kind is not HostFailureKind.DROPPED:
                    self._refusal = time.monotonic(), error
                raise


class Gates:
    """The gates of all hosts, by a name for each: who stands behind the same gateway gives the same."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = defaultdict(Gate)
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Gate:
        with self._lock:
            return self._gates[name]


class _Patience:
    """How long a host is tried, from when its turn has come: standing in the queue is not its fault."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline: float | None = None

    @property
    def left_s(self) -> float:
        now = time.monotonic()
        self._deadline = self._deadline or now + self._limit_s
        return self._deadline - now


def keep_trying(
    name: str, gate: Gate, log_in: Callable[[float], Channel], limit_s: float, *, may_boot: bool
) -> Channel:
    """Log in to the host `name`; raise TransportError when that can't help any more, or after limit_s.

    log_in: gets the seconds that it may take, and raises LoginError.
    may_boot: a host that is not there yet is waited for.
    """
    patience = _Patience(limit_s)
    try_s = _BOOT_TRY_S if may_boot else limit_s
    told = None
    while isinstance(outcome := _try_once(gate, log_in, patience, try_s), LoginError):
        # The last try is cut short by us: what an earlier one was answered says more than its silence.
        told = told if told is not None and outcome.failure.kind is HostFailureKind.TIMED_OUT else outcome
        pause_s = random.uniform(0.2, 1.0)  # spreads the tries of many hosts
        if pause_s > patience.left_s or not is_passing(outcome.failure, may_boot=may_boot):
            raise TransportError(pass_on(told.failure, name, told.gateway)) from told
        time.sleep(pause_s)
    return outcome


def _try_once(
    gate: Gate, log_in: Callable[[float], Channel], patience: _Patience, try_s: float
) -> Channel | LoginError:
    try:
        with gate.passed():
            return log_in(min(try_s, max(0.1, patience.left_s)))
    except LoginError as error:
        return error
