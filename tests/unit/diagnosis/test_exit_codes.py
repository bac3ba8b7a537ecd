"""What an exit code or a signal says by itself."""

from __future__ import annotations

import signal
import sys

import pytest

from launcher.diagnosis.exit_codes import (
    ENDINGS,
    SIGNALS,
    describe_ending,
    explain_ending,
    explain_loss,
    signal_name,
)
from launcher.diagnosis.signatures import plain
from launcher.errors import EXIT_SIGNAL_BASE


@pytest.mark.linux
def test_names_of_signals() -> None:
    """The nodes' are those of this machine, which runs Linux as they do."""
    assert signal_name(99) == "signal 99"
    named = SIGNALS if sys.version_info >= (3, 11) else {n: name for n, name in SIGNALS.items() if name != "SIGSTKFLT"}
    assert {number.value: signal_name(number) for number in signal.Signals} == named
    assert {number.name for number in signal.Signals} == {*named.values()}


def test_every_ending_is_found_by_its_own_row() -> None:
    found = {describe_ending(code, None): explain_ending(code, None) for code in range(EXIT_SIGNAL_BASE)}
    for number in range(1, 65):
        words = describe_ending(None, number)
        found[words] = explain_ending(None, number)
        found[f"{words}: out of memory"] = explain_ending(None, number, is_out_of_memory=True)
    told = {words: known for words, known in found.items() if known is not None}
    assert {words: known.cause for words, known in told.items()} == {
        words: plain(known.cause) for words, known in ENDINGS.items()
    }


@pytest.mark.parametrize(
    ("code", "number", "start"),
    [
        (137, None, "it was killed from outside"),  # of a shell, about its child
        (139, None, "it crashed in native code"),
        (None, signal.SIGTERM, "something on that host stopped it"),
    ],
)
def test_an_ending_that_tells(code: int | None, number: int | None, start: str) -> None:
    found = explain_ending(code, number)
    assert found is not None
    assert found.cause.startswith(start)
    assert "`" not in found.cause + found.fix


@pytest.mark.parametrize(("code", "number"), [(None, None), (1, None), (3, None), (255, None), (None, 40)])
def test_an_ending_that_does_not_tell(code: int | None, number: int | None) -> None:
    assert explain_ending(code, number) is None


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("no heartbeat for 15 s", "the host froze"),
        ("this machine was suspended for 40 s, so the hosts stopped the run", "the launch host slept"),
        ("the connection was lost", "the host's sshd, a firewall"),
        ("the connection was lost: its ssh was killed by signal 9", "something on the launch host"),
        ("the connection was lost: ConnectionResetError(104)", "the host's sshd, a firewall"),
        ("it sent an invalid message: x", None),
    ],
)
def test_a_connection_that_ended(text: str, start: str | None) -> None:
    found = explain_loss(text)
    assert (found.cause[: len(start)] if found and start else found) == start
