"""What is taken of PDSH_SSH_ARGS_APPEND."""

from __future__ import annotations

import fcntl
import os
import subprocess

import pytest

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


def test_the_folder_of_sockets_is_locked_until_it_is_removed():
    """systemd-tmpfiles tries this lock, and passes over a folder of which another has one."""
    folder = make_folder()
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
