"""Logging in over SSH: how often a host is tried, for how long, and how many log in to one sshd at a time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from launcher.errors import HostFailure, HostFailureKind
from launcher.transports.base import Channel, TransportError
from launcher.transports.ssh.failures import is_passing, pass_on

# To one sshd, which drops connections at random beyond 10 logins in progress (MaxStartups); other users log in as well.
LOGINS_AT_ONCE = 8
# TCP repeats a connection request after 1, 2, 4, 8, ... s: one long try would notice late that a host has booted.
_BOOT_TRY_S = 10.0


class LoginError(Exception):
    """One login failed; `jump_host` names the jump host that is to blame, None means the host itself.

    `failure` describes the one that is to blame; `pass_on` makes the host's own failure from it.
    """

    def __init__(self, failure: HostFailure, jump_host: str | None = None) -> None:
        super().__init__(failure.text)
        self.failure = failure
        self.jump_host = jump_host


class TakesSsh(LoginError):
    """Fabric can't log in, and not because of the network: ssh may, and `reason` says what it is used for."""

    def __init__(self, reason: str, failure: HostFailure, jump_host: str | None = None) -> None:
        """failure: what is reported where ssh can't be used either."""
        super().__init__(failure, jump_host)
        self.reason = reason


class LoginQueue:
    """The logins that pass through one sshd: a host's own, or that of a jump host which many hosts share.

    At most LOGINS_AT_ONCE logins are in progress; the others wait for a slot. If the jump host itself refuses a login,
    those that are waiting then fail with the same error and don't ask again; one that comes later does.
    """

    def __init__(self) -> None:
        self._slots = threading.Semaphore(LOGINS_AT_ONCE)
        self._refusal: tuple[float, LoginError] | None = None

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait for a slot; raise the LoginError with which the jump host has refused another login meanwhile."""
        came_at = time.monotonic()
        with self._slots:
            if self._refusal is not None and self._refusal[0] > came_at:
                raise self._refusal[1]
            try:
                yield
            except LoginError as error:
                if error.jump_host is not None and error.failure.kind is not HostFailureKind.DROPPED:
                    self._refusal = time.monotonic(), error
                raise


def keep_trying(
    name: str, queue: LoginQueue, log_in: Callable[[float], Channel], limit_s: float, *, may_boot: bool
) -> Channel:
    """Log in to the host `name`, several times if need be; raise TransportError if another try can't help.

    log_in: logs in once, within the seconds that it is given, or raises LoginError.
    limit_s: for all tries together, without the time in the queue.
    may_boot: also try again if the host doesn't answer, since it may be booting.
    """
    deadline: float | None = None  # begins with the first try
    reported: LoginError | None = None
    try_s = _BOOT_TRY_S if may_boot else limit_s
    while True:
        asked_at = time.monotonic()
        try:
            with queue.slot():
                if deadline is None:
                    deadline = time.monotonic() + limit_s
                elif reported is not None and reported.failure.kind is HostFailureKind.DROPPED:
                    deadline += time.monotonic() - asked_at  # of many hosts behind one, each waits for the others
                return log_in(min(try_s, max(0.1, deadline - time.monotonic())))
        except LoginError as error:
            # The deadline cuts the last try short: the answer to an earlier one says more than its time-out.
            if reported is None or error.failure.kind is not HostFailureKind.TIMED_OUT:
                reported = error
            may_help = is_passing(error.failure, may_boot=may_boot)
        deadline = deadline or time.monotonic() + limit_s
        pause_s = random.uniform(0.2, 1.0)  # spreads the tries of many hosts
        if not may_help or time.monotonic() + pause_s > deadline:
            raise TransportError(pass_on(reported.failure, name, reported.jump_host)) from reported
        time.sleep(pause_s)
