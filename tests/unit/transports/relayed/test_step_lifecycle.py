"""One srun or pdsh from its start to its end, without a process: who is told to end, and when."""

from __future__ import annotations

import pytest

from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.transports.base import STDERR, TransportError
from launcher.transports.relayed.channel import RelayChannel
from launcher.transports.relayed.framing import RelayStarted
from launcher.transports.relayed.step_lifecycle import StepLifecycle

GONE = "the connection was lost"


class Process:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lifecycle = StepLifecycle(["a", "b"], self, "talk to srun")

    def open(self, host: str, *earlier: str) -> RelayChannel:
        relays = self.lifecycle.relays
        relays.mark_started(host, RelayStarted(0, host, 1, 1))
        relays[host].was_asked = True
        with relays.changed:
            return self.lifecycle.open_channel(relays[host], self, earlier)

    def acknowledge(self, channel: RelayChannel, size_bytes: int) -> None: ...

    def send_data(self, channel: RelayChannel, data: bytes) -> None: ...

    def leave(self, channel: RelayChannel) -> None:
        self.lifecycle.leave(channel)

    def send_shut(self, channel: RelayChannel) -> None:
        self.asked.append(f"shut {channel.number}")

    def begin_end(self) -> None:
        self.asked.append("begin end")

    def await_end(self) -> None:
        self.asked.append("await end")

    def terminate(self) -> None:
        self.asked.append("terminate")

    def why_lost(self, host: str) -> HostFailure:
        return HostFailure(host, HostFailureKind.CONNECTION, GONE)


def test_it_ends_once_after_every_host_was_asked_and_left() -> None:
    process = Process()
    first = process.open("a")
    first.close()
    assert process.asked == ["shut 1"]
    assert not process.lifecycle.is_usable("a")  # its process was hung up on
    second = process.open("b")
    second.end(0)
    second.close()
    assert process.asked == ["shut 1", "begin end", "await end"]
    second.close()
    assert process.asked == ["shut 1", "begin end", "await end", "await end"]
    assert process.lifecycle.is_ending


def test_a_host_that_was_given_up_keeps_its_first_failure_and_holds_up_no_end() -> None:
    process = Process()
    process.open("a").close()
    relays = process.lifecycle.relays
    with relays.changed:
        failure = process.lifecycle.give_up(relays["b"], HostFailure("b", HostFailureKind.SLURM, "late"))
        assert process.lifecycle.give_up(relays["b"], HostFailure("b", HostFailureKind.SLURM, "later")) is failure
    assert process.asked == ["shut 1", "begin end"]


def test_what_was_printed_earlier_comes_first() -> None:
    assert Process().open("a", "one", "two").read() == (STDERR, b"\none\n\ntwo\n")


def test_a_host_that_is_lost_ends_its_own_channels() -> None:
    process = Process()
    lost, other = process.open("a"), process.open("b")
    process.lifecycle.lose(["a"])
    with pytest.raises(TransportError) as error:
        lost.read()
    assert error.value.failure.text == GONE
    assert not other.is_over


def test_a_thread_that_fails_loses_all_hosts() -> None:
    process = Process()
    channels = [process.open(host) for host in ("a", "b")]

    def fail() -> None:
        raise OverflowError("it broke")

    process.lifecycle.start_thread(fail, "read srun").join()
    for channel in channels:
        with pytest.raises(TransportError) as error:
            channel.read()
        assert error.value.failure.text == "launch can't talk to srun any more: OverflowError('it broke')"
    assert process.asked == ["terminate"]


def test_a_process_without_its_threads_is_ended() -> None:
    process = Process()
    with pytest.raises(LauncherError), process.lifecycle.starting():
        raise LauncherError("no thread")
    assert process.asked == ["terminate"]


def test_an_abandoned_step_takes_no_host_again() -> None:
    process = Process()
    channel = process.open("a")
    channel.end(0)
    process.lifecycle.abandon()
    assert not process.lifecycle.is_usable("a")
    assert process.asked == ["terminate"]
