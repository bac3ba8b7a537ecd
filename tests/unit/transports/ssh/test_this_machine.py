"""Is a login this machine? Then no SSH is needed; a wrong yes would run a job on the wrong machine or as another."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.hosts.host import SSH_PORT
from launcher.transports.base import TransportSettings
from launcher.transports.ssh import this_machine
from launcher.transports.ssh.openssh_config import read_answer
from launcher.transports.ssh.this_machine import ThisMachine, is_this_machine

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


def generate(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=60)
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """OWN and OLD are this machine's."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen: apt-get install openssh-client")
    folder = tmp_path_factory.mktemp("keys")
    names = {"OWN": "ssh_host_ed25519_key", "OLD": "ssh_host_old_key", "OTHER": "other"}
    made = {name: generate(folder / file) for name, file in names.items()}
    return {**made, "FOLDER": str(folder)}


@pytest.fixture
def is_meant(keys: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Return a function that writes known_hosts, with the names of the keys in it, and asks about a login."""
    monkeypatch.setattr(this_machine, "_FOLDER", Path(keys["FOLDER"]))

    def ask(text: str, *options: str, said: Callable[[str], object] = lambda text: None) -> bool:
        words = [keys.get(word, word) for word in text.replace("\n", " \n ").split(" ")]
        (tmp_path / "known").write_text(" ".join(words))
        lines = ["hostname 127.0.0.1", "port 22", f"user {getpass.getuser()}", *options]
        files = [f"userknownhostsfile {tmp_path}/none {tmp_path}/known", "globalknownhostsfile none"]
        return ThisMachine(TransportSettings(say=said)).is_meant(read_answer("gpu7", [*lines, *files]))

    return ask


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("gpu8 OTHER", True),
        ("127.0.0.1 OWN", True),
        ("127.0.0.1 OTHER", False),
        ("127.0.0.1 OTHER\n127.0.0.1 OLD", True),
        ("127.0.0.* OTHER", False),
        ("[127.0.0.1]:2222 OTHER", True),
        ("nonsense\n\n@revoked * OTHER", True),
    ],
)
def test_a_key_that_is_known_is_this_machine_s(is_meant: Callable[..., bool], text: str, expected: bool) -> None:
    said: list[str] = []
    assert is_meant(text, said=said.append) is expected
    doubt = "gpu7 has this machine's address, but known_hosts has a different host key for it; connecting over SSH"
    assert said == ([] if expected else [doubt])


def test_a_login_that_leads_elsewhere(is_meant: Callable[..., bool]) -> None:
    assert not is_meant("", "proxyjump gate")  # whose 127.0.0.1 it is
    assert not is_meant("", "proxycommand nc %h %p")
    assert not is_meant("far OTHER", "hostkeyalias far")
    assert is_meant("127.0.0.1 OTHER", "hostkeyalias far")


def test_a_machine_without_host_keys(
    is_meant: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container that shares its home and its address with the machine around it."""
    monkeypatch.setattr(this_machine, "_FOLDER", tmp_path / "none")
    assert not is_meant("127.0.0.1 OWN")
    assert is_meant("gpu8 OWN")
