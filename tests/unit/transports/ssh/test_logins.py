"""How often a login is tried, for how long, and how many log in at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from machines.patience import DEADLINE_S
from machines.processes import wait_until

from launcher.errors import HostFailure, HostFailureKind
from launcher.transports.base import TransportError
from launcher.transports.ssh import logins
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.logins import LOGINS_AT_ONCE, LoginError, LoginQueue, keep_trying

PLACE = Destination("node", "10.0.0.2", 22, "ann")
DROPPED = PLACE.dropped()
REFUSED = PLACE.refused()
LOGIN_REFUSED = PLACE.login_refused(["id"])
CHANNEL = object()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(logins.random, "uniform", lambda low, high: low / 20)


class Logins:
    """Fails as it is told, one time after the other, and then logs in."""

    def __init__(self, *failures: HostFailure, gateway: str | None = None) -> None:
        self.failures = list(failures)
        self.gateway = gateway
        self.allowed_s: list[float] = []

    def __call__(self, timeout_s: float) -> object:
        self.allowed_s.append(timeout_s)
        if self.failures:
            raise LoginError(self.failures.pop(0), self.gateway)
        return CHANNEL


def log_in(log_in, *, limit_s=DEADLINE_S, may_boot=False, queue=None):
    return keep_trying("node", queue or LoginQueue(), log_in, limit_s, may_boot=may_boot)


def test_a_connection_that_was_dropped_is_made_again():
    logging_in = Logins(DROPPED, DROPPED)
    assert log_in(logging_in) is CHANNEL
    assert len(logging_in.allowed_s) == 3


@pytest.mark.parametrize("may_boot", [True, False])
@pytest.mark.parametrize(
    "reason",
    [LOGIN_REFUSED, PLACE.key_unknown(), PLACE.key_changed("a"), PLACE.name_unknown(), PLACE.slow_login()],
    ids=lambda reason: reason.kind,
)
def test_what_does_not_pass_is_never_tried_again(reason, may_boot):
    logging_in = Logins(reason)
    with pytest.raises(TransportError) as caught:
        log_in(logging_in, may_boot=may_boot)
    failure = caught.value.failure
    assert (failure.host, failure.kind, failure.text) == ("node", reason.kind, reason.text)
    assert len(logging_in.allowed_s) == 1


@pytest.mark.parametrize(
    "reason",
    [REFUSED, PLACE.timed_out(), PLACE.no_route(), PLACE.no_way("x")],
    ids=lambda reason: reason.kind,
)
def test_a_host_that_may_be_booting_is_waited_for(reason):
    assert log_in(Logins(reason, reason), may_boot=True) is CHANNEL
    with pytest.raises(TransportError):
        log_in(Logins(reason))


def test_the_wait_has_an_end():
    with pytest.raises(TransportError) as caught:
        log_in(Logins(*[REFUSED] * 1000), limit_s=0.3, may_boot=True)
    assert caught.value.failure.kind is HostFailureKind.REFUSED


class Busy(LoginQueue):
    """Takes a minute until a slot is free; it is the clock, too."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        self.sleep(60)
        with super().slot():
            yield


@pytest.mark.parametrize(("reason", "tries"), [(DROPPED, 3), (REFUSED, 2)], ids=["dropped", "down"])
def test_many_that_were_dropped_wait_for_each_other(monkeypatch, reason, tries):
    """The wait for a slot is none for the host, unless that may be down: then each would cost its limit."""
    queue, logging_in = Busy(), Logins(reason, reason)
    monkeypatch.setattr(logins.time, "monotonic", queue.monotonic)
    monkeypatch.setattr(logins.time, "sleep", queue.sleep)
    with contextlib.nullcontext() if reason is DROPPED else pytest.raises(TransportError):
        log_in(logging_in, limit_s=10, may_boot=True, queue=queue)
    assert len(logging_in.allowed_s) == tries


def test_one_try_on_a_host_that_may_be_booting_is_short():
    patient, hasty = Logins(), Logins()
    log_in(patient, limit_s=600, may_boot=True)
    log_in(hasty, limit_s=600)
    assert (patient.allowed_s, round(hasty.allowed_s[0])) == ([10], 600)


def test_a_gateway_that_is_to_blame_is_named():
    with pytest.raises(TransportError) as caught:
        log_in(Logins(LOGIN_REFUSED, gateway="bastion"))
    assert caught.value.failure.text == "jump host bastion: login refused for user ann (tried id)"


# ---- queues ----------------------------------------------------------------------------------------------------------


class Crowd:
    """Many hosts that log in by the same queue, each in a thread."""

    def __init__(self, count: int, gateways: HostFailure | None = None) -> None:
        """gateways: what the gateway says of each login; None: all succeed."""
        self._gateways = gateways
        self.most = self.now = self.tries = 0
        self.failures: list[str] = []
        self.inside = threading.Semaphore(0)
        self.may_go = threading.Event()
        self._lock = threading.Lock()
        self._queue = LoginQueue()
        self._threads = [threading.Thread(target=self._enter, args=(self._queue,)) for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def count_waiting(self) -> int:
        """Return how many wait for a slot: those have noted when they came."""
        return len(self._queue._slots._cond._waiters)

    def end(self) -> None:
        self.may_go.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _enter(self, queue: LoginQueue) -> None:
        try:
            log_in(self._log_in, queue=queue)
        except TransportError as error:
            self.failures.append(error.failure.text)

    def _log_in(self, timeout_s: float) -> object:
        with self._lock:
            self.now += 1
            self.tries += 1
            self.most = max(self.most, self.now)
        self.inside.release()
        self.may_go.wait(DEADLINE_S)
        with self._lock:
            self.now -= 1
        if self._gateways is not None:
            raise LoginError(self._gateways, "bastion")
        return CHANNEL


def test_no_more_than_some_are_at_the_gate_at_once():
    crowd = Crowd(3 * LOGINS_AT_ONCE)
    crowd.start()
    for _ in range(LOGINS_AT_ONCE):
        assert crowd.inside.acquire(timeout=DEADLINE_S)
    assert not crowd.inside.acquire(timeout=0.1)
    crowd.end()
    assert (crowd.most, crowd.tries, crowd.failures) == (LOGINS_AT_ONCE, 3 * LOGINS_AT_ONCE, [])


def test_who_waits_at_a_gateway_that_refuses_need_not_ask_again():
    crowd = Crowd(3 * LOGINS_AT_ONCE, LOGIN_REFUSED)
    crowd.start()
    for _ in range(LOGINS_AT_ONCE):
        assert crowd.inside.acquire(timeout=DEADLINE_S)
    assert wait_until(lambda: crowd.count_waiting() == 2 * LOGINS_AT_ONCE)
    crowd.end()
    assert crowd.tries == LOGINS_AT_ONCE
    assert set(crowd.failures) == {"jump host bastion: login refused for user ann (tried id)"}
    assert len(crowd.failures) == 3 * LOGINS_AT_ONCE


def test_what_a_host_behind_it_says_is_no_other_s():
    queue = LoginQueue()
    with pytest.raises(TransportError):
        log_in(Logins(LOGIN_REFUSED), queue=queue)
    assert log_in(Logins(), queue=queue) is CHANNEL
