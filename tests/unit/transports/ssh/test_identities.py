"""Keys in files, as ssh-keygen writes them: which can be read, and what is known of those that can't."""

from __future__ import annotations

import base64
import subprocess

import paramiko
import pytest
from machines.patience import DEADLINE_S

from launcher.transports.ssh.fabric_failures import classify
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.identities import (
    Login,
    LoginRefused,
    Secrets,
    UnusableKey,
    locked_keys,
    read_public,
)
from launcher.transports.ssh.openssh_config import HostConfig

PASSPHRASE = "secret"
FIDO = "sk-ssh-ed25519@openssh.com"


def make_key(path, *words, passphrase=""):
    subprocess.run(
        ["ssh-keygen", "-q", "-N", passphrase, "-a", "1", "-f", path, *words], check=True, timeout=DEADLINE_S
    )
    return base64.b64decode(path.with_name(f"{path.name}.pub").read_text().split()[1])


def write_fido_key(path):
    """Write the file of a key in a token, which no test has."""
    public, private, file = paramiko.Message(), paramiko.Message(), paramiko.Message()
    for message in (public, private):
        if message is private:
            message.add_int(7)  # a check: the same number twice
            message.add_int(7)
        message.add_string(FIDO)
        message.add_string(b"p" * 32)
        message.add_string("ssh:")
    private.add_byte(b"\1")
    private.add_string(b"handle")
    private.add_string(b"")
    private.add_string("comment")
    padding = bytes(range(1, 1 + -len(private.asbytes()) % 8))
    for text in ("none", "none", ""):
        file.add_string(text)
    file.add_int(1)
    file.add_string(public.asbytes())
    file.add_string(private.asbytes() + padding)
    body = base64.encodebytes(b"openssh-key-v1\0" + file.asbytes()).decode()
    path.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}-----END OPENSSH PRIVATE KEY-----\n")
    return public.asbytes()


@pytest.mark.parametrize("words", [("ed25519",), ("ecdsa",), ("rsa", "-b", "2048"), ("rsa", "-b", "2048", "-m", "PEM")])
def test_a_locked_key(tmp_path, words):
    path = tmp_path / "key"
    public = make_key(path, "-t", *words, passphrase=PASSPHRASE)
    secrets = Secrets()
    assert secrets.is_locked(path)
    assert not secrets.unlock(path, "wrong")
    assert secrets.is_locked(path)
    assert secrets.unlock(path, PASSPHRASE)
    assert secrets.load(path).asbytes() == public


@pytest.mark.parametrize("passphrase", ["", PASSPHRASE])
def test_the_public_half_is_read_without_the_private_one(tmp_path, passphrase):
    path = tmp_path / "key"
    public = make_key(path, "-t", "ed25519", passphrase=passphrase)
    assert read_public(path) == public
    (tmp_path / "key.pub").rename(tmp_path / "alone.pub")
    assert read_public(path) == public
    assert read_public(tmp_path / "alone.pub") == public


@pytest.mark.parametrize("text", ["", "nonsense", "ssh-ed25519", "ssh-ed25519 AAAA", "-----BEGIN X-----\n=\n"])
def test_a_file_that_holds_no_key(tmp_path, text):
    path = tmp_path / "key"
    path.write_text(text)
    assert read_public(path) is None
    with pytest.raises(UnusableKey):
        Secrets().load(path)
    assert not Secrets().is_locked(path)
    assert not Secrets().is_usable(path)


def test_a_fido_key_can_be_named_and_not_used(tmp_path):
    path = tmp_path / "key_sk"
    public = write_fido_key(path)
    assert read_public(path) == public
    with pytest.raises(UnusableKey):
        Secrets().load(path)


# ---- what is asked, and what is said --------------------------------------------------------------------------------


def test_a_passphrase_is_wanted_where_nothing_else_will_do(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    locked, opened = tmp_path / ".ssh/id_rsa", tmp_path / ".ssh/id_ed25519"
    make_key(locked, "-t", "ed25519", passphrase=PASSPHRASE)
    without_agent = {"identityagent": "none"}
    assert locked_keys(without_agent, Secrets()) == [locked]
    make_key(opened, "-t", "ed25519")
    assert locked_keys(without_agent, Secrets()) == []  # a default key that is open comes first
    named = tmp_path / "named"
    make_key(named, "-t", "ed25519", passphrase=PASSPHRASE)
    assert locked_keys({**without_agent, "identityfile": [str(named), str(opened)]}, Secrets()) == [named]
    secrets = Secrets()
    secrets.unlock(named, PASSPHRASE)
    assert locked_keys({**without_agent, "identityfile": [str(named)]}, secrets) == []


@pytest.mark.parametrize(
    ("has_declined", "wanted", "fix"),
    [
        (True, ["password"], "pass --ask-password: it wants a password"),
        (True, ["publickey", "password"], "confirm when the agent asks, or insert its smart card"),
        (True, [], "confirm when the agent asks, or insert its smart card"),
        (False, ["publickey", "password"], "copy a key there: ssh-copy-id ann@10.0.0.2"),
        (False, [], "copy a key there: ssh-copy-id ann@10.0.0.2"),
    ],
)
def test_the_way_that_is_left_is_named(has_declined, wanted, fix):
    login = Login("ann", {}, Secrets())
    login.tried.append("id")
    login.has_declined = has_declined
    hop = HostConfig(Destination("node", "10.0.0.2", 22, "ann"), {})
    failure = classify(LoginRefused(login, wanted), hop)
    assert (failure.text, failure.fix) == ("login refused for user ann (tried id)", fix)
