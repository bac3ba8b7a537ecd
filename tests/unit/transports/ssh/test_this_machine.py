"""Is a login this machine? Then no SSH is needed; a wrong yes would run a job on the wrong machine or as another."""

from __future__ import annotations

import getpass
import socket

import pytest

from launcher.transports.ssh.this_machine import SSH_PORT, is_this_machine

FOREIGN = "192.0.2.1"  # TEST-NET-1, which nobody has (RFC 5737)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_loopback_is_this_machine(address):
    assert is_this_machine(address, SSH_PORT, getpass.getuser())


def test_an_address_of_ours_is_this_machine():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((FOREIGN, 9))  # sends nothing; tells which address of ours would be used
        except OSError:
            pytest.skip("needs a network interface beside loopback")
        ours = sock.getsockname()[0]
    assert is_this_machine(ours, SSH_PORT, getpass.getuser())


@pytest.mark.parametrize(
    ("address", "port", "user"),
    [
        ("127.0.0.1", 2222, None),  # a container, or a tunnel to another machine
        ("localhost", 2222, None),
        ("127.0.0.1", SSH_PORT, "somebody-else"),
        ("127.0.0.1", SSH_PORT, ""),
        (FOREIGN, SSH_PORT, None),
        ("no-such-host.invalid", SSH_PORT, None),
    ],
)
def test_another_port_user_or_address_is_not(address, port, user):
    assert not is_this_machine(address, port, getpass.getuser() if user is None else user)


def test_a_user_id_without_a_name_is_nobody(monkeypatch):
    def refuse():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", refuse)
    assert not is_this_machine("127.0.0.1", SSH_PORT, "root")
