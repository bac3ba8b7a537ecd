"""The channel over a process's pipes: what it holds open, and gives back when it ends."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.transports.process_channel import ProcessChannel, end_process, start_process


@pytest.fixture
def channel() -> Iterator[ProcessChannel]:
    """A channel to a process that repeats what it is told, until its end of file."""
    process = start_process(["cat"])
    with process:
        yield ProcessChannel(process)
        end_process(process)


def wakes_of(channel: ProcessChannel) -> list[int]:
    """Return which of its wake descriptors are open; nothing else here opens one meanwhile."""
    return [fd for fd in (channel._wake_read, channel._wake_write) if Path(f"/proc/self/fd/{fd}").exists()]


def test_a_channel_that_nobody_reads_is_closed_at_once(channel: ProcessChannel) -> None:
    assert len(wakes_of(channel)) == 2
    channel.close()
    assert wakes_of(channel) == []
    channel.close()  # and again, by another thread
    assert channel.read() == (0, b"")


def test_a_blocked_reader_comes_back_and_then_it_is_closed(channel: ProcessChannel) -> None:
    read: list[tuple[int, bytes]] = []
    reader = threading.Thread(target=lambda: read.extend(iter(channel.read, (0, b""))))
    reader.start()
    channel.write(b"hello")
    deadline = time.monotonic() + DEADLINE_S
    while not (read and channel._is_reading):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    channel.close()
    reader.join(DEADLINE_S)
    assert not reader.is_alive()
    assert read == [(1, b"hello")]
    assert wakes_of(channel) == []


def test_what_a_process_says_of_its_end_is_not_read(channel: ProcessChannel) -> None:
    """As ssh's `Killed by signal 15.`, which comes with the wake where the reader was slow to look."""
    poll = channel._poll

    class SlowPoll:
        def poll(self) -> list[tuple[int, int]]:
            channel.write(b"last words")
            poll.poll()
            channel.close()
            return poll.poll()

    channel._poll = SlowPoll()  # type: ignore[assignment]
    assert channel.read() == (0, b"")
    assert wakes_of(channel) == []


def test_a_process_that_has_just_ended_is_ended_on_a_mac_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """killpg(2) of macOS fails with EPERM, not ESRCH, where nobody has waited for the last of the group."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with start_process(["cat"]) as process:
        with monkeypatch.context() as on_macos:
            on_macos.setattr(os, "killpg", refuse)
            end_process(process)
        end_process(process)


def test_a_channel_whose_process_has_ended_is_closed(channel: ProcessChannel) -> None:
    channel._stdin.close()
    assert channel.read() == (0, b"")
    channel.close()
    assert (wakes_of(channel), channel.exit_code()) == ([], 0)
