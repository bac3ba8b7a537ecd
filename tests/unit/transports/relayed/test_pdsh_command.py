"""What is taken of PDSH_SSH_ARGS_APPEND."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from launcher.hosts.host import Host
from launcher.transports.relayed.pdsh_command import Call, make_folder, own_options


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
    ("tmpdir", "name", "folder"),
    [
        ("/tmp", "gpu1", "/tmp/launch-pdsh-"),
        ("var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T", "gpu1", "/tmp/launch-pdsh-"),  # as macOS has it
        ("a blank", "gpu1", "/tmp/launch-pdsh-"),
        ("/tmp", "a" * 60, "/tmp/launch-pdsh-"),
        ("/tmp", "a" * 61, ""),
    ],
)
def test_sockets_go_where_their_paths_are_short_enough_for_every_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmpdir: str, name: str, folder: str
) -> None:
    (tmp_path / tmpdir).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / tmpdir))
    made = make_folder([Host(name)])
    if made:
        Path(made).rmdir()
        assert len(f"{made}/{name}.0123456789abcdef") <= 103
    assert made[:-8] == folder


def test_the_folder_of_sockets_is_locked_until_it_is_removed():
    """systemd-tmpfiles tries this lock, and passes over a folder of which another has one."""
    folder = make_folder([Host("gpu1")])
    fd = os.open(folder, os.O_RDONLY)
    call = Call(["sleep", "300"], os.environ, folder, subprocess.PIPE)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        call.end()
        call.process.wait(60)
    assert not os.path.lexists(folder)
    for stream in (call.process.stdout, call.process.stderr):
        stream.close()
    os.close(fd)
