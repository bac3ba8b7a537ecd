"""What a supervisor's loop asks that may block."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines.patience import DEADLINE_S

from launcher.node.loop import Loop
from launcher.node.processes.run_processes import read_children

SOON_S = 0.2
DEFAULT = {"is": "default"}


def list_open() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def ask(find: Callable[[], object], timeout_s: float = DEADLINE_S) -> Any:
    """Ask for it; return the answer once its process has ended, and nothing that was opened is open."""
    gc.collect()  # what earlier tests have left open is closed now; some is closed meanwhile, by their threads
    before, others = list_open(), read_children()
    loop, answers = Loop(), []
    loop.ask(find, timeout_s, DEFAULT, answers.append)
    while not answers:
        loop.run_once()
    for pid in set(read_children()).difference(others):
        os.waitpid(pid, 0)
    assert set(list_open()) <= set(before)
    (answer,) = answers
    return answer


def test_the_answer_is_what_was_returned() -> None:
    large = {"text": "x" * (1 << 20), "none": None}  # more than a pipe holds
    assert ask(lambda: large) == large
    assert ask(lambda: os.getpid()) != os.getpid()


@pytest.mark.parametrize("answer", [None, [], {}, False, 0, ""])
def test_an_answer_may_be_empty(answer: object) -> None:
    assert ask(lambda: answer) == answer
    assert ask(lambda: answer) is not DEFAULT


def fail() -> None:
    raise OSError(errno.EIO, "a faulty disk")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("find", [fail, die, lambda: socket, lambda: 1 / 0])
def test_who_gives_no_answer_gives_the_default(find: Callable[[], object]) -> None:
    assert ask(find) is DEFAULT


def test_who_hangs_is_killed() -> None:
    began_at = time.monotonic()
    assert ask(signal.pause, SOON_S) is DEFAULT
    assert SOON_S <= time.monotonic() - began_at < DEADLINE_S


@pytest.mark.parametrize("call", ["fork", "pipe"])
def test_what_cannot_be_started_gives_the_default(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], call: str
) -> None:
    def refuse() -> int:  # a fake: the limit of processes, or of descriptors
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, call, refuse)
    assert ask(lambda: "answer") is DEFAULT
    assert capfd.readouterr().err == f"a process can't be started: {os.strerror(errno.EAGAIN)}\n"


def test_who_is_asked_holds_nothing_open() -> None:
    """It may be in state D for ever, where nothing ends it."""
    with socket.create_server(("127.0.0.1", 0)):

        def find() -> list[str]:
            return [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in (0, 1, 2)] + list_open()

        *streams, _, _, _, answer, _ = ask(find)
    assert streams == [os.devnull] * 3
    assert answer.isdigit()
