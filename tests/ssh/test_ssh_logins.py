"""Logins of every kind on a real sshd: what works with `ssh HOST` works with each of our two clients."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from launching import Launch, every_transport, rank
from machines.fido import write_fido_key
from machines.patience import DEADLINE_S
from machines.ports import free_port
from machines.processes import is_alive, wait_until
from password_server import PASSWORD, PasswordServer
from ssh_hosts import SshHost, SshHosts, another_sshd, make_key, running_agent
from terminal import Terminal

from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.transports.base import Transport, TransportError, TransportSettings
from launcher.transports.ssh import identities
from launcher.transports.ssh.fabric import FabricTransport, refuse_needs
from launcher.transports.ssh.logins import TakesSsh
from launcher.transports.ssh.openssh import OpenSSHTransport
from launcher.transports.ssh.openssh_config import HostConfigs
from launcher.transports.ssh.openssh_failures import ONLY_PASSWORD

CLIENTS: dict[str, Callable[[TransportSettings], Transport]] = {"fabric": FabricTransport, "ssh": OpenSSHTransport}
PASSPHRASE = "of two words"
USING_SSH = "using ssh instead of fabric: "
NOT_BY_KEYS = f"{USING_SSH}a login that fabric's keys don't open"
NOT_FOUND = f"{USING_SSH}a host key that fabric doesn't find in known_hosts"

LogIn = Callable[..., str | HostFailure]


@pytest.fixture
def needs() -> list[str]:
    """Where fabric writes what it leaves to ssh."""
    return []


@pytest.fixture
def log_in(hosts: SshHosts, tmp_path: Path, transport: str, needs: list[str]) -> LogIn:
    """Return a function that logs in to node2, with other settings of ssh_config, and returns what it prints."""

    def log_in(
        host: str | Host = "node2",
        make: Callable[[TransportSettings], Transport] = CLIENTS[transport],
        command: str = "echo in",
        **blocks: dict,
    ) -> str:
        config = hosts.write_config(tmp_path / "config", **blocks)
        try:
            named = host if isinstance(host, Host) else Host(host)
            settings = TransportSettings(ssh_config=config, say=needs.append)
            channel = make(settings).open(named, command, DEADLINE_S)
        except TransportError as error:
            return error.failure
        text = b""
        while (piece := channel.read())[0]:
            text += piece[1] if piece[0] == 1 else b""
        channel.close()
        return text.decode()

    return log_in


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start an ssh-agent; return its socket."""
    place = tmp_path / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
    with running_agent(place):
        yield place


def add_to_agent(key: Path, passphrase: str = "") -> None:
    """Add a key as its user would, who types the passphrase."""
    ask = key.with_name("askpass")
    ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
    ask.chmod(0o755)
    env = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True, timeout=DEADLINE_S, capture_output=True)


def allow(hosts: SshHosts, public: str) -> None:
    with (hosts.folder / "authorized_keys").open("a") as file:
        file.write(public)


# ---- keys and agents ------------------------------------------------------------------------------------------------


def test_the_second_of_two_keys(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: list[str]
) -> None:
    """In a directory that a variable names."""
    make_key(tmp_path / "wrong")
    monkeypatch.setenv("KEYS", str(hosts.folder))
    assert log_in(node2={"IdentityFile": f"{tmp_path / 'wrong'}\n  IdentityFile ${{KEYS}}/id"}) == "in\n"
    assert needs == []


def test_algorithms_that_paramiko_lacks(log_in: LogIn, hosts: SshHosts, tmp_path: Path, needs: list[str]) -> None:
    with another_sshd(hosts["node2"], tmp_path, "Ciphers chacha20-poly1305@openssh.com") as settings:
        assert log_in(node2=settings) == "in\n"
    assert [need.startswith(f"{USING_SSH}fabric fails (IncompatiblePeer: ") for need in needs] == [True]


def test_a_locked_key_whose_agent_has_it(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, agent: Path, needs: list[str]
) -> None:
    """Also where only keys that ssh_config names may be tried; without its public half, fabric can't tell."""
    key = tmp_path / "key"
    allow(hosts, make_key(key, passphrase=PASSPHRASE))
    failure = log_in(node2={"IdentityFile": key})
    assert (failure.kind, failure.fix) == (HostFailureKind.KEY_ENCRYPTED, "add the key to an agent with ssh-add first")
    add_to_agent(key, PASSPHRASE)
    assert log_in(node2={"IdentityFile": key}) == "in\n"
    assert needs == []
    key.with_name("key.pub").unlink()
    assert log_in(node2={"IdentityFile": key}) == "in\n"
    assert needs == [NOT_BY_KEYS]


def test_a_key_whose_private_half_the_agent_alone_has(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, agent: Path, needs: list[str]
) -> None:
    key = tmp_path / "key"
    allow(hosts, make_key(key))
    add_to_agent(key)
    key.unlink()
    assert log_in(node2={"IdentityFile": f"{key}.pub"}) == "in\n"
    assert log_in(node2={"IdentityFile": key}) == "in\n"
    assert log_in(node2={"IdentityFile": tmp_path / "none"}).kind is HostFailureKind.LOGIN_REFUSED
    assert log_in(node2={"IdentityFile": tmp_path / "none", "IdentitiesOnly": "no"}) == "in\n"
    assert needs == []


def test_an_agent_that_ssh_config_names(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    allow(hosts, make_key(key))
    add_to_agent(key)
    key.unlink()
    settings = {"IdentityFile": f"{key}.pub"}
    assert log_in(node2={**settings, "IdentityAgent": "none"}).kind is HostFailureKind.LOGIN_REFUSED
    monkeypatch.delenv("SSH_AUTH_SOCK")
    assert log_in(node2=settings).kind is HostFailureKind.LOGIN_REFUSED
    assert log_in(node2={**settings, "IdentityAgent": agent}) == "in\n"


def test_an_agent_that_never_answers(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stopped, or whose computer sleeps: keys in files are tried. OpenSSH would wait for it."""
    monkeypatch.setattr(identities, "_LIST_TIMEOUT_S", 0.2)
    place = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        assert log_in(node2={"IdentityFile": hosts.folder / "id", "IdentityAgent": place}) == "in\n"


# ---- where fabric is refused ----------------------------------------------------------------------------------------


def count_logins(host: SshHost) -> int:
    return host.log.count("Connection from ")


@pytest.mark.parametrize("may_boot", [False, True])
def test_a_refusal_costs_two_logins_at_most(hosts: SshHosts, tmp_path: Path, may_boot: bool) -> None:
    """One by each client, and of fabric none later: a host may lock out an address that is refused often."""
    make_key(tmp_path / "wrong")
    config = hosts.write_config(tmp_path / "config", node2={"IdentityFile": tmp_path / "wrong"})
    client = FabricTransport(TransportSettings(ssh_config=config, may_boot=may_boot))
    before = count_logins(hosts["node2"])
    for expected in (2, 3):
        with pytest.raises(TransportError) as found:
            client.open(Host("node2"), "true", DEADLINE_S)
        assert found.value.failure.text.endswith(f"(tried {tmp_path / 'wrong'})")
        assert wait_until(lambda count=expected: count_logins(hosts["node2"]) - before == count)


def test_a_host_that_ssh_alone_can_reach_is_not_tried_twice(
    hosts: SshHosts, tmp_path: Path, agent: Path, needs: list[str]
) -> None:
    key = tmp_path / "key"
    allow(hosts, make_key(key, passphrase=PASSPHRASE))
    add_to_agent(key, PASSPHRASE)
    key.with_name("key.pub").unlink()
    config = hosts.write_config(tmp_path / "config", node2={"IdentityFile": key})
    client = FabricTransport(TransportSettings(ssh_config=config, say=needs.append))
    before = count_logins(hosts["node2"])
    for _ in range(2):
        client.open(Host("node2"), "true", DEADLINE_S).close()
    assert wait_until(lambda: count_logins(hosts["node2"]) - before == 3)
    assert needs == [NOT_BY_KEYS]


def test_a_silent_host_is_tried_once(log_in: LogIn, hosts: SshHosts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = {"HostName": "127.0.0.1", "Port": mute.getsockname()[1], "HostKeyAlias": hosts["node2"].known_name}
        failure = log_in(node2={**place, "ConnectTimeout": 1})
        assert failure.kind is HostFailureKind.TIMED_OUT
        mute.setblocking(False)
        mute.accept()[0].close()
        with pytest.raises(BlockingIOError):
            mute.accept()


@every_transport
def test_a_jump_host_that_refuses_is_blamed(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    before = [count_logins(host) for host in hosts]
    failure = log_in(node1={"IdentityFile": tmp_path / "wrong"}, node2={"ProxyJump": "node1"})
    assert failure.text.startswith("jump host node1: login refused for user ")
    assert count_logins(hosts["node1"]) - before[0] <= 2
    assert count_logins(hosts["node2"]) == before[1]


# ---- what is for one's own logins ---------------------------------------------------------------------------------


@every_transport
def test_nothing_of_the_user_s_is_forwarded(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever rules the host could log in elsewhere with the keys of the agent, or look at the screen."""
    monkeypatch.setenv("DISPLAY", ":99")
    add_to_agent(hosts.folder / "id")
    port, made = free_port(), tmp_path / "made"
    mine = {
        "ForwardAgent": "yes", "ForwardX11": "yes", "ForwardX11Trusted": "yes", "RequestTTY": "force",
        "LocalForward": f"{port} 127.0.0.1:1", "RemoteForward": f"{port} 127.0.0.1:1", "ExitOnForwardFailure": "yes",
        "PermitLocalCommand": "yes", "LocalCommand": f"touch {made}", "RemoteCommand": "echo mine", "Tunnel": "yes",
    }  # fmt: skip
    with socket.create_server(("127.0.0.1", port)):  # so that none of the two could be made
        said = log_in(command="echo ${SSH_AUTH_SOCK-no agent}, ${DISPLAY-no screen}, $(tty)", node2=mine)
    assert said == "no agent, no screen, not a tty\n"
    assert not made.exists()


# ---- what only ssh can do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "need"),
    [
        ({}, None),
        ({"RevokedHostKeys": "/dev/null"}, "RevokedHostKeys in ssh_config"),
        ({"KnownHostsCommand": "/bin/cat /known"}, "KnownHostsCommand in ssh_config"),
        ({"ProxyCommand": "nc %h %p"}, "ProxyCommand in ssh_config"),
        ({"IdentityFile": "/%C"}, "a token in IdentityFile"),
        ({"BindAddress": "127.0.0.1"}, "BindAddress in ssh_config"),
        ({"AddressFamily": "inet"}, "AddressFamily in ssh_config"),
    ],
)
def test_what_only_ssh_can_do(hosts: SshHosts, tmp_path: Path, settings: dict[str, object], need: str | None) -> None:
    config = hosts.write_config(tmp_path / "config", node2=settings)
    (hop,) = HostConfigs("ssh", config).on_the_way(Host("node2"))
    if need is None:
        refuse_needs(hop)
    else:
        with pytest.raises(TakesSsh) as found:
            refuse_needs(hop)
        assert found.value.reason == need


def test_what_only_ssh_can_do_is_seen_before_a_connection(log_in: LogIn, hosts: SshHosts, needs: list[str]) -> None:
    """To the host or to one on the way to it."""
    before = count_logins(hosts["node1"])
    assert log_in(node1={"RevokedHostKeys": "/dev/null"}, node2={"ProxyJump": "node1"}) == "in\n"
    assert log_in(node2={"ProxyJump": "node1", "RevokedHostKeys": "/dev/null"}) == "in\n"
    assert needs == [f"{USING_SSH}RevokedHostKeys in ssh_config"] * 2
    assert wait_until(lambda: count_logins(hosts["node1"]) - before == 2)


def test_past_a_fido_key(log_in: LogIn, hosts: SshHosts, tmp_path: Path, needs: list[str]) -> None:
    """fabric skips it, and ssh can use it, if its token is there."""
    key = tmp_path / "id_sk"
    write_fido_key(key)
    key.chmod(0o600)
    settings = {"IdentityFile": f"{key}\n  IdentityFile {hosts.folder / 'id'}"}
    assert log_in(node2=settings) == "in\n"
    assert needs == []
    assert log_in(node2={**settings, "PubkeyAuthentication": "no"}).kind is HostFailureKind.LOGIN_REFUSED


def test_each_need_is_told_once(launch: Launch, hosts: SshHosts) -> None:
    need = {"RevokedHostKeys": "/dev/null"}
    config = hosts.write_config(launch.folder / "config", node1=need, node2=need)
    done = launch.exec("--ssh-config", str(config), "--", "echo in")
    assert (done.exit_code, len(done.lines)) == (0, 2), done.stderr
    assert done.stderr.splitlines()[0] == "launch: using ssh instead of fabric: RevokedHostKeys in ssh_config"
    assert done.stderr.count("using ssh") == 1


def test_a_password_is_nothing_for_ssh(log_in: LogIn) -> None:
    def make(settings: TransportSettings) -> FabricTransport:
        return FabricTransport(replace(settings, password=PASSWORD))

    failure = log_in(make=make, node2={"RevokedHostKeys": "/dev/null"})
    assert (failure.text, failure.fix) == (
        "RevokedHostKeys in ssh_config takes ssh",
        "log in with a key, and omit --ask-password, which ssh can't be given",
    )


# ---- host keys ------------------------------------------------------------------------------------------------------


@pytest.fixture
def known(hosts: SshHosts, tmp_path: Path) -> Callable[[str], dict[str, object]]:
    """Return a function that writes known_hosts, with NODE and OTHER for keys, and gives the settings for it."""
    keys = {
        "NODE": hosts["node2"].public_key,
        "OTHER": hosts["node1"].public_key,
        "PORT": str(hosts["node2"].port),
    }

    def write(text: str) -> dict[str, object]:
        path = tmp_path / "known_hosts"
        path.write_text(re.sub("|".join(keys), lambda found: keys[found[0]], text))
        return {"UserKnownHostsFile": path}

    return write


KNOWN = [
    ("[127.0.0.2]:PORT NODE", "in"),
    ("[127.0.0.2]:PORT OTHER", "host key changed"),
    ("[127.0.0.2]:PORT OTHER\n[127.0.0.2]:PORT NODE", "in"),
    ("127.0.0.2 NODE", "in"),
    ("[127.0.0.?]:* NODE", "in"),
    ("!*127.0.0.2*,* NODE", "host key unknown"),
    ("@revoked * OTHER\n[127.0.0.2]:PORT NODE", "in"),
    ("@revoked * NODE\n[127.0.0.2]:PORT NODE", "host key revoked"),
    ("# [127.0.0.2]:PORT NODE\nnonsense\n\n@cert-authority\n[127.0.0.2]:PORT ssh-ed25519 AAA", "host key unknown"),
]


@pytest.mark.parametrize(("text", "outcome"), KNOWN, ids=[text for text, _ in KNOWN])
def test_known_hosts(
    log_in: LogIn, known: Callable[[str], dict[str, object]], text: str, outcome: str, needs: list[str]
) -> None:
    """Fabric accepts a key of the host and its port, unless a line about it is marked; it leaves all else to ssh."""
    answer = log_in(node2=known(text + "\n"))
    assert (answer.strip() if isinstance(answer, str) else answer.kind) == outcome
    is_marked = text.startswith("@")
    is_plain = re.search(r"^\[127.0.0..\]:\S+ NODE", text, re.MULTILINE) is not None and not is_marked
    reason = f"{USING_SSH}a line of known_hosts that begins with @" if is_marked else NOT_FOUND
    assert needs == ([reason] if outcome == "in" and not is_plain else [])


def test_known_hosts_that_are_hashed(
    log_in: LogIn, known: Callable[[str], dict[str, object]], tmp_path: Path, needs: list[str]
) -> None:
    settings = known("[127.0.0.2]:PORT NODE\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", tmp_path / "known_hosts"], check=True, capture_output=True)
    assert "127.0.0.2" not in (tmp_path / "known_hosts").read_text()
    assert log_in(node2=settings) == "in\n"
    assert needs == []


def test_the_alias_of_a_host_key(log_in: LogIn, known: Callable[[str], dict[str, object]], needs: list[str]) -> None:
    settings = {**known("gpu NODE\n"), "HostKeyAlias": "gpu"}
    assert log_in(node2=settings) == "in\n"
    assert needs == []
    failure = log_in(node2={**settings, "HostKeyAlias": "other"})
    assert failure.kind is HostFailureKind.HOST_KEY_UNKNOWN
    assert "127.0.0.2 | sed 's/^[^ #]*/other/' >> " in failure.fix


def test_a_new_key_is_recorded_once(
    log_in: LogIn, known: Callable[[str], dict[str, object]], tmp_path: Path, needs: list[str]
) -> None:
    """By ssh, and fabric then finds it."""
    settings = {**known(""), "StrictHostKeyChecking": "accept-new"}
    for _ in range(2):
        assert log_in(node2=settings) == "in\n"
    assert len((tmp_path / "known_hosts").read_text().splitlines()) == 1
    assert needs == [NOT_FOUND]


@pytest.mark.parametrize("transport", ["pdsh"])
def test_the_connection_itself_costs_no_session(launch: Launch, hosts: SshHosts, tmp_path: Path) -> None:
    """Of which sshd allows so many over one; a process too many gets a login of its own."""
    with another_sshd(hosts["node2"], tmp_path, "MaxSessions 1") as settings:
        config = hosts.write_config(tmp_path / "config", node2=settings)
        done = launch.exec("--hosts", "node2", "--ssh-config", str(config), "--", "echo in")
        logins = (tmp_path / "sshd.log").read_text().count("Accepted publickey")
    assert (done.exit_code, done.lines, logins) == (0, ["[node2] in"], 1), done.stderr


def test_a_new_key_that_is_added_by_hand(log_in: LogIn, known: Callable[[str], dict[str, object]]) -> None:
    """By the line that is shown."""
    settings = known("")
    fix = log_in("node1", node1=settings).fix
    line = fix.removeprefix("check it and add it: ").removesuffix(
        "; or trust new keys: StrictHostKeyChecking accept-new in ssh_config"
    )
    subprocess.run(["/bin/sh", "-c", line], check=True, capture_output=True, timeout=DEADLINE_S)
    assert log_in("node1", node1=settings) == "in\n"


# ---- what is typed --------------------------------------------------------------------------------------------------


def settings_of(server: PasswordServer, hosts: SshHosts, folder: Path) -> dict[str, object]:
    """Return what reaches a server with the host key of node1, which is known."""
    known_hosts = folder / "known"
    known_hosts.write_text(f"[127.0.0.1]:{server.port} {hosts['node1'].public_key}\n")
    kex = "curve25519-sha256@libssh.org"  # paramiko's name of it
    return {"HostName": "127.0.0.1", "Port": server.port, "UserKnownHostsFile": known_hosts, "KexAlgorithms": kex}


@pytest.mark.parametrize("methods", ["password", "keyboard-interactive", "publickey,password"])
def test_a_password(log_in: LogIn, hosts: SshHosts, tmp_path: Path, methods: str) -> None:
    def make(settings: TransportSettings) -> FabricTransport:
        return FabricTransport(replace(settings, password=password))

    write_fido_key(tmp_path / "id_sk")  # nothing for a login by password
    with PasswordServer(methods, hosts["node1"].folder / "host_key") as server:
        keys = f"{tmp_path}/id_sk\n  IdentityFile {hosts.folder}/id"
        password, settings = PASSWORD, {**settings_of(server, hosts, tmp_path), "IdentityFile": keys}
        assert log_in("pw", make=make, pw=settings) == "in\n"
        password = "wrong"
        assert log_in("pw", make=make, pw=settings).text.endswith("the password)")
        assert server.told == [PASSWORD, "wrong"]  # never twice


def test_a_host_that_takes_a_password_alone(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    with PasswordServer("password", hosts["node1"].folder / "host_key") as server:
        failure = log_in("pw", pw=settings_of(server, hosts, tmp_path))
    assert (failure.kind, failure.fix) == (HostFailureKind.LOGIN_REFUSED, ONLY_PASSWORD)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[127.0.0.1]:{} NODE", HostFailureKind.HOST_KEY_CHANGED),
        ("127.0.0.1 OTHER", HostFailureKind.HOST_KEY_UNKNOWN),
        ("", HostFailureKind.HOST_KEY_UNKNOWN),
    ],
)
def test_no_password_is_told_to_a_host_whose_key_is_not_verified(
    log_in: LogIn, hosts: SshHosts, known: Callable[[str], dict[str, object]], text: str, kind: HostFailureKind,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nor does it get a signature, whatever ssh_config says, nor a login by ssh."""

    def make(settings: TransportSettings) -> FabricTransport:
        return FabricTransport(replace(settings, password=PASSWORD))

    program, used = tmp_path / "ssh", tmp_path / "used"  # not the real one, which this server would never answer
    program.write_text(f'#!/bin/sh\n[ "$1" = -G ] && exec {shutil.which("ssh")} "$@"\ntouch {used}; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with PasswordServer("publickey,password", hosts["node1"].folder / "host_key") as server:
        place = settings_of(server, hosts, hosts.folder)
        settings = {**place, **known(text.format(server.port)), "StrictHostKeyChecking": "no"}
        assert log_in("pw", make=make, pw=settings).kind is kind
        assert (server.told, used.exists()) == ([], False)


def test_a_password_is_asked_once_and_shown_nowhere(launch: Launch, hosts: SshHosts) -> None:
    with PasswordServer("password", hosts["node1"].folder / "host_key") as server, Terminal() as terminal:
        place = settings_of(server, hosts, launch.folder)
        config = hosts.write_config(launch.folder / "config", a=place, b=place)
        words = ("--hosts", "a,b", "--ssh-config", str(config), "--ask-password")
        running = launch.start_exec(*words, "--", "true", **terminal.for_popen())
        terminal.read_until("launch: password for all hosts: ")
        terminal.type(PASSWORD.encode() + b"\n")
        terminal.read_until("no Python 3.8 or newer there")
        assert running.finish().exit_code == 69
    assert PASSWORD not in terminal.screen
    assert set(server.told) == {PASSWORD}
    assert server.shown == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "launch: --ask-password needs a terminal\n  fix: without a terminal, log in with a key\n"),
        (
            ("--transport", "ssh"),
            "launch: --ask-password works only with --transport fabric\n  fix: ssh takes a key\n",
        ),
    ],
)
def test_a_password_that_nobody_can_be_asked_for(launch: Launch, words: tuple[str, ...], error: str) -> None:
    done = launch.exec("--ask-password", *words, "--", "true")
    assert (done.exit_code, done.stderr) == (2, error)


# ---- the way to a host ----------------------------------------------------------------------------------------------


def test_user_and_port_of_a_hostfile_win(log_in: LogIn, hosts: SshHosts) -> None:
    wrong = {"HostName": "127.0.0.2", "User": "nobody", "Port": 1}
    host = Host("far", user=getpass.getuser(), port=hosts["node2"].port)
    assert log_in(host, far=wrong) == "in\n"
    assert log_in("far", far=wrong).text == "127.0.0.2 port 1 refuses the connection"


def test_a_chain_of_two_jumps(log_in: LogIn, hosts: SshHosts) -> None:
    before = [host.log.count("Accepted publickey") for host in hosts]
    far = {"HostName": "127.0.0.1", "Port": hosts["node1"].port, "ProxyJump": "node1,node2"}
    assert log_in("far", far=far) == "in\n"
    assert [host.log.count("Accepted publickey") for host in hosts] == [before[0] + 2, before[1] + 1]


@pytest.mark.parametrize(
    ("culprit", "settings", "said"),
    [
        ("e1", {"Port": 1}, "jump host e1: 127.0.0.1 port 1 refuses the connection"),
        ("e1", {"UserKnownHostsFile": "/dev/null"}, "jump host e1: its host key is not known"),
        ("e2", {"UserKnownHostsFile": "/dev/null"}, "jump host e2: its host key is not known"),
        ("e2", {"Port": 1}, "jump host e2: its jump host can't reach 127.0.0.2 port 1 (Connection refused)"),
        ("e3", {"Port": 1}, "its jump host can't reach 127.0.0.1 port 1 (Connection refused)"),
        ("e3", {"UserKnownHostsFile": "/dev/null"}, "its host key is not known"),
    ],
)
@pytest.mark.parametrize("transport", ["ssh"])
def test_the_one_of_two_jumps_that_fails_is_blamed(
    log_in: LogIn, hosts: SshHosts, culprit: str, settings: dict[str, object], said: str
) -> None:
    """ssh itself says no name where it would ask; ssh_config names the first for the second alone."""
    e1, e2 = ({"HostName": host.address, "Port": host.port, "StrictHostKeyChecking": "ask"} for host in hosts)
    way = {"e1": e1, "e2": {**e2, "ProxyJump": "e1"}, "e3": {**e1, "ProxyJump": "e2"}}
    way[culprit] |= settings
    assert log_in("e3", **way).text == said


def test_a_proxy_command_that_fails_is_told_in_its_words(log_in: LogIn) -> None:
    failure = log_in(node2={"ProxyCommand": "sh -c 'echo no way to %h >&2'"})
    assert (failure.kind, failure.text) == (HostFailureKind.CUT_OFF, "its ProxyCommand exited: no way to 127.0.0.2")


@every_transport
def test_a_jump_host_that_forwards_nothing(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    with another_sshd(hosts["node1"], tmp_path, "AllowTcpForwarding no") as settings:
        failure = log_in(node1=settings, node2={"ProxyJump": "node1"})
    assert "rohibited" in failure.text
    assert failure.fix == "allow it in the jump host's sshd_config: AllowTcpForwarding, PermitOpen"


@every_transport
def test_a_gateway_that_does_not_answer(log_in: LogIn, hosts: SshHosts, transport: str) -> None:
    """For as long as ssh_config says."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = {"Port": mute.getsockname()[1], "HostKeyAlias": hosts["node1"].known_name}
        failure = log_in(node1=place, node2={"ProxyJump": "node1", "ConnectTimeout": 1})
    said = {
        "fabric": "jump host node1: 127.0.0.1 port {} does not answer",
        "ssh": "127.0.0.2 port {} does not answer through node1",  # it can't tell who is silent
    }[transport]
    assert (failure.kind, re.sub(r"port \d+", "port {}", failure.text)) == (HostFailureKind.TIMED_OUT, said)


def test_a_control_master_is_used_and_never_made_and_its_end_is_a_lost_connection(
    launch: Launch, hosts: SshHosts
) -> None:
    place, own = launch.folder / "master", launch.folder / "own"
    makes = {"ControlPath": own, "ControlMaster": "auto", "ControlPersist": "yes"}
    config = hosts.write_config(launch.folder / "config", node1=makes, node2={"ControlPath": place})
    master = subprocess.Popen(
        ["ssh", "-F", config, "-o", "ControlMaster=yes", "-N", "node2"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(place.exists)
        running = launch.start("--transport", "ssh", "--ssh-config", str(config), *rank("wait"))
        running.wait_for_ranks()
        assert not own.exists()
    finally:
        master.kill()
        master.wait()
    done = running.finish()
    assert done.exit_code == 69
    assert "launch: lost node2 (the connection was lost), stopping the run on 2 hosts" in done.words


def test_a_launcher_that_is_killed_leaves_no_ssh(launch: Launch, hosts: SshHosts) -> None:
    """Nor one that goes through another: end of file is all that they get."""
    config = hosts.write_config(launch.folder / "config", node2={"ProxyJump": "node1"})
    words = ("--transport", "ssh", "--ssh-config", str(config), "--", "echo ready; exec sleep 300")
    running = launch.start_exec(*words)
    running.wait_for("] ready", 2)
    clients = [process for process in hosts.all_processes() if process.argv[0].endswith("ssh")]
    assert len(clients) == 3
    running.signal(signal.SIGKILL)
    assert wait_until(lambda: not any(is_alive(client.pid) for client in clients))
    running.wait_until_clean()
