"""scripts/ssh/setup_keys.sh: a first login by password, and hosts that are ready, that are strangers, that are gone."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S
from password_server import PASSWORD, PasswordServer
from ssh_hosts import SshHosts, running_agent
from terminal import Terminal

SCRIPT = Path(__file__).parents[2] / "scripts" / "ssh" / "setup_keys.sh"
STRANGER = """\
The host key of {place} is not known. The machine at that address has these fingerprints:
{key}
Compare them with what this command prints there, at the console or through the administrator:
    for key in /etc/ssh/ssh_host_*_key.pub; do ssh-keygen -lf $key; done
Add the keys to {file}? [yes/no] """


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """The home of who types: nothing in it yet."""
    home = tmp_path / "user"
    home.mkdir()
    return home


@pytest.fixture
def account(hosts: SshHosts, tmp_path: Path) -> Iterator[PasswordServer]:
    """A host with an account that so far has a password alone."""
    home = tmp_path / "account"
    home.mkdir()
    with PasswordServer("password", hosts["node1"].folder / "host_key", home=home) as server:
        yield server


def settings_of(user: Path, server: PasswordServer) -> dict[str, object]:
    """Return what ssh_config says of that host; what is the user's own is where a real user has it."""
    return {
        "HostName": "127.0.0.1",
        "Port": server.port,
        "User": "ann",
        "IdentityFile": user / ".ssh" / "id_ed25519",
        "UserKnownHostsFile": user / ".ssh" / "known_hosts",
        "StrictHostKeyChecking": "ask",
        "IdentitiesOnly": "no",
        "KexAlgorithms": "curve25519-sha256@libssh.org",  # paramiko's name of it
    }


def env_of(user: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(user), **more}


def run(user: Path, config: Path, *hosts: str, typed: str = "", **env: str) -> tuple[int, str]:
    """Run the script without a terminal; return its exit code, and what it printed on stdout."""
    done = subprocess.run(
        [str(SCRIPT), "-F", str(config), *hosts], env=env_of(user, **env), input=typed, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False, start_new_session=True,
    )  # fmt: skip
    return done.returncode, done.stdout


def stranger(hosts: SshHosts, name: str, place: str, user: Path) -> str:
    """Return what is shown of a host whose key is not known, up to the question."""
    key = hosts[name].folder / "host_key.pub"
    said = subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    size, fingerprint, *_, kind = said.stdout.split()
    shown = f"{size} {fingerprint} {place} {kind}"
    return STRANGER.format(place=place, key=shown, file=user / ".ssh" / "known_hosts")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_new_user_on_a_terminal(hosts: SshHosts, user: Path, account: PasswordServer, tmp_path: Path) -> None:
    """No key, no known host, a password: after that a login asks nothing."""
    config = hosts.write_config(tmp_path / "config", new=settings_of(user, account))
    place = f"[127.0.0.1]:{account.port}"
    with Terminal() as terminal:
        argv = [str(SCRIPT), "-F", str(config), "new"]
        process = subprocess.Popen(argv, env=env_of(user), **terminal.for_popen())
        terminal.read_until(re.escape(stranger(hosts, "node1", place, user).replace("\n", "\r\n")))
        terminal.type(b"yes\n")
        terminal.read_until("passphrase")
        terminal.type(b"\n")
        terminal.read_until("same passphrase")
        terminal.type(b"\n")
        terminal.read_until(r"ann@127\.0\.0\.1's password: ")
        terminal.type(PASSWORD.encode() + b"\n")
        terminal.read_until("== login works on 1 of 1 hosts\r\n")
        assert process.wait(DEADLINE_S) == 0
    own = contents(user / ".ssh")
    assert account.home is not None
    assert contents(account.home / ".ssh") == {"authorized_keys": own["id_ed25519.pub"]}
    assert own["known_hosts"].decode() == f"{place} {hosts['node1'].public_key}\n"
    assert account.told == [PASSWORD]
    assert run(user, config, "new") == (0, "== new\n== login works on 1 of 1 hosts\n")
    assert contents(user / ".ssh") == own


def test_what_is_there_is_kept(hosts: SshHosts, user: Path, account: PasswordServer, tmp_path: Path) -> None:
    """Without a terminal as well; the names are those of an ssh_config without IdentityFile."""
    keys = (".ssh/id_rsa", ".ssh/id_ed25519")
    names = [*(f"~/{key}" for key in keys), str(user / keys[1])]
    settings = {**settings_of(user, account), "IdentityFile": "\n  IdentityFile ".join(names), "HostKeyAlias": "new"}
    config = hosts.write_config(tmp_path / "config", new=settings)
    (user / ".ssh").mkdir()
    (user / ".ssh" / "known_hosts").write_text("gpu9 ssh-ed25519 AAAA")
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\necho '{PASSWORD}'\n")
    ask.chmod(0o755)

    def set_up() -> tuple[int, str]:
        return run(user, config, "new", typed="yes\n", SSH_ASKPASS=str(ask), SSH_ASKPASS_REQUIRE="force")

    (user / ".ssh" / "id_ed25519.pub").write_text("the half of a pair")
    code, said = set_up()
    reason = f"new: {user}/.ssh/id_ed25519.pub is there without its private key"
    assert (code, said) == (
        1, f"== new\n{stranger(hosts, 'node1', 'new', user)}== login works on 0 of 1 hosts\n   {reason}\n"
    )  # fmt: skip
    (user / ".ssh" / "id_ed25519.pub").unlink()
    code, said = set_up()
    assert (code, said.splitlines()[-1]) == (0, "== login works on 1 of 1 hosts")
    known = (user / ".ssh" / "known_hosts").read_text()
    assert known == f"gpu9 ssh-ed25519 AAAA\nnew {hosts['node1'].public_key}\n"


def test_every_host_has_its_turn(hosts: SshHosts, user: Path, tmp_path: Path) -> None:
    (user / ".ssh").mkdir()
    known_hosts = user / ".ssh" / "known_hosts"
    own = {"UserKnownHostsFile": known_hosts, "StrictHostKeyChecking": "ask"}
    place = {"HostName": hosts["node2"].address, "Port": hosts["node2"].port}
    changed = f"changed {hosts['node1'].public_key}\n"
    known_hosts.write_text(changed)
    config = hosts.write_config(
        tmp_path / "config",
        gone={"HostName": "127.0.0.1", "Port": 1},
        changed={**own, **place, "HostKeyAlias": "changed"},
        stranger={**own, **place},
    )
    names = ("gone", "changed", "stranger", "node1")
    shown = stranger(hosts, "node2", f"[127.0.0.2]:{hosts['node2'].port}", user)
    head = "== gone\n== changed\n== stranger\n" + shown + "== node1\n"
    gone = "   gone: ssh: connect to host 127.0.0.1 port 1: Connection refused\n"
    changed_words = "   changed: its host key has changed: `ssh changed` says more\n"
    refused = "   stranger: its host key was not accepted\n"
    assert run(user, config, *names, typed="no\n") == (
        1, f"{head}== login works on 1 of 4 hosts\n{gone}{changed_words}{refused}"
    )  # fmt: skip
    assert contents(user / ".ssh") == {"known_hosts": changed.encode()}
    assert run(user, config, *names, typed="yes\n") == (
        1,
        f"{head}== login works on 2 of 4 hosts\n{gone}{changed_words}",
    )
    place_line = hosts.known_line(hosts["node2"], hosts["node2"].public_key)
    assert contents(user / ".ssh") == {"known_hosts": f"{changed}{place_line}".encode()}


def test_a_path_with_blanks(hosts: SshHosts, user: Path, tmp_path: Path) -> None:
    """ssh -G shows it without its quotes: no file of another name is made, and one that is there is seen."""
    folder = user / "it's a"
    known_hosts = folder / "known hosts"
    place = {"HostName": hosts["node2"].address, "Port": hosts["node2"].port, "StrictHostKeyChecking": "ask"}
    config = hosts.write_config(
        tmp_path / "config", stranger={**place, "UserKnownHostsFile": f'"{known_hosts}" "{user}/second"'}
    )
    code, said = run(user, config, "stranger", typed="yes\n")
    reason = f"UserKnownHostsFile may be one file or two; create its directory: {known_hosts}"
    assert (code, said) == (1, f"== stranger\n== login works on 0 of 1 hosts\n   stranger: {reason}\n")
    assert list(user.iterdir()) == []
    folder.mkdir()
    code, said = run(user, config, "stranger", typed="yes\n")
    assert (code, said.splitlines()[-1]) == (
        0,
        f"Add the keys to {known_hosts}? [yes/no] == login works on 1 of 1 hosts",
    )
    assert contents(folder) == {"known hosts": hosts.known_line(hosts["node2"], hosts["node2"].public_key).encode()}
    assert list(user.iterdir()) == [folder]


def test_no_agent_is_forwarded(hosts: SshHosts, user: Path, tmp_path: Path) -> None:
    place, seen = tmp_path / "agent", tmp_path / "seen"
    hosts.add_login(tmp_path / "key", f'echo "${{SSH_AUTH_SOCK-no agent}}" >{seen}')
    mine = {"IdentityFile": tmp_path / "key", "ForwardAgent": "yes", "RemoteCommand": "echo mine"}
    config = hosts.write_config(tmp_path / "config", node1=mine)
    with running_agent(place):
        assert run(user, config, "node1", SSH_AUTH_SOCK=str(place))[0] == 0
    assert seen.read_text() == "no agent\n"


def test_behind_a_gateway_ssh_itself_asks(hosts: SshHosts, user: Path, tmp_path: Path) -> None:
    own = {"UserKnownHostsFile": user / ".ssh" / "known_hosts", "StrictHostKeyChecking": "ask"}
    place = {"HostName": hosts["node2"].address, "Port": hosts["node2"].port, "ProxyJump": "node1"}
    config = hosts.write_config(tmp_path / "config", inner={**own, **place})
    with Terminal() as terminal:
        argv = [str(SCRIPT), "-F", str(config), "inner"]
        process = subprocess.Popen(argv, env=env_of(user), **terminal.for_popen())
        terminal.read_until(r"do ssh-keygen -lf \$key; done\r\n(?s:.*)\(yes/no/\[fingerprint\]\)\? ")
        terminal.type(b"yes\n")
        terminal.read_until("== login works on 1 of 1 hosts\r\n")
        assert process.wait(DEADLINE_S) == 0
    assert contents(user / ".ssh")["known_hosts"].decode() == hosts.known_line(
        hosts["node2"], hosts["node2"].public_key
    )


@pytest.mark.parametrize("words", [["-oProxyCommand=touch x"], ["a", "-oProxyCommand=touch x"], ["-F", "config"]])
def test_an_option_is_no_host(user: Path, words: list[str]) -> None:
    done = subprocess.run(
        [str(SCRIPT), *words], cwd=user, env=env_of(user), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr[:6]) == (2, "", "Usage:")
    assert contents(user) == {}
