"""What is taken of PDSH_SSH_ARGS_APPEND, where sockets go, and how all that was started is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from launcher.transports.ssh.pdsh_command import Call, find_place, own_options


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ("-q", []),
        ("-4qqC -v", ["-4C", "-v"]),
        ("-A -vXY -aC", ["-v", "-aC"]),
        ("-oLogLevel=QUIET -lquentin -p 22", ["-oLogLevel=QUIET", "-lquentin", "-p", "22"]),
    ],
)
def test_a_wish_to_be_quiet_or_to_forward_is_not_heard(said, taken):
    assert own_options({"PDSH_SSH_ARGS_APPEND": said}) == taken


@pytest.mark.parametrize(
    ("tmpdir", "place"),
    [
        ("tmp", "tmp"),
        ("a blank", "/tmp"),
        ("100%", "/tmp"),
        ("x" * 80, "/tmp"),  # as macOS has it: /var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T
    ],
)
def test_sockets_go_where_their_paths_are_short_and_plain(
    monkeypatch: pytest.MonkeyPatch, tmpdir: str, place: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tmpdir)
    assert find_place() == place


def test_a_socket_s_path_is_short_enough_for_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in range(100):
        monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * size)
        if find_place() != "/tmp":
            longest = size
    assert len(f"/{'x' * longest}/launch-pdsh-abcdefgh/99999.0123456789abcdef") == 103


def test_an_ssh_that_outlives_pdsh_is_found(tmp_path: Path) -> None:
    """By its socket; nothing else is, not even what names the directory alone."""
    directory = tmp_path / "launch-pdsh-x"
    directory.mkdir()
    own, other = (
        subprocess.Popen(["sh", "-c", "sleep 300; :", name]) for name in (f"-oControlPath={directory}/3", directory)
    )
    call = Call(["false"], os.environ, str(directory))
    try:
        call.end_and_wait()
        assert own.wait(60) == -signal.SIGTERM
        assert other.poll() is None
    finally:
        for process in (own, other):
            process.kill()
            process.wait()
        call.process.stdout.close()
