"""Errors on stderr."""

from __future__ import annotations

import pytest

from launcher.errors import ChecksFailed, HostFailure, HostFailureKind, HostsUnreachable, LauncherError, UsageError
from launcher.output.output_streams import describe_error, tell


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("wrong", "short"), "launch: wrong\n  fix: short\n"),
        (
            HostsUnreachable([HostFailure("gpu1", HostFailureKind.TIMED_OUT, "no answer", "turn it on")]),
            "launch: 1 host can't be used:\n  gpu1: no answer\n    fix: turn it on\nlaunch: nothing was started\n",
        ),
        (
            ChecksFailed("gpu[1-4]: the working directory /w is not there\n  fix: make it"),
            "launch: nothing was started; these would break the run:\n"
            "  gpu[1-4]: the working directory /w is not there\n    fix: make it\n",
        ),
        (LauncherError("\x1b[2J" + "w " * 60), f"launch: {'w ' * 60}\n"),
    ],
)
def test_what_is_printed_of_an_error(error: LauncherError, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines stay whole, however long; what a host said can't steer the terminal."""
    tell(describe_error(error))
    assert capsys.readouterr().err == text
