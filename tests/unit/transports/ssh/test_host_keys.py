"""Which host keys are believed, where no server is needed to see it."""

from __future__ import annotations

import paramiko
import pytest

from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.host_keys import ChangedHostKey, KnownHosts


def test_a_name_has_one_new_key(tmp_path):
    """Two connections to one gateway have both seen that it is not known; the second shows another key."""
    path = tmp_path / "known_hosts"
    known, (first, second) = KnownHosts(), (paramiko.ECDSAKey.generate() for _ in range(2))
    known._record(path, "gate", first)
    known._record(path, "gate", first)
    with pytest.raises(ChangedHostKey):
        known._record(path, "gate", second)
    known._record(path, "[gate]:2222", second)
    assert path.read_text().splitlines() == [
        f"gate {first.get_name()} {first.get_base64()}",
        f"[gate]:2222 {second.get_name()} {second.get_base64()}",
    ]


def test_what_others_have_written_meanwhile_counts(tmp_path):
    """A run may last for days: another launch may record a key, and the user revoke one."""
    path = tmp_path / "known_hosts"
    place, settings = Destination("gate", "gate", 22, "ann"), {"userknownhostsfile": str(path)}
    known, (first, second) = KnownHosts(), (paramiko.ECDSAKey.generate() for _ in range(2))
    assert known.lines_about(place, settings) == ([], [])
    path.write_text(f"gate {first.get_name()} {first.get_base64()}\n")
    with pytest.raises(ChangedHostKey):
        known._record(path, "gate", second)
    with path.open("a") as file:
        file.write(f"@revoked * {first.get_name()} {first.get_base64()}\n")
    assert [line.marker for line in known.lines_about(place, settings)[0]] == [None, "@revoked"]
