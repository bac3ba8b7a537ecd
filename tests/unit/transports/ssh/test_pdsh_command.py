"""What is read of pdsh, where sockets go, and how all that was started is ended."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from machines.processes import wait_until

from launcher.hosts.host import Host
from launcher.transports.base import TransportSettings
from launcher.transports.ssh.pdsh import MAX_LINE_BYTES, PdshOutput, whole_lines
from launcher.transports.ssh.pdsh_command import Call, Pdsh, find_place


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


def test_options_for_ssh_are_those_of_launch_alone(tmp_path: Path) -> None:
    """As letters, those that forward something or keep ssh quiet would win over the others."""
    pdsh = tmp_path / "pdsh"
    pdsh.write_text(f"#!/bin/sh\nenv >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/env\n")
    pdsh.chmod(0o755)
    variables = {**os.environ, "PDSH_SSH_ARGS": "-A -l%u %h", "PDSH_SSH_ARGS_APPEND": "-q"}
    call = Pdsh(str(pdsh), [Host("a")], TransportSettings(variables=variables)).log_in([Host("a")], 5.0)
    assert wait_until((tmp_path / "env").exists)  # the end stops a pdsh that has only just begun
    call.end_and_wait()
    call.process.stdout.close()
    said = [line for line in (tmp_path / "env").read_text().splitlines() if line.startswith("PDSH_SSH_ARGS")]
    assert len(said) == 1 and said[0].startswith("PDSH_SSH_ARGS_APPEND=-N ") and " -q" not in said[0]


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


HOSTS = ("gpu1", "a.east.lab", "a.west.lab", "10.0.0.7")
LOGGED_IN = b'Authenticated to a.east.lab ([10.0.0.1]:22) using "publickey".\r'


def test_who_has_logged_in() -> None:
    """Of two with one label, either may have."""
    output = PdshOutput(HOSTS)
    for line in (b"a: Welcome!", b"gpu1: said: " + LOGGED_IN, LOGGED_IN, b"gpu2: " + LOGGED_IN, b"a: " + LOGGED_IN):
        output.take(line)
    assert (output.logged_in, output.ended) == ({"a.east.lab", "a.west.lab"}, set())


def test_an_end_is_remembered() -> None:
    """As pdsh says it, and not a host, in any bytes."""
    output = PdshOutput(HOSTS)
    for line in (
        b"pdsh@head: gpu1: ssh exited with exit code 127", b"pdsh@head: 10.0.0.7: ssh killed by signal 9",
        b"a: pdsh@head: a: ssh killed by signal 9", b"pdsh@head: no such thing", b"\xff\x00: hello", b"gpu1:no label",
    ):  # fmt: skip
        output.take(line)
    assert (output.logged_in, output.ended) == (set(), {"gpu1", "10.0.0.7"})


@pytest.mark.parametrize("size", [MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 5 * MAX_LINE_BYTES + 17])
def test_what_follows_on_too_much_is_dropped_with_it(size: int) -> None:
    text = b"a: 1\n\n" + b"x" * size + b"b: ssh killed by signal 9\na: 2\na: no line"
    assert list(whole_lines(io.BytesIO(text))) == [b"a: 1", b"", b"a: 2"]
