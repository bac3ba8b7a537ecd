"""A name that was led to the launcher's own machine: what is to run on another host must not run here instead."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.cluster import Cluster, Host
from machines.launches import PROGRAM
from machines.patience import DEADLINE_S

SPOOFED = "gpu7"
OTHER_KEY = "has this machine's address, but known_hosts has a different host key for it; connecting over SSH"
every_transport = pytest.mark.parametrize("transport", ["fabric", "ssh", "pdsh"])

Exec = Callable[[str, str], subprocess.CompletedProcess[str]]


def public_key(host: Host) -> str:
    return " ".join((host.folder / "host_key.pub").read_text().split()[:2])


@pytest.fixture
def exec_here(cluster: Cluster, tmp_path: Path) -> Exec:
    """Return a function that runs `launch exec` on node1, where SPOOFED is node1's own address; it gets known_hosts."""
    here = cluster["node1"]
    here.replace_file("/etc/hosts", f"127.0.0.1 localhost\n{here.address} {SPOOFED}\n")
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  User root\n  IdentityFile {cluster.folder}/id\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known_hosts\n  GlobalKnownHostsFile none\n"
        "  StrictHostKeyChecking yes\n  KexAlgorithms curve25519-sha256\n"
    )

    def run(known: str, transport: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "known_hosts").write_text(known)
        words = ["exec", "--hosts", SPOOFED, "--ssh-config", str(config), "--transport", transport]
        launch = [str(PROGRAM), *words, "--", "echo in${SSH_CLIENT:+ by SSH}"]
        env = {**os.environ, "PYTHONPATH": ""}
        env.pop("SSH_CLIENT", None)
        argv = [*here.enter(tmp_path), *launch]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    return run


@every_transport
def test_a_name_that_was_led_here_runs_nothing(cluster: Cluster, exec_here: Exec, transport: str) -> None:
    done = exec_here(f"{SPOOFED} {public_key(cluster['node2'])}\n", transport)
    assert (done.returncode, done.stdout) == (69, "")
    first, *rest = done.stderr.splitlines()
    assert first == f"launch: {SPOOFED} {OTHER_KEY}"
    assert any(line.startswith(f"  {SPOOFED}: its host key has changed: ") for line in rest), done.stderr


@pytest.mark.parametrize(
    ("transport", "name"), [("fabric", SPOOFED), ("fabric", "gpu8"), ("ssh", SPOOFED), ("pdsh", "gpu8")]
)
def test_this_machine_needs_no_ssh(cluster: Cluster, exec_here: Exec, transport: str, name: str) -> None:
    """Where known_hosts has its key, or none for that name."""
    here = cluster["node1"]
    here.replace_file("/etc/ssh/ssh_host_ed25519_key.pub", public_key(here))
    done = exec_here(f"{name} {public_key(here if name == SPOOFED else cluster['node2'])}\n", transport)
    said = f"launch: {SPOOFED} is this machine; not using SSH"
    assert (done.returncode, done.stdout, done.stderr.splitlines()[0]) == (
        0, f"[{SPOOFED}] in\n", said
    ), done.stderr  # fmt: skip


def test_a_machine_whose_keys_can_t_be_compared_is_reached_by_ssh(cluster: Cluster, exec_here: Exec) -> None:
    """Its sshd has the key that is known, and shows it: /etc/ssh has another one."""
    done = exec_here(f"{SPOOFED} {public_key(cluster['node1'])}\n", "fabric")
    assert (done.returncode, done.stdout) == (0, f"[{SPOOFED}] in by SSH\n"), done.stderr
    assert done.stderr.splitlines()[0] == f"launch: {SPOOFED} {OTHER_KEY}"
