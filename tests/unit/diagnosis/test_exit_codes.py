"""What an exit code or a signal says by itself."""

from __future__ import annotations

import signal

import pytest

from launcher.diagnosis.exit_codes import ENDINGS, LOSSES, explain_ending, explain_loss, signal_name


def test_names_of_signals() -> None:
    assert [signal_name(number) for number in (9, 11, 99)] == ["SIGKILL", "SIGSEGV", "signal 99"]


def test_every_ending_is_found_by_its_own_row() -> None:
    for ending in ENDINGS:
        number = ending.number if ending.is_signal else None
        code = None if ending.is_signal else ending.number
        found = explain_ending(code, number, is_out_of_memory=ending.is_out_of_memory)
        assert found is not None
        assert found.cause == ending.cause
    assert len({ending.says for ending in ENDINGS}) == len(ENDINGS)


def test_out_of_memory_is_told_from_other_kills() -> None:
    found = explain_ending(None, signal.SIGKILL, is_out_of_memory=True)
    assert found is not None
    assert (found.cause, found.fix) == (
        "the node's memory was full, or the limit of its container or job was reached",
        "fewer loader workers, a smaller batch, or a higher limit; dmesg -T on that node shows who had how much",
    )


@pytest.mark.parametrize(
    ("code", "number", "start"),
    [
        (126, None, "what was started is no program"),
        (127, None, "a command was not found"),
        (None, signal.SIGKILL, "it was killed from outside"),
        (137, None, "it was killed from outside"),  # of a shell, about its child
        (None, signal.SIGSEGV, "it crashed in native code"),
        (139, None, "it crashed in native code"),
        (None, signal.SIGBUS, "memory behind a file vanished"),
        (None, signal.SIGABRT, "native code gave up"),
        (None, signal.SIGILL, "a library uses an instruction"),
        (None, signal.SIGTERM, "something on that node ended it"),
    ],
)
def test_an_ending_that_tells(code: int | None, number: int | None, start: str) -> None:
    found = explain_ending(code, number)
    assert found is not None
    assert found.cause.startswith(start)
    assert "`" not in found.cause + found.fix


@pytest.mark.parametrize(("code", "number"), [(None, None), (0, None), (1, None), (3, None), (255, None), (None, 40)])
def test_an_ending_that_does_not_tell(code: int | None, number: int | None) -> None:
    assert explain_ending(code, number) is None


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("no sign of life for 15 s", "it froze"),
        ("this machine stood still for 40 s, and the nodes took it for dead", "the machine that you typed on slept"),
        ("the connection was lost", "its sshd, a firewall"),
        ("the connection was lost: its ssh was killed by signal 9", "something on the machine that you typed on"),
        ("the connection was lost: pdsh itself has ended", "something on the machine that you typed on"),
        ("the connection was lost: ConnectionResetError(104)", "its sshd, a firewall"),
        ("it sent what is no message: x", None),
    ],
)
def test_a_connection_that_ended(text: str, start: str | None) -> None:
    found = explain_loss(text)
    assert (found.cause[: len(start)] if found and start else found) == start
    assert len({loss.says for loss in LOSSES}) == len(LOSSES)
