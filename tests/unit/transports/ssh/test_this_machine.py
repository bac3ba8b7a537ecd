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
from launcher.transports.settings import TransportSettings
from launcher.transports.ssh import this_machine
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.this_machine import ThisMachine, find_doubt, is_this_machine

FOREIGN = "192.0.2.1"  # TEST-NET-1, which nobody has (RFC 5737)
OTHER_KEY = "known_hosts has a different host key for it"
FOR_A_LOGIN = "only a login can compare its host key"
NO_KEY = "this machine has no /etc/ssh/ssh_host_*_key.pub to compare"

Known = Callable[[str], dict[str, str]]


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


def doubt_of(name: str, settings: dict[str, str]) -> str:
    return find_doubt(Destination(name, name, 22, "ann"), settings)


def generate(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=60)
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """OWN and OLD are this machine's."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen: apt-get install openssh-client")
    folder = tmp_path_factory.mktemp("keys")
    names = {"OWN": "ssh_host_ed25519_key", "OLD": "ssh_host_old_key", "OTHER": "other", "CA": "ca"}
    made = {name: generate(folder / file) for name, file in names.items()}
    return {**made, "FOLDER": str(folder)}


@pytest.fixture
def known(keys: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Known:
    """Return a function that writes known_hosts, with the names of the keys in it, and gives the settings for it."""
    monkeypatch.setattr(this_machine, "_FOLDER", Path(keys["FOLDER"]))

    def write(text: str) -> dict[str, str]:
        words = [keys.get(word, word) for word in text.replace("\n", " \n ").split(" ")]
        (tmp_path / "known").write_text(" ".join(words))
        return {"userknownhostsfile": str(tmp_path / "known"), "globalknownhostsfile": "none"}

    return write


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("", ""),
        ("gpu8 OTHER", ""),
        ("gpu7 OWN", ""),
        ("gpu7 OTHER", OTHER_KEY),
        ("GPU7 OTHER", OTHER_KEY),
        ("gpu7 OTHER\ngpu7 OLD", ""),
        ("gpu* OTHER", OTHER_KEY),
        ("gpu*,!gpu7 OTHER", ""),
        ("[gpu7]:2222 OTHER", ""),
        ("[gpu7]:22 OTHER", ""),
        ("@cert-authority gpu* CA", FOR_A_LOGIN),
        ("@cert-authority gpu8 CA", ""),
        ("@cert-authority gpu* CA\ngpu7 OTHER", FOR_A_LOGIN),
        ("@cert-authority gpu* OTHER\ngpu7 OWN", ""),
        ("gpu7 CA", OTHER_KEY),
        ("@revoked * OTHER", ""),
        ("@revoked * OLD", ""),
        ("gpu7 OWN\n@revoked * OLD", ""),
        ("gpu7 OWN\n@revoked * OWN", OTHER_KEY),
    ],
)
def test_a_key_that_is_known_is_this_machine_s(known: Known, text: str, doubt: str) -> None:
    assert doubt_of("gpu7", known(text)) == doubt


def test_a_name_that_is_hashed(known: Known, tmp_path: Path) -> None:
    settings = known("gpu7 OTHER\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(tmp_path / "known")], check=True, capture_output=True)
    assert "gpu7" not in (tmp_path / "known").read_text()
    assert doubt_of("gpu7", settings) == OTHER_KEY
    assert doubt_of("gpu8", settings) == ""


def test_a_global_file_counts(known: Known, tmp_path: Path) -> None:
    known("gpu7 OTHER")
    assert doubt_of("gpu7", {"userknownhostsfile": "none", "globalknownhostsfile": str(tmp_path / "known")})


def test_a_machine_without_host_keys(known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container that shares its home and its address with the machine around it."""
    monkeypatch.setattr(this_machine, "_FOLDER", tmp_path / "none")
    assert doubt_of("gpu7", known("gpu7 OWN")) == NO_KEY
    assert doubt_of("gpu7", known("gpu8 OWN")) == ""


@pytest.mark.parametrize(
    ("more", "doubt"),
    [
        ({"knownhostscommand": "/usr/bin/keys %H"}, FOR_A_LOGIN),
        ({"knownhostscommand": "none"}, ""),
        ({"userknownhostsfile": "/keys.d/%C"}, FOR_A_LOGIN),
        ({"userknownhostsfile": "/${KEYS}/kh"}, FOR_A_LOGIN),
        ({"globalknownhostsfile": "/keys.d/%k"}, FOR_A_LOGIN),
    ],
)
def test_keys_that_launch_can_t_see(known: Known, more: dict[str, str], doubt: str) -> None:
    assert doubt_of("gpu7", {**known(""), **more}) == doubt


def test_keys_can_t_be_compared_without_ssh_keygen(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless there is no file of known_hosts: then nothing contradicts the address."""
    settings = known("gpu7 OWN")
    monkeypatch.setenv("PATH", "/none")
    assert doubt_of("gpu7", settings) == FOR_A_LOGIN
    assert doubt_of("gpu7", {"userknownhostsfile": "/none/known", "globalknownhostsfile": "none"}) == ""


def test_a_host_in_doubt_is_told(known: Known) -> None:
    said: list[str] = []
    local = ThisMachine(TransportSettings(say=said.append))
    here = Destination("gpu7", "127.0.0.1", 22, getpass.getuser())
    assert local.is_meant(here, known("gpu7 OTHER"), is_direct=True)
    assert not local.is_meant(here, known("127.0.0.1 OTHER"), is_direct=True)
    assert not local.is_meant(here, known("gpu7 OTHER"), is_direct=False)  # the jump host's 127.0.0.1
    aliased = Destination("gpu7", "127.0.0.1", 22, getpass.getuser(), alias="far")
    assert not local.is_meant(aliased, known("far OTHER"), is_direct=True)
    assert local.is_meant(aliased, known("127.0.0.1 OTHER"), is_direct=True)
    elsewhere = Destination("gpu8", "127.0.0.1", 2222, getpass.getuser())
    assert not local.is_meant(elsewhere, known(""), is_direct=True)
    assert said == [f"gpu7 has this machine's address, but {OTHER_KEY}; connecting over SSH"] * 2
