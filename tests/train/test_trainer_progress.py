"""The progress line, on a real terminal and where there is none."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.trainer.progress import Progress, duration, rate_text


class Terminal:
    """A pseudo-terminal, its far end and a clock that is set by hand."""

    def __init__(self, columns: int) -> None:
        self._far, near = os.openpty()
        fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.set_blocking(self._far, False)
        self.stream = os.fdopen(near, "w")
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def read(self) -> str:
        try:
            return os.read(self._far, 10_000).decode()
        except BlockingIOError:
            return ""

    def hang_up(self) -> None:
        os.close(self._far)
        self._far = -1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        if self._far >= 0:
            os.close(self._far)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(columns=60)
    yield made
    made.close()


def test_the_line_says_steps_rate_and_time_left(terminal: Terminal) -> None:
    progress = Progress(1200, terminal.stream, clock=terminal.clock)
    terminal.now = 10
    progress.update(120, "loss 2.31")
    assert terminal.read() == "\rstep 120/1200 (10%), 12.0 steps/s, 1 min 30 s left, loss 2."  # a full line would wrap
    terminal.now = 20
    progress.update(1200)
    assert terminal.read() == "\r" + "step 1200/1200 (100%), 60.0 steps/s, 0 s left".ljust(59)
    progress.close()
    assert terminal.read() == "\r" + " " * 45 + "\r"
    progress.update(1200)
    progress.close()
    assert terminal.read() == ""


def test_the_line_is_taken_away_for_another_and_comes_back(terminal: Terminal) -> None:
    progress = Progress(10, terminal.stream, clock=terminal.clock)
    progress.clear()
    assert terminal.read() == ""
    terminal.now = 2
    progress.update(1)
    assert terminal.read() == "\rstep 1/10 (10%), 2.0 s a step, 18 s left"
    progress.clear()
    assert terminal.read() == "\r" + " " * 40 + "\r"
    terminal.now = 4
    progress.update(2)
    assert terminal.read() == "\rstep 2/10 (20%), 2.0 s a step, 16 s left"


def test_it_is_drawn_ten_times_a_second_at_most_and_at_the_last_step(terminal: Terminal) -> None:
    progress = Progress(4, terminal.stream, clock=terminal.clock)
    terminal.now = 1
    progress.update(1)
    assert terminal.read().startswith("\rstep 1/4")
    terminal.now = 1.05
    progress.update(2)
    assert terminal.read() == ""
    progress.update(4)
    assert terminal.read().startswith("\rstep 4/4")


def test_a_resumed_run_counts_its_own_steps_and_the_rate_forgets_the_start(terminal: Terminal) -> None:
    progress = Progress(10_000, terminal.stream, first_step=500, clock=terminal.clock)
    terminal.now = 100
    progress.update(600)
    assert "1.0 steps/s" in terminal.read()
    for step in range(601, 800):
        terminal.now += 0.125
        progress.update(step)
        shown = terminal.read()
    assert shown == "\rstep 799/10000 (8%), 8.0 steps/s, 19 min 10 s left"


def test_a_terminal_that_goes_ends_nothing(terminal: Terminal) -> None:
    progress = Progress(10, terminal.stream, clock=terminal.clock)
    terminal.hang_up()
    terminal.now = 1
    progress.update(1)
    progress.close()


def test_what_is_no_terminal_gets_nothing(tmp_path: Path) -> None:
    for stream in (io.StringIO(), (tmp_path / "log").open("w+")):
        with stream:
            progress = Progress(1, stream)
            progress.update(1, "loss 1")
            progress.close()
            assert stream.tell() == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (751, "12 min 31 s"), (10_920, "3 h 02 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(1, "1.0 steps/s"), (1234.56, "1234.6 steps/s"), (0.4, "2.5 s a step")])
def test_rate(rate: float, text: str) -> None:
    assert rate_text(rate) == text
