"""What ssh_config says of a host: the real ssh's answer, asked once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.base import TransportSettings
from launcher.transports.ssh.fabric import FabricTransport
from launcher.transports.ssh.openssh_config import HostConfig, HostConfigs, find_ssh

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh: apt install openssh-client")

HOP = "Host hop\n  HostName 10.0.0.9\n  User jumper\n  Port 2200\n"
Read = Callable[[str], HostConfigs]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that writes a file and gives the answers for it."""

    def write(text: str) -> HostConfigs:
        path = tmp_path / "config"
        path.write_text(text)
        return HostConfigs(find_ssh(), path)

    return write


def where(configs: HostConfigs, host: Host) -> list[tuple[str, str, int]]:
    """Return address, user and port of each login on the way to a host."""
    return [(hop.place.host, hop.place.user, hop.place.port) for hop in configs.on_the_way(host)]


WAYS = [
    (HOP, Host("hop"), [("10.0.0.9", "jumper", 2200)]),
    (HOP, Host("hop", "eve", 23), [("10.0.0.9", "eve", 23)]),
    (HOP + "Host a\n  User ann\n  ProxyJump hop\n", Host("a"), [("10.0.0.9", "jumper", 2200), ("a", "ann", 22)]),
    (HOP + "Host a\n  User ann\n  ProxyJump eve@hop:23\n", Host("a"), [("10.0.0.9", "eve", 23), ("a", "ann", 22)]),
    ("Host a\n  User ann\n  ProxyJump bob@[::1]:23\n", Host("a"), [("::1", "bob", 23), ("a", "ann", 22)]),
    (
        HOP + "Host a b\n  User ann\nHost a\n  ProxyJump b,hop\nHost b\n  ProxyJump bob@c\n",
        Host("a"),
        [("c", "bob", 22), ("b", "ann", 22), ("10.0.0.9", "jumper", 2200), ("a", "ann", 22)],
    ),
]


@needs_ssh
@pytest.mark.parametrize(("text", "host", "hops"), WAYS)
def test_each_login_on_the_way(read: Read, text: str, host: Host, hops: list[tuple[str, str, int]]) -> None:
    assert where(read(text), host) == hops


@needs_ssh
def test_ssh_is_asked_once_for_each(read: Read, asked: Callable[[], list[str]]) -> None:
    """Also if many ask at the same time, and if it refuses."""
    configs = read(f"{HOP}Host n*\n  ProxyJump hop\nMatch originalhost bad exec false\n")
    hosts = [Host(f"n{number}") for number in range(20)]
    asked()
    with ThreadPoolExecutor(len(hosts)) as pool:
        ways = list(pool.map(lambda host: where(configs, host), hosts))
    assert [way[0] for way in ways] == [("10.0.0.9", "jumper", 2200)] * len(hosts)
    assert sorted(asked()) == sorted(["hop", *(host.name for host in hosts)])
    configs = read(f"{HOP}Host n*\n  ProxyJump hop\n")
    configs.ask_all([(host.name, ["--", host.name]) for host in hosts])
    assert sorted(asked()) == sorted(["hop", *(host.name for host in hosts)])
    assert [[hop.place.name for hop in configs.on_the_way(host)] for host in hosts] == [
        ["hop", host.name] for host in hosts
    ]
    assert asked() == []
    configs = read("Port x\n")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"config line 1: Bad port 'x'\.$"):
            configs.of("a", ["--", "a"])
    assert asked() == ["a"]


@needs_ssh
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Host a\n  ProxyJump b\nHost b\n  ProxyJump c\nHost c\n  ProxyJump b\n",
            "ProxyJump loop on the way to a: b is",
        ),
        ("User guard\nProxyJump bastion\n", "jumphost loop via bastion"),
    ],
)
def test_a_way_that_never_ends_is_refused(read: Read, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(text).on_the_way(Host("a"))


@needs_ssh
def test_a_jump_host_for_all_hosts_but_itself(read: Read) -> None:
    configs = read("Host bastion\n  ProxyJump none\nHost *\n  User guard\n  ProxyJump bastion\n")
    assert where(configs, Host("a")) == [("bastion", "guard", 22), ("a", "guard", 22)]


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none: no such file"):
        FabricTransport(TransportSettings(ssh_config=tmp_path / "none"))


def settings_of(read: Read, text: str) -> HostConfig:
    return read(text).on_the_way(Host("e1", "eve", 2222))[-1]


@needs_ssh
def test_what_is_none_is_not_set(read: Read) -> None:
    found = settings_of(read, "ProxyCommand none\nCertificateFile none\nHostKeyAlias none\nConnectTimeout none\n")
    assert (found.option("proxycommand"), found.place.alias, found.option("connecttimeout")) == (None, None, None)
    assert found.is_direct
    assert (found.connect_timeout_s, settings_of(read, "ConnectTimeout 1m30s\n").connect_timeout_s) == (None, 90)


@needs_ssh
@pytest.mark.parametrize(
    ("value", "own"), [("/kh ~/kh2", ["/kh", "~/kh2"]), ('"/kh" "/kh2"', ["/kh", "/kh2"]), ("kh", []), ("none", [])]
)
def test_which_files_have_host_keys(read: Read, value: str, own: list[str]) -> None:
    found = settings_of(read, f"UserKnownHostsFile {value}\nGlobalKnownHostsFile /all\n")
    paths = [Path(path).expanduser() for path in own]
    assert found.known_hosts_files == [*paths, Path("/all")]
    assert found.place.known_file == (str(paths[0]) if paths else None if value == "none" else "/all")


def test_without_ssh_nothing_is_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        FabricTransport(TransportSettings())
    assert (caught.value.message, caught.value.fix) == ("no ssh on this machine", "install openssh-client")
