"""What `ssh` gets where nobody is there to answer it, and nobody has lent an agent."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from launcher.hosts.host import Host
from launcher.transports.base import TransportError, TransportSettings
from launcher.transports.ssh.openssh import OpenSSHTransport

SSH = """\
#!/bin/sh
case "$1" in -G) printf 'hostname g2\\nport 2222\\nuser ann\\n'; exit;; esac
printf '%s\\n' "$@" >"$0.args"
env >"$0.env"
echo 'No ED25519 host key is known for g2 and you have requested strict checking.' >&2
echo 'Host key verification failed.' >&2
exit 255
"""


def test_only_known_hosts_and_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    variables = {"PATH": os.environ["PATH"], "SSH_AUTH_SOCK": "/tmp/agent", "SSH_ASKPASS": "ask", "LANG": "C"}
    transport = OpenSSHTransport(TransportSettings(is_unattended=True, variables=variables))
    with pytest.raises(TransportError, match="its host key is not known"):
        transport.open(Host("g2", user="ann", port=2222), "true", 5.0)
    args = Path(f"{ssh}.args").read_text().splitlines()
    options = dict(word.split("=", 1) for flag, word in itertools.pairwise(args) if flag == "-o")
    wanted = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "IdentityAgent": "none",
        "ForwardAgent": "no",
        "ControlPath": "none",
    }
    assert {name: options.get(name) for name in wanted} == wanted
    names = {line.partition("=")[0] for line in Path(f"{ssh}.env").read_text().splitlines()}
    assert "LANG" in names
    assert not names & {"SSH_AUTH_SOCK", "SSH_ASKPASS"}
