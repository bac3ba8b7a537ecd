"""Which host keys Fabric finds in known_hosts, and which it leaves to ssh."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.host_keys import KnownHosts, NeedsSsh, UnknownHostKey

SALT = "|1|" + b64encode(b"s" * 20).decode()
HASHED = paramiko.HostKeys.hash_host("gate", SALT)
Find = Callable[[str], list[str]]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """Return a function that writes known_hosts and gives the keys of `gate` in it."""
    path = tmp_path / "known_hosts"
    known = KnownHosts()

    def find(text: str, place: Destination | None = None) -> list[str]:
        path.write_text(text)
        settings = {"userknownhostsfile": f"{tmp_path}/none {path}", "globalknownhostsfile": "none"}
        return [key for _, key in known.keys_of(place or Destination("gate", "gate", 22, "ann"), settings)]

    return find


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("gate ssh-ed25519 A1\n", ["A1"]),
        ("  GATE,other ssh-ed25519 A1 a comment", ["A1"]),
        (f"{HASHED} ssh-ed25519 A1\n|1|broken ssh-ed25519 A2\n|1|x|y ssh-ed25519 A3", ["A1"]),
        ("gate ssh-ed25519 A1\nother ssh-rsa A2\ngate ssh-rsa A3", ["A1", "A3"]),
        ("# gate ssh-ed25519 A1\ngate\n\nnonsense\ngate ssh-rsa A3 \xff", ["A3"]),
    ],
)
def test_lines_that_name_the_host(find: Find, text: str, keys: list[str]) -> None:
    assert find(text) == keys


@pytest.mark.parametrize(
    "text", ["", "g* ssh-ed25519 A1", "[gate]:22 ssh-ed25519 A1", "# gate ssh-ed25519 A1", "gate ssh-ed25519"]
)
def test_what_is_not_found_is_left_to_ssh(find: Find, text: str) -> None:
    with pytest.raises(UnknownHostKey):
        find(text)


@pytest.mark.parametrize(
    "text",
    ["@revoked * ssh-ed25519 A2", "@cert-authority x ssh-ed25519 A2", "  @new", "!gate,* ssh-ed25519 A2",
     "gate,!gate ssh-ed25519 A2"],
)  # fmt: skip
def test_a_file_that_takes_more_than_a_look_up_is_left_to_ssh(find: Find, text: str) -> None:
    with pytest.raises(NeedsSsh):
        find(f"gate ssh-ed25519 A1\n{text}\n")


def test_a_port_and_an_alias_have_keys_of_their_own(find: Find) -> None:
    text = "gate ssh-ed25519 A1\n[gate]:2222 ssh-ed25519 A2\nfar ssh-ed25519 A3\n"
    assert find(text, Destination("gate", "gate", 2222, "ann")) == ["A2"]
    assert find(text, Destination("gate", "gate", 2222, "ann", alias="far")) == ["A3"]


def test_what_others_have_written_meanwhile_counts(find: Find) -> None:
    """A run may last for days: ssh may record a key, and the user revoke one."""
    with pytest.raises(UnknownHostKey):
        find("")
    assert find("gate ssh-ed25519 A1\n") == ["A1"]
    with pytest.raises(NeedsSsh):
        find("gate ssh-ed25519 A1\n@revoked * ssh-ed25519 A1\n")
