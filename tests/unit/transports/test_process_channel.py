"""The channel over a process's pipes: what it holds open, and gives back when it ends."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

import pytest
from machines.patience import DEADLINE_S
from machines.processes import wait_until

from launcher.transports.process_channel import ProcessChannel, end_process, start_process


@pytest.fixture
def channel() -> Iterator[ProcessChannel]:
    """A channel to a process that repeats what it is told, until its end of file."""
    process = start_process(["cat"])
    with process:
        yield ProcessChannel(process)
        end_process(process)


def test_a_channel_gives_back_what_it_holds_open() -> None:
    """A run opens one for each host and attempt."""
    with start_process(["cat"]) as process:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number counts
        channel = ProcessChannel(process)
        channel.close()
        channel.close()  # and again, by another thread
        assert channel.read() == (0, b"")
        del channel
        assert len(os.listdir("/proc/self/fd")) == before - 1  # noqa: PTH208 - and its stdin


def test_a_blocked_reader_comes_back() -> None:
    """Though the process lives on, and takes no notice of the end of its input."""
    read: list[tuple[int, bytes]] = []
    with start_process(["sh", "-c", "echo hello; exec sleep 300"]) as process:
        channel = ProcessChannel(process)
        reader = threading.Thread(target=lambda: read.extend(iter(channel.read, (0, b""))), daemon=True)
        reader.start()
        assert wait_until(lambda: bool(read))
        channel.close()
        reader.join(DEADLINE_S)
        has_come_back = not reader.is_alive() and process.poll() is None
        end_process(process)
    assert has_come_back
    assert read == [(1, b"hello\n")]


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


def test_a_process_that_has_just_ended_is_ended_on_a_mac_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """killpg(2) of macOS fails with EPERM, not ESRCH, where nobody has waited for the last of the group."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with start_process(["cat"]) as process:
        with monkeypatch.context() as on_macos:
            on_macos.setattr(os, "killpg", refuse)
            end_process(process)
        end_process(process)
