"""Errors on a terminal of 80 columns: lines break between words, and commands to paste stay whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from launcher.errors import ChecksFailed, HostFailure, HostFailureKind, HostsUnreachable, LauncherError, UsageError
from launcher.output.lines import STDERR
from launcher.output.output_streams import OutputStreams
from launcher.output.plain_messages import describe_error, tell

Show = Callable[[LauncherError], str]
LONG = "/scratch/projects/an-old-project/checkpoints/2026"


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Return a function that gives the screen of an error on a terminal."""

    def call(error: LauncherError) -> str:
        tell(describe_error(error), OutputStreams(frozenset({STDERR}), is_one_file=False, with_color=False, columns=80))
        return capsys.readouterr().err

    return call


def test_hosts_that_cannot_be_reached(show: Show) -> None:
    keygen = f"ssh-keygen -f {LONG}/known_hosts -R '[gpu1.cluster.example.com]:2222'"
    failures = [
        HostFailure(
            "gpu1", HostFailureKind.HOST_KEY_CHANGED,
            "its host key has changed: ED25519 SHA256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaa, known is SHA256:bbbbbbbbbbbbbbbb",
            f"if the machine was reinstalled: {keygen}; if not, someone listens in",
        )
    ]  # fmt: skip
    assert show(HostsUnreachable(failures)) == (
        "launch: 1 host can't be used:\n"
        "  gpu1: its host key has changed: ED25519 SHA256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaa,\n"
        "    known is SHA256:bbbbbbbbbbbbbbbb\n"
        "    fix: if the machine was reinstalled:\n"
        f"      {keygen};\n"
        "      if not, someone listens in\n"
        "launch: nothing was started\n"
    )


def test_what_would_break_a_run(show: Show) -> None:
    error = ChecksFailed(
        f"gpu[1-4]: the working directory {LONG} is not there, and no rank could start\n  fix: make it"
    )
    assert show(error) == (
        "launch: nothing was started; these would break the run:\n"
        "  gpu[1-4]: the working directory\n"
        f"    {LONG} is not there, and no rank\n"
        "    could start\n"
        "    fix: make it\n"
    )


@pytest.mark.parametrize(
    ("fix", "shown"),
    [
        (f"omit it: launch ... --gpus 8 --cpu {LONG}/train.py",
         f"omit it:\n    launch ... --gpus 8 --cpu {LONG}/train.py"),
        (f"launch ... {LONG}/'a; b.py', or launch ... -m a", f"launch ... {LONG}/'a; b.py',\n    or launch ... -m a"),
        ("name the hosts in one way, such as with --hosts, or in launcher.toml as a list",
         "name the hosts in one way, such as with --hosts, or in launcher.toml as a\n    list"),
        ("short", "short"),
    ],
)  # fmt: skip
def test_a_fix(show: Show, fix: str, shown: str) -> None:
    assert show(UsageError("wrong", fix)) == f"launch: wrong\n  fix: {shown}\n"


def test_a_file_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    streams = OutputStreams(frozenset(), is_one_file=False, with_color=False, columns=None)
    tell(describe_error(UsageError("w " * 60, "h " * 60)), streams)
    assert capsys.readouterr().err == f"launch: {'w ' * 60}\n  fix: {'h ' * 60}\n"
