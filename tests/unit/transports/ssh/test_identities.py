"""Keys in files, as ssh-keygen writes them: which can be read, and what is known of those that can't."""

from __future__ import annotations

import base64
import subprocess

import paramiko
import pytest
from machines.fido import write_fido_key
from machines.patience import DEADLINE_S

from launcher.transports.ssh.identities import (
    Login,
    Secrets,
    locked_keys,
    named_keys,
    read_public,
)

PASSPHRASE = "secret"


def make_key(path, *words, passphrase=""):
    subprocess.run(
        ["ssh-keygen", "-q", "-N", passphrase, "-a", "1", "-f", path, *words], check=True, timeout=DEADLINE_S
    )
    return base64.b64decode(path.with_name(f"{path.name}.pub").read_text().split()[1])


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
    assert read_public(path) is None
    assert read_public(tmp_path / "alone.pub") == public


@pytest.mark.parametrize("text", ["", "nonsense", "ssh-ed25519", "ssh-ed25519 AAAA", "-----BEGIN X-----\n=\n"])
def test_a_file_that_holds_no_key(tmp_path, text):
    path = tmp_path / "key"
    path.write_text(text)
    assert read_public(path) is None
    with pytest.raises(paramiko.SSHException):
        Secrets().load(path)
    assert not Secrets().is_locked(path)


def test_a_fido_key_can_be_named_and_not_used(tmp_path):
    path = tmp_path / "key_sk"
    write_fido_key(path)
    with pytest.raises(paramiko.SSHException):
        Secrets().load(path)


def test_a_login_goes_past_a_key_that_can_not_be_used(tmp_path):
    write_fido_key(tmp_path / "key_sk")
    make_key(tmp_path / "key", "-t", "ed25519")
    login = Login("ann", {"identityfile": [str(tmp_path / "key_sk"), str(tmp_path / "key")]}, Secrets("a password"))
    assert [name for name, _ in login._find_keys(())] == [str(tmp_path / "key")]


def test_no_key_is_looked_at_where_ssh_config_has_turned_them_off():
    assert named_keys({"identityfile": []}) == []
    assert named_keys({}) != []


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
