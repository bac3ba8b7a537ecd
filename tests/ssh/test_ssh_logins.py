"""Logins of every kind on a real sshd: what works with `ssh HOST` works with each of our two clients."""

from __future__ import annotations

import functools
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from launching import Launch, every_transport, rank
from machines.fido import write_fido_key
from machines.patience import DEADLINE_S
from machines.ports import free_port
from machines.processes import wait_until
from password_server import PASSWORD, PasswordServer
from ssh_hosts import SSHD_PATH, SshHost, SshHosts, is_alive, make_key, running_agent, sign
from terminal import Terminal

from launcher.errors import HostFailure, HostFailureKind, UsageError
from launcher.hosts.host import Host
from launcher.transports.base import Transport, TransportError
from launcher.transports.settings import TransportSettings
from launcher.transports.ssh import mute_agents
from launcher.transports.ssh.fabric import FabricTransport
from launcher.transports.ssh.failures import SECOND_KEY, SECOND_PASSWORD
from launcher.transports.ssh.identities import Secrets
from launcher.transports.ssh.openssh import OpenSSHTransport

CLIENTS: dict[str, Callable[[TransportSettings], Transport]] = {"fabric": FabricTransport, "ssh": OpenSSHTransport}
PASSPHRASE = "of two words"

LogIn = Callable[..., str | HostFailure]


@pytest.fixture
def needs() -> list[str]:
    """Where fabric writes what it has left to ssh."""
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
            settings = TransportSettings(ssh_config=config, on_openssh=needs.append)
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


def add_to_agent(key: Path, passphrase: str = "", options: Sequence[str] = ()) -> None:
    """Add a key as its user would, who types the passphrase."""
    ask = key.with_name("askpass")
    ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
    ask.chmod(0o755)
    env = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", "-q", *options, str(key)], env=env, check=True, timeout=DEADLINE_S, capture_output=True)


def allow(hosts: SshHosts, public: str, options: str = "") -> None:
    with (hosts.folder / "authorized_keys").open("a") as file:
        file.write(f"{options}{public}")


@contextmanager
def sshd_with(host: SshHost, folder: Path, *lines: str) -> Iterator[dict[str, object]]:
    """Run another sshd of a host, with these lines in its sshd_config; yield what reaches it."""
    port = free_port(host.address)
    config = (host.folder / "sshd_config").read_text()
    config = config.replace(f":{host.port}\n", f":{port}\n").replace("/sshd.pid", "/other.pid")
    (folder / "sshd_config").write_text("\n".join([*lines, config]))  # the first value counts
    sshd = shutil.which("sshd", path=SSHD_PATH)
    assert sshd is not None
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        assert wait_until(lambda: f"port {port}" in (folder / "sshd.log").read_text())
        yield {"Port": port, "HostKeyAlias": f"[{host.address}]:{host.port}"}
    finally:
        server.kill()
        server.wait()


# ---- keys and agents ------------------------------------------------------------------------------------------------


@every_transport
def test_the_second_of_two_keys(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    assert log_in(node2={"IdentityFile": f"{tmp_path / 'wrong'}\n  IdentityFile {hosts.folder / 'id'}"}) == "in\n"


@every_transport
def test_a_key_in_a_folder_that_a_variable_names(
    log_in: LogIn, hosts: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", str(hosts.folder))
    assert log_in(node2={"IdentityFile": "${KEYS}/id"}) == "in\n"


@every_transport
def test_a_server_that_wants_two_keys(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    allow(hosts, make_key(tmp_path / "second"))
    with sshd_with(hosts["node2"], tmp_path, "AuthenticationMethods publickey,publickey") as settings:
        assert log_in(node2=settings).fix == SECOND_KEY
        both = f"{hosts.folder / 'id'}\n  IdentityFile {tmp_path / 'second'}"
        assert log_in(node2={**settings, "IdentityFile": both}) == "in\n"


@every_transport
def test_a_server_that_wants_a_password_besides_the_key(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    lines = ("AuthenticationMethods publickey,password", "PasswordAuthentication yes")
    with sshd_with(hosts["node2"], tmp_path, *lines) as settings:
        assert log_in(node2=settings).fix == SECOND_PASSWORD


@every_transport
@pytest.mark.parametrize(
    "lines", [("Ciphers chacha20-poly1305@openssh.com",), ("Ciphers aes128-ctr", "MACs umac-128-etm@openssh.com")]
)
def test_algorithms_that_paramiko_lacks(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, transport: str, lines: tuple[str, ...]
) -> None:
    with sshd_with(hosts["node2"], tmp_path, *lines) as settings:
        found = log_in(node2=settings)
    assert (found if isinstance(found, str) else found.fix) == {
        "fabric": "use --transport ssh, if ssh can",
        "ssh": "in\n",
    }[transport]


@every_transport
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_a_locked_key_whose_agent_has_it(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, agent: Path, needs: list[str], kind: str
) -> None:
    """Also where only keys that ssh_config names may be tried."""
    key = tmp_path / "key"
    allow(hosts, make_key(key, kind, PASSPHRASE))
    assert log_in(node2={"IdentityFile": key}).kind is HostFailureKind.KEY_ENCRYPTED
    add_to_agent(key, PASSPHRASE)
    assert log_in(node2={"IdentityFile": key}) == "in\n"
    key.with_name("key.pub").unlink()
    assert log_in(node2={"IdentityFile": key}) == "in\n"
    assert needs == []


@every_transport
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


@every_transport
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


@every_transport
@pytest.mark.parametrize("is_named", [True, False])
def test_an_agent_that_never_answers(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """As one that is stopped, or whose computer sleeps: it is named, and keys in files are tried."""
    monkeypatch.setattr(mute_agents, "ANSWER_S", 0.2)
    place, told = str(tmp_path / "agent"), list[str]()
    monkeypatch.setenv("SSH_AUTH_SOCK", "none" if is_named else place)
    make = functools.partial(log_in, make=lambda settings: CLIENTS[transport](replace(settings, on_mute=told.append)))
    agent = {"IdentityAgent": place} if is_named else {}
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        assert make(node2={"IdentityFile": hosts.folder / "id", **agent}) == "in\n"
        assert make(node2={"IdentityFile": tmp_path / "none", **agent}).kind is HostFailureKind.LOGIN_REFUSED
    assert told == [place]


@every_transport
def test_an_agent_that_does_not_sign(log_in: LogIn, hosts: SshHosts, tmp_path: Path, agent: Path) -> None:
    """As when the card is gone: the next key is tried, and the refusal is told."""
    key = tmp_path / "key"
    allow(hosts, make_key(key))
    add_to_agent(key, options=["-c"])  # it asks before it signs, and nobody is there to say yes
    key.unlink()
    failure = log_in(node2={"IdentityFile": f"{key}.pub"})
    assert failure.kind is HostFailureKind.LOGIN_REFUSED
    assert failure.text.endswith(f"(tried {key}.pub (agent), which would not sign)")
    assert failure.fix == "confirm when the agent asks, or insert its smart card"
    assert log_in(node2={"IdentityFile": f"{key}.pub\n  IdentityFile {hosts.folder / 'id'}"}) == "in\n"


@pytest.mark.parametrize("transport", ["ssh"])
def test_a_key_that_others_may_read(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    key = tmp_path / "key"
    allow(hosts, make_key(key))
    key.chmod(0o644)
    failure = log_in(node2={"IdentityFile": key})
    assert failure.text.endswith(f"(tried {key}: bad permissions)")
    assert failure.fix == f"chmod 600 {key}"


def test_what_was_offered_is_named(log_in: LogIn, tmp_path: Path, agent: Path) -> None:
    make_key(tmp_path / "held")
    make_key(tmp_path / "file")
    add_to_agent(tmp_path / "held")
    failure = log_in(node2={"IdentityFile": tmp_path / "file", "IdentitiesOnly": "no"})
    comment = (tmp_path / "held.pub").read_text().split()[2]
    assert failure.text.endswith(f"(tried {comment} (agent), {tmp_path / 'file'})")


def test_the_passphrase_of_a_key_is_kept_for_all_hosts(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    key = tmp_path / "key"
    allow(hosts, make_key(key, passphrase=PASSPHRASE))
    secrets = Secrets()
    assert not secrets.unlock(key, "wrong")
    assert secrets.unlock(key, PASSPHRASE)

    def make(settings: TransportSettings) -> FabricTransport:
        return FabricTransport(replace(settings, secrets=secrets))

    assert log_in(make=make, node2={"IdentityFile": key}) == "in\n"
    assert log_in("node1", make=make, node1={"IdentityFile": key}) == "in\n"


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


@pytest.mark.parametrize("transport", ["ssh"])
def test_a_run_needs_its_ends_whatever_one_s_own_logins_do(launch: Launch, hosts: SshHosts) -> None:
    mine = {"node1": {"StdinNull": "yes"}, "node2": {"SessionType": "none"}}
    config = hosts.write_config(launch.folder / "config", **mine)
    done = launch.exec("--ssh-config", str(config), "--", "echo in")
    assert (done.exit_code, sorted(done.lines)) == (0, ["[node1] in", "[node2] in"])


# ---- certificates ---------------------------------------------------------------------------------------------------


@pytest.fixture
def certified(hosts: SshHosts, tmp_path: Path) -> Path:
    """A key that is let in with its certificate alone."""
    ca, key = tmp_path / "ca", tmp_path / "key"
    allow(hosts, make_key(ca), 'cert-authority,principals="trainer" ')
    make_key(key)
    sign(ca, key, "-n", "trainer")
    return key


@every_transport
def test_a_certificate_beside_its_key(log_in: LogIn, certified: Path, transport: str, needs: list[str]) -> None:
    assert log_in(node2={"IdentityFile": certified}) == "in\n"
    assert needs == ([f"the certificate of {certified}"] if transport == "fabric" else [])
    certified.with_name("key-cert.pub").unlink()
    assert log_in(node2={"IdentityFile": certified}).kind is HostFailureKind.LOGIN_REFUSED


@every_transport
def test_a_certificate_that_ssh_config_names(log_in: LogIn, certified: Path, tmp_path: Path) -> None:
    elsewhere = certified.with_name("key-cert.pub").rename(tmp_path / "elsewhere.pub")
    assert log_in(node2={"IdentityFile": certified}).kind is HostFailureKind.LOGIN_REFUSED
    assert log_in(node2={"IdentityFile": certified, "CertificateFile": elsewhere}) == "in\n"
    second = f"{tmp_path}/none\n  CertificateFile {elsewhere}"
    assert log_in(node2={"IdentityFile": certified, "CertificateFile": second}) == "in\n"


@every_transport
def test_a_certificate_of_a_key_in_an_agent(
    log_in: LogIn, certified: Path, agent: Path, transport: str, needs: list[str]
) -> None:
    add_to_agent(certified)  # takes the certificate as well
    certified.with_name("key-cert.pub").unlink()
    certified.unlink()
    assert log_in(node2={"IdentityFile": f"{certified}.pub", "IdentitiesOnly": "no"}) == "in\n"
    assert needs == (["a certificate in the agent"] if transport == "fabric" else [])
    subprocess.run(["ssh-add", "-q", "-D"], check=True, capture_output=True, timeout=DEADLINE_S)
    assert (
        log_in(node2={"IdentityFile": f"{certified}.pub", "IdentitiesOnly": "no"}).kind is HostFailureKind.LOGIN_REFUSED
    )


# ---- what only ssh can do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "need"),
    [
        ({}, None),
        ({"PKCS11Provider": "/usr/lib/pkcs11.so"}, "PKCS11Provider in ssh_config"),
        ({"RevokedHostKeys": "/dev/null"}, "RevokedHostKeys in ssh_config"),
        ({"KnownHostsCommand": "/bin/cat /known"}, "KnownHostsCommand in ssh_config"),
        ({"HostbasedAuthentication": "yes"}, "HostbasedAuthentication in ssh_config"),
        ({"CertificateFile": "/none"}, "CertificateFile in ssh_config"),
        ({"ProxyCommand": "cat /%C"}, "a token in ssh_config that only ssh expands"),
        ({"UserKnownHostsFile": '"/a b/kh"'}, "the known_hosts file /a b/kh"),
        ({"IdentityFile": "/%C"}, "a token in ssh_config that only ssh expands"),
        ({"BindAddress": "127.0.0.1"}, "BindAddress in ssh_config"),
        ({"AddressFamily": "inet"}, "AddressFamily in ssh_config"),
        ({"NoHostAuthenticationForLocalhost": "yes"}, "NoHostAuthenticationForLocalhost in ssh_config"),
        ({"ProxyCommand": "fdpass", "ProxyUseFdpass": "yes"}, "ProxyUseFdpass in ssh_config"),
        ({"VerifyHostKeyDNS": "yes"}, "VerifyHostKeyDNS in ssh_config"),
    ],
)
@pytest.mark.parametrize("is_gateway", [False, True])
def test_what_only_ssh_can_do(
    hosts: SshHosts, tmp_path: Path, settings: dict[str, object], need: str | None, is_gateway: bool
) -> None:
    """Of the host or of one on the way to it."""
    blocks = {"node1": settings, "node2": {"ProxyJump": "node1"}} if is_gateway else {"node2": settings}
    config = hosts.write_config(tmp_path / "config", **blocks)
    transport = FabricTransport(TransportSettings(ssh_config=config))
    assert transport._find_need(transport._configs.on_the_way(Host("node2"))) == (need or "")


@every_transport
def test_past_a_fido_key(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, transport: str, needs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh can use it, if its token is there; where there is no ssh, or public keys are turned off, it is skipped."""
    key = tmp_path / "id_sk"
    write_fido_key(key)
    key.chmod(0o600)
    settings = {"IdentityFile": f"{key}\n  IdentityFile {hosts.folder / 'id'}"}
    assert log_in(node2=settings) == "in\n"
    assert needs == ([f"the FIDO key {key}"] if transport == "fabric" else [])
    assert log_in(node2={**settings, "PubkeyAuthentication": "no"}).kind is HostFailureKind.LOGIN_REFUSED
    if transport == "fabric":
        monkeypatch.setenv("PATH", str(tmp_path))
        assert log_in(node2=settings) == "in\n"
        assert len(needs) == 1


@every_transport
def test_a_key_that_ssh_config_revokes(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    revoked = tmp_path / "revoked"
    revoked.write_text(hosts["node2"].public_key + "\n")
    failure = log_in(node2={"RevokedHostKeys": revoked})
    assert (failure.kind, failure.text) == (
        HostFailureKind.HOST_KEY_REVOKED, f"its host key is revoked by {revoked}",
    )  # fmt: skip


def test_no_key_is_written_into_a_file_of_all_users(
    log_in: LogIn, known: Callable[[str], dict[str, object]], tmp_path: Path
) -> None:
    known("")
    settings = {
        "UserKnownHostsFile": "none", "GlobalKnownHostsFile": tmp_path / "known_hosts",
        "StrictHostKeyChecking": "accept-new",
    }  # fmt: skip
    assert log_in(node2=settings).kind is HostFailureKind.HOST_KEY_UNKNOWN
    assert (tmp_path / "known_hosts").read_text() == ""


def test_each_need_is_told_once(launch: Launch, hosts: SshHosts) -> None:
    need = {"RevokedHostKeys": "/dev/null"}
    config = hosts.write_config(launch.folder / "config", node1=need, node2=need)
    done = launch.exec("--ssh-config", str(config), "--", "echo in")
    assert (done.exit_code, len(done.lines)) == (0, 2), done.stderr
    assert done.stderr.splitlines()[0] == "launch: using ssh instead of fabric: RevokedHostKeys in ssh_config"
    assert done.stderr.count("using ssh") == 1


def test_a_password_is_nothing_for_ssh(log_in: LogIn) -> None:
    def make(settings: TransportSettings) -> FabricTransport:
        return FabricTransport(replace(settings, secrets=Secrets(PASSWORD)))

    failure = log_in(make=make, node2={"RevokedHostKeys": "/dev/null"})
    need = "RevokedHostKeys in ssh_config"
    assert (failure.text, failure.fix) == (
        f"--ask-password can't be used with {need}: that takes ssh, which asks for itself",
        f"log in with a key, or without {need}",
    )


def test_a_need_without_ssh(
    log_in: LogIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: Callable[[str], dict[str, object]]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"^a @revoked line in known_hosts takes ssh, which can't be run here$"):
        log_in(node2=known("@revoked * OTHER\n"))


# ---- host keys ------------------------------------------------------------------------------------------------------


@pytest.fixture
def known(hosts: SshHosts, tmp_path: Path) -> Callable[[str], dict[str, object]]:
    """Return a function that writes known_hosts, with NODE, CA and OTHER for keys, and gives the settings for it."""
    keys = {
        "NODE": hosts["node2"].public_key,
        "OTHER": hosts["node1"].public_key,
        "CA": " ".join(hosts.authority.with_name("ca.pub").read_text().split()[:2]),
        "PORT": str(hosts["node2"].port),
    }

    def write(text: str) -> dict[str, object]:
        path = tmp_path / "known_hosts"
        path.write_text(re.sub("|".join(keys), lambda found: keys[found[0]], text))  # at once: a key may hold `CA`
        return {"UserKnownHostsFile": path}

    return write


KNOWN = [
    ("[127.0.0.2]:PORT NODE", "in"),
    ("[127.0.0.2]:PORT OTHER", "host key changed"),
    ("[127.0.0.2]:PORT OTHER\n[127.0.0.2]:PORT NODE", "in"),
    ("127.0.0.2 NODE", "in"),
    ("127.0.0.2 OTHER", "host key unknown"),
    ("127.0.0.2 OTHER\n[127.0.0.2]:PORT NODE", "in"),
    ("127.0.0.2 NODE\n@cert-authority [127.0.0.2]:PORT OTHER", "in"),
    ("127.0.0.2 NODE\n@revoked [127.0.0.2]:PORT OTHER", "in"),
    ("@revoked 127.0.0.2 NODE\n[127.0.0.2]:PORT NODE", "in"),
    ("[127.0.0.2]:22 NODE", "host key unknown"),
    ("@cert-authority 127.0.0.2 CA", "in"),
    ("@cert-authority 127.0.0.2 CA\n[127.0.0.2]:PORT OTHER", "in"),
    ("@cert-authority 127.0.0.2 CA\n@revoked 127.0.0.2 CA", "host key unknown|host key revoked"),
    ("[127.0.0.?]:* NODE", "in"),
    ("!*127.0.0.2*,* NODE", "host key unknown"),
    ("@cert-authority [127.0.0.*]:* CA", "in"),
    ("@cert-authority * CA\n[127.0.0.2]:PORT OTHER", "in"),
    ("@cert-authority node* CA", "host key unknown"),
    ("@cert-authority * OTHER", "host key unknown"),
    ("[127.0.0.2]:PORT CA", "host key changed"),
    ("@revoked * NODE\n[127.0.0.2]:PORT NODE", "host key revoked"),
    ("@revoked * CA\n@cert-authority * CA", "host key revoked"),
    ("@revoked * OTHER\n[127.0.0.2]:PORT NODE", "in"),
    ("# [127.0.0.2]:PORT NODE\nnonsense\n\n@cert-authority\n[127.0.0.2]:PORT ssh-ed25519 AAA", "host key unknown"),
]


@every_transport
@pytest.mark.parametrize(("text", "outcome"), KNOWN, ids=[text for text, _ in KNOWN])
def test_known_hosts(
    log_in: LogIn,
    known: Callable[[str], dict[str, object]],
    text: str,
    outcome: str,
    transport: str,
    needs: list[str],
) -> None:
    """Fabric leaves to ssh the hosts of which a line is marked, and no other."""
    answer = log_in(node2=known(text + "\n"))
    assert (answer.strip() if isinstance(answer, str) else answer.kind) in outcome.split("|")
    marked = re.search(r"^(@\S+) (?!node\*)\S+ ", text, re.MULTILINE) if transport == "fabric" else None
    assert needs == ([f"a {marked[1]} line in known_hosts"] if marked else [])


@every_transport
def test_a_key_of_the_port_alone_is_good_for_it(log_in: LogIn, known: Callable[[str], dict[str, object]]) -> None:
    """A key of the host at its usual port is no key of another server there, say one that a user has started."""
    settings = known("127.0.0.2 NODE\n[127.0.0.2]:PORT OTHER\n")
    assert log_in(node2={**settings, "HostKeyAlgorithms": "ssh-ed25519"}).kind is HostFailureKind.HOST_KEY_CHANGED


def test_no_certificate_gets_around_the_key_of_the_port(
    log_in: LogIn, known: Callable[[str], dict[str, object]]
) -> None:
    """OpenSSH 9.2 forgets the key of the port when it is shown a certificate that nobody knows."""
    assert log_in(node2=known("127.0.0.2 NODE\n[127.0.0.2]:PORT OTHER\n")).kind is HostFailureKind.HOST_KEY_CHANGED


@every_transport
def test_known_hosts_that_are_hashed(log_in: LogIn, known: Callable[[str], dict[str, object]], tmp_path: Path) -> None:
    settings = known("[127.0.0.2]:PORT NODE\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", tmp_path / "known_hosts"], check=True, capture_output=True)
    assert "127.0.0.2" not in (tmp_path / "known_hosts").read_text()
    assert log_in(node2=settings) == "in\n"


@every_transport
def test_known_hosts_of_each_host_alone(
    log_in: LogIn, known: Callable[[str], dict[str, object]], tmp_path: Path
) -> None:
    known("[127.0.0.2]:PORT NODE")
    (tmp_path / "known_hosts").rename(tmp_path / "node2")
    settings = {"UserKnownHostsFile": f"{tmp_path}/%n"}
    assert log_in(node2=settings) == "in\n"
    failure = log_in("node1", node1=settings)
    assert failure.fix.partition(";")[0].endswith(f" >> {tmp_path}/node1")


@every_transport
def test_the_alias_of_a_host_key(log_in: LogIn, known: Callable[[str], dict[str, object]]) -> None:
    settings = {**known("gpu NODE\n"), "HostKeyAlias": "gpu"}
    assert log_in(node2=settings) == "in\n"
    failure = log_in(node2={**settings, "HostKeyAlias": "other"})
    assert failure.kind is HostFailureKind.HOST_KEY_UNKNOWN
    assert "127.0.0.2 | sed 's/^[^ #]*/other/' >> " in failure.fix


@every_transport
def test_a_changed_key_that_ssh_config_bears_with(log_in: LogIn, known: Callable[[str], dict[str, object]]) -> None:
    assert log_in(node2={**known("[127.0.0.2]:PORT OTHER\n"), "StrictHostKeyChecking": "no"}) == "in\n"


NEW_KEYS = [
    *((transport, "accept-new") for transport in CLIENTS),
    ("ssh", "no"),  # fabric records none that nobody asked it to record
    ("pdsh", "no"),  # its ssh has the same options as ours
]


@pytest.mark.parametrize(("transport", "wish"), NEW_KEYS)
def test_a_new_key_takes_no_other_s_place(
    launch: Launch, known: Callable[[str], dict[str, object]], tmp_path: Path, wish: str
) -> None:
    """In a file whose last line has no end: glued to it, both keys were lost, and a man in the middle was let in."""
    settings = known("[127.0.0.2]:PORT OTHER")  # so node2 is the man in the middle
    config = launch.hosts.write_config(
        tmp_path / "config", node1={**settings, "StrictHostKeyChecking": wish}, node2=settings
    )
    login = ["--ssh-config", str(config), "--", "echo in"]
    done = launch.exec("--hosts", "node1", *login)
    assert (done.exit_code, done.lines) == (0, ["[node1] in"]), done.stderr
    first, second = (tmp_path / "known_hosts").read_text().splitlines()
    assert (first.split()[0][:12], second.split()[0][:12]) == ("[127.0.0.2]:", "[127.0.0.1]:")
    if wish == "accept-new":
        done = launch.exec("--hosts", "node2", *login)
        assert (done.exit_code, "its host key has changed" in done.stderr) == (69, True), done.stderr


@pytest.mark.parametrize("transport", ["ssh", "pdsh"])
def test_a_gateway_s_new_key_takes_no_other_s_place(
    launch: Launch, known: Callable[[str], dict[str, object]], tmp_path: Path
) -> None:
    """The ssh that logs in to it is another one, and has its own settings."""
    settings = known("[127.0.0.2]:PORT NODE")
    config = launch.hosts.write_config(
        tmp_path / "config",
        node1={**settings, "StrictHostKeyChecking": "accept-new"},
        node2={**settings, "ProxyJump": "node1"},
    )
    done = launch.exec("--hosts", "node2", "--ssh-config", str(config), "--", "echo in")
    assert (done.exit_code, done.lines) == (0, ["[node2] in"]), done.stderr
    assert len((tmp_path / "known_hosts").read_text().splitlines()) == 2


@pytest.mark.parametrize("transport", ["pdsh"])
def test_the_connection_itself_costs_no_session(launch: Launch, hosts: SshHosts, tmp_path: Path) -> None:
    """Of which sshd allows so many over one; a process too many gets a login of its own."""
    with sshd_with(hosts["node2"], tmp_path, "MaxSessions 1") as settings:
        config = hosts.write_config(tmp_path / "config", node2=settings)
        done = launch.exec("--hosts", "node2", "--ssh-config", str(config), "--", "echo in")
        logins = (tmp_path / "sshd.log").read_text().count("Accepted publickey")
    assert (done.exit_code, done.lines, logins) == (0, ["[node2] in"], 1), done.stderr


@every_transport
def test_a_new_key_that_is_added_by_hand_takes_no_other_s_place(
    log_in: LogIn, known: Callable[[str], dict[str, object]]
) -> None:
    """By the line that is shown."""
    settings = known("[127.0.0.2]:PORT OTHER")
    fix = log_in("node1", node1=settings).fix
    line = fix.removeprefix("check it and add it: ").removesuffix(
        "; or trust new keys: StrictHostKeyChecking accept-new in ssh_config"
    )
    subprocess.run(["/bin/sh", "-c", line], check=True, capture_output=True, timeout=DEADLINE_S)
    assert log_in("node1", node1=settings) == "in\n"
    assert log_in("node2", node2=settings).kind is HostFailureKind.HOST_KEY_CHANGED


def test_a_new_key_that_can_t_be_recorded(log_in: LogIn, tmp_path: Path) -> None:
    """Trusted all the same, a host would be new at every login, and anybody could stand for it."""
    failure = log_in("node1", node1={"UserKnownHostsFile": tmp_path, "StrictHostKeyChecking": "accept-new"})
    said = f"its new host key can't be recorded: {tmp_path}: Is a directory"
    assert (failure.kind, failure.text) == (HostFailureKind.HOST_KEY_UNRECORDED, said)


# ---- what is typed --------------------------------------------------------------------------------------------------


def settings_of(server: PasswordServer) -> dict[str, object]:
    return {"HostName": "127.0.0.1", "Port": server.port, "StrictHostKeyChecking": "no"}


@pytest.mark.parametrize("methods", ["password", "keyboard-interactive", "publickey,password"])
def test_a_password(log_in: LogIn, hosts: SshHosts, tmp_path: Path, methods: str) -> None:
    def make(settings: TransportSettings) -> FabricTransport:
        return FabricTransport(replace(settings, secrets=Secrets(password)))

    write_fido_key(tmp_path / "id_sk")  # nothing for a login by password
    with PasswordServer(methods, hosts["node1"].folder / "host_key") as server:
        password, settings = (
            PASSWORD,
            {**settings_of(server), "IdentityFile": f"{tmp_path}/id_sk\n  IdentityFile {hosts.folder}/id"},
        )
        assert log_in("pw", make=make, pw=settings) == "in\n"
        password = "wrong"
        assert log_in("pw", make=make, pw=settings).text.endswith("the password)")
        assert server.told == [PASSWORD, "wrong"]  # never twice


def test_a_host_that_takes_a_password_alone(log_in: LogIn, hosts: SshHosts) -> None:
    with PasswordServer("password", hosts["node1"].folder / "host_key") as server:
        failure = log_in("pw", pw=settings_of(server))
    assert (failure.kind, failure.fix) == (HostFailureKind.LOGIN_REFUSED, "pass --ask-password: it wants a password")


def test_no_password_is_told_to_a_host_with_another_key(
    log_in: LogIn, hosts: SshHosts, known: Callable[[str], dict[str, object]]
) -> None:
    def make(settings: TransportSettings) -> FabricTransport:
        return FabricTransport(replace(settings, secrets=Secrets(PASSWORD)))

    with PasswordServer("password", hosts["node1"].folder / "host_key") as server:
        settings = {**settings_of(server), **known(f"[127.0.0.1]:{server.port} NODE\n")}
        assert log_in("pw", make=make, pw=settings).kind is HostFailureKind.LOGIN_REFUSED
        assert server.told == []


def test_a_password_is_asked_once_and_shown_nowhere(launch: Launch, hosts: SshHosts) -> None:
    with PasswordServer("password", hosts["node1"].folder / "host_key") as server, Terminal() as terminal:
        config = hosts.write_config(launch.folder / "config", a=settings_of(server), b=settings_of(server))
        words = ("--hosts", "a,b", "--ssh-config", str(config), "--ask-password")
        running = launch.start_exec(*words, "--", "true", **terminal.for_popen())
        terminal.read_until("launch: password for all hosts: ")
        terminal.type(PASSWORD.encode() + b"\n")
        terminal.read_until("no Python 3.8 or newer there")
        assert running.finish().exit_code == 69
    assert PASSWORD not in terminal.screen
    assert set(server.told) == {PASSWORD}
    assert server.shown == []


def test_a_passphrase_is_asked_once_on_a_terminal(launch: Launch, hosts: SshHosts) -> None:
    key = launch.folder / "key"
    allow(hosts, make_key(key, passphrase=PASSPHRASE))
    settings = {"IdentityFile": key, "IdentityAgent": "none"}
    config = hosts.write_config(launch.folder / "config", node1=settings, node2=settings)
    with Terminal() as terminal:
        running = launch.start_exec("--ssh-config", str(config), "--", "echo there", **terminal.for_popen())
        terminal.read_until(rf"launch: passphrase of {key} \(Enter to skip\): ")
        terminal.type(b"wrong\n")
        terminal.read_until("launch: wrong passphrase")
        terminal.read_until("Enter to skip", count=2)
        terminal.type(PASSPHRASE.encode() + b"\n")
        terminal.read_until(r"\] there", count=2)
        assert running.finish().exit_code == 0
    assert PASSPHRASE not in terminal.screen
    done = launch.exec("--ssh-config", str(config), "--", "true")  # stdin is no terminal: nobody is asked
    assert "  node[1-2]: its key has a passphrase" in done.words


def test_ctrl_c_at_the_question(launch: Launch, hosts: SshHosts) -> None:
    with Terminal() as terminal:
        running = launch.start_exec("--ask-password", "--", "true", **terminal.for_popen())
        terminal.read_until("launch: password for all hosts: ")
        terminal.type(b"\x03")
        assert running.finish().exit_code == 130


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "launch: --ask-password needs a terminal\n  fix: without a terminal, log in with a key\n"),
        (
            ("--transport", "ssh"),
            "launch: --ask-password works only with --transport fabric\n"
            "  fix: leave it out: OpenSSH asks on the terminal, for each host\n",
        ),
    ],
)
def test_a_password_that_nobody_can_be_asked_for(launch: Launch, words: tuple[str, ...], error: str) -> None:
    done = launch.exec("--ask-password", *words, "--", "true")
    assert (done.exit_code, done.stderr) == (2, error)


# ---- the way to a host ----------------------------------------------------------------------------------------------


@every_transport
def test_user_and_port_of_a_hostfile_win(log_in: LogIn, hosts: SshHosts) -> None:
    wrong = {"HostName": "127.0.0.2", "User": "nobody", "Port": 1}
    host = Host("far", user=getpass.getuser(), port=hosts["node2"].port)
    assert log_in(host, far=wrong) == "in\n"
    assert log_in("far", far=wrong).text == "127.0.0.2 port 1 refuses the connection"


@every_transport
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
@pytest.mark.parametrize("is_chain", [False, True])
def test_the_one_of_two_jumps_that_fails_is_blamed(
    log_in: LogIn, hosts: SshHosts, culprit: str, settings: dict[str, object], said: str, is_chain: bool
) -> None:
    """Also where ssh_config names the first for the second alone; ssh itself says no name where it would ask."""
    e1, e2 = ({"HostName": host.address, "Port": host.port, "StrictHostKeyChecking": "ask"} for host in hosts)
    way = {"e1": e1, "e2": e2, "e3": {**e1, "ProxyJump": "e1,e2" if is_chain else "e2"}}
    way["e2"] |= {} if is_chain else {"ProxyJump": "e1"}
    way[culprit] |= settings
    assert log_in("e3", **way).text == said


@every_transport
def test_a_proxy_command_is_a_shell_s_line(log_in: LogIn, tmp_path: Path) -> None:
    line = f"ssh -F {tmp_path / 'config'} -W '%h:%p' node1 2>/dev/null"
    assert log_in(node2={"ProxyCommand": line}) == "in\n"


@every_transport
def test_a_proxy_command_that_fails_is_told_in_its_words(log_in: LogIn) -> None:
    failure = log_in(node2={"ProxyCommand": "sh -c 'echo no way to %h >&2'"})
    assert (failure.kind, failure.text) == (HostFailureKind.CUT_OFF, "its ProxyCommand exited: no way to 127.0.0.2")


@every_transport
def test_a_proxy_command_that_says_nothing(log_in: LogIn) -> None:
    failure = log_in(node2={"ProxyCommand": "false", "ConnectTimeout": 1})
    assert (failure.text, failure.fix) == (
        "its ProxyCommand exited silently", "try by hand: ssh -v node2 true",
    )  # fmt: skip


@every_transport
def test_a_jump_host_that_forwards_nothing(log_in: LogIn, hosts: SshHosts, tmp_path: Path) -> None:
    with sshd_with(hosts["node1"], tmp_path, "AllowTcpForwarding no") as settings:
        failure = log_in(node1=settings, node2={"ProxyJump": "node1"})
    assert "rohibited" in failure.text
    assert failure.fix == "allow it in the jump host's sshd_config: AllowTcpForwarding, PermitOpen"


@every_transport
def test_a_gateway_that_does_not_answer(log_in: LogIn, transport: str) -> None:
    """For as long as ssh_config says."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        failure = log_in(node1={"Port": mute.getsockname()[1]}, node2={"ProxyJump": "node1", "ConnectTimeout": 1})
    said = {
        "fabric": "jump host node1: 127.0.0.1 port {} does not answer",
        "ssh": "127.0.0.2 port {} does not answer through node1",  # it can't tell who is silent
    }[transport]
    assert (failure.kind, re.sub(r"port \d+", "port {}", failure.text)) == (HostFailureKind.TIMED_OUT, said)


@every_transport
def test_a_control_master_is_used_where_there_is_one_and_never_made(
    log_in: LogIn, hosts: SshHosts, tmp_path: Path, transport: str
) -> None:
    place = tmp_path / "master"
    settings = {"ControlPath": place, "ControlMaster": "auto", "ControlPersist": "yes"}
    assert log_in(node2=settings) == "in\n"
    assert not place.exists()
    before = hosts["node2"].log.count("Accepted publickey")
    master = subprocess.Popen(
        ["ssh", "-F", tmp_path / "config", "-o", "ControlPersist=no", "-M", "-N", "node2"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(place.exists)
        assert wait_until(lambda: hosts["node2"].log.count("Accepted publickey") > before)  # logged after its answer
        assert log_in(node2=settings) == "in\n"
        assert hosts["node2"].log.count("Accepted publickey") - before == {"fabric": 2, "ssh": 1}[transport]
    finally:
        master.kill()  # told to end, one of OpenSSH 9.2 has been seen to stay
        master.wait()


def test_a_control_master_that_ends_is_a_lost_connection(launch: Launch, hosts: SshHosts) -> None:
    place = launch.folder / "master"
    config = hosts.write_config(launch.folder / "config", node2={"ControlPath": place})
    master = subprocess.Popen(
        ["ssh", "-F", config, "-o", "ControlMaster=yes", "-N", "node2"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(place.exists)
        running = launch.start("--transport", "ssh", "--ssh-config", str(config), *rank("wait"))
        running.wait_for_ranks()
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
