"""What `ssh` says when it can't log in, as it was seen (OpenSSH 9.2), and what we make of it."""

from __future__ import annotations

import subprocess

import pytest
from machines.patience import DEADLINE_S

from launcher.errors import HostFailureKind
from launcher.transports.ssh.openssh_config import read_answer, split_jump
from launcher.transports.ssh.openssh_failures import ONLY_PASSWORD, classify

CLOSED_WAY = (
    "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535\r\n"
)
UNWRITTEN = "banner exchange: Connection to UNKNOWN port 65535: Broken pipe\r\n"  # where it was closed even earlier
PARTLY = 'Authenticated using "publickey" with partial success.'
CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\r
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r
The fingerprint for the ED25519 key sent by the remote host is\r
SHA256:PkA5gfsv2oR9YDtjYtQ0pM036z/p9l4hnMkCZBJOUa0.\r
Please contact your system administrator.\r
Add correct host key in KNOWN to get rid of this message.\r
Offending ED25519 key in KNOWN:2\r
Host key for [10.0.0.2]:2222 has changed and you have requested strict checking.\r
Host key verification failed.\r
"""


def answer(name, host, port, *lines):
    options = [f"hostname {host}", f"port {port}", "user ann", "userknownhostsfile /k /k2", "identitiesonly yes"]
    return read_answer(name, [*options, *lines])


NO_SSH = "the server at 10.0.0.2 port 2222 does not speak SSH"
NODE = answer("node", "10.0.0.2", 2222)
HOP = answer("hop", "10.0.0.9", 22)
FIRST = answer("first", "10.0.0.8", 22)
BY_PROXY = answer("node", "10.0.0.2", 2222, "proxycommand ssh -W %h:%p bastion")
ALIASED = answer("node", "10.0.0.2", 22, "hostkeyalias gpu")

# what ssh said, over which hops, the kind, the text, who is to blame
SAID = [
    (
        "ssh: connect to host 10.0.0.2 port 2222: Connection refused\r\n",
        [], "refused", "10.0.0.2 port 2222 refuses the connection", None,
    ),
    (
        "ssh: connect to host 10.0.0.2 port 2222: Connection timed out\r\n",
        [], "timed out", "10.0.0.2 port 2222 does not answer", None,
    ),
    (
        "Connection timed out during banner exchange\r\nConnection to 10.0.0.2 port 2222 timed out\r\n",
        [], "timed out", "10.0.0.2 port 2222 does not answer", None,
    ),
    (
        "ssh: connect to host 10.0.0.2 port 2222: No route to host\r\n",
        [], "no route", "no route to 10.0.0.2 port 2222", None,
    ),
    (  # of macOS, as its strerror(3) and gai_strerror(3) have them
        "ssh: connect to host 10.0.0.2 port 2222: Host is down\r\n",
        [], "no route", "no route to 10.0.0.2 port 2222", None,
    ),
    (
        "ssh: connect to host 10.0.0.2 port 2222: Connection reset by peer\r\n",
        [], "dropped", "sshd dropped the connection before its banner", None,
    ),
    (
        "ssh: connect to host 10.0.0.2 port 2222: Permission denied\r\n",
        [], "ssh", "Permission denied", None,
    ),
    (
        "ssh: Could not resolve hostname 10.0.0.2: Name or service not known\r\n",
        [], "name unknown", "the name 10.0.0.2 is not known", None,
    ),
    (
        "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by 10.0.0.2 port 2222\r\n",
        [], "dropped", "sshd dropped the connection before its banner", None,
    ),
    (
        "kex_exchange_identification: banner line contains invalid characters\r\n"
        "banner exchange: Connection to 10.0.0.2 port 2222: invalid format\r\n",
        [], "no ssh", f"{NO_SSH}: banner line contains invalid characters", None,
    ),
    (
        "Bad packet length 4294967284.\r\n"
        "ssh_dispatch_run_fatal: Connection to 10.0.0.2 port 2222: message authentication code incorrect\r\n",
        [], "no ssh", f"{NO_SSH}: Bad packet length 4294967284", None,
    ),
    (
        "Host key ED25519 SHA256:PkA5 revoked by file /etc/ssh/krl\r\nHost key verification failed.\r\n",
        [], "host key revoked", "its host key is revoked", None,
    ),
    (
        "Error checking host key ED25519 SHA256:PkA5 in revoked keys file /krl: No such file or directory\r\n"
        "Host key verification failed.\r\n",
        [], "ssh",
        "Error checking host key ED25519 SHA256:PkA5 in revoked keys file /krl: No such file or directory", None,
    ),
    (
        "Certificate invalid: expired\r\nHost key verification failed.\r\n",
        [], "ssh", "Certificate invalid: expired", None,
    ),
    (
        "ann@10.0.0.2: Permission denied (publickey,password).\r\n",
        [], "login refused", "login refused for user ann (tried nothing: there is no key)", None,
    ),
    (
        "Received disconnect from 10.0.0.2 port 2222:2: Too many authentication failures\r\n"
        "Disconnected from 10.0.0.2 port 2222\r\n",
        [], "login refused", "login refused for user ann (tried nothing: there is no key)", None,
    ),
    (
        "No ED25519 host key is known for [10.0.0.2]:2222 and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n",
        [], "host key unknown", "its host key is not known", None,
    ),
    ("Host key verification failed.\r\n", [], "host key unknown", "its host key is not known", None),
    (
        "ED25519 host key for [10.0.0.2]:2222 was revoked and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n",
        [], "host key revoked", "its host key is revoked", None,
    ),
    ("/h/config: terminating, 1 bad configuration options\r\n", [], "ssh",
     "/h/config: terminating, 1 bad configuration options", None),
    ("", [], "lost", "the connection was lost during the login", None),
    (
        "ssh: connect to host 10.0.0.9 port 22: Connection refused\r\n" + CLOSED_WAY,
        [HOP], "refused", "10.0.0.9 port 22 refuses the connection", "hop",
    ),
    (
        "channel 0: open failed: connect failed: Connection refused\r\nstdio forwarding failed\r\n" + CLOSED_WAY,
        [HOP], "no way", "its jump host can't reach 10.0.0.2 port 2222 (Connection refused)", None,
    ),
    (
        "ann@10.0.0.9: Permission denied (publickey).\r\n" + CLOSED_WAY,
        [HOP], "login refused", "login refused for user ann (tried nothing: there is no key)", "hop",
    ),
    (
        "ann@10.0.0.2: Permission denied (publickey).\r\n",
        [HOP], "login refused", "login refused for user ann (tried nothing: there is no key)", None,
    ),
    ("Host key verification failed.\r\n" + CLOSED_WAY, [HOP], "host key unknown", "its host key is not known", "hop"),
    ("Host key verification failed.\r\n", [HOP], "host key unknown", "its host key is not known", None),
    (
        "Host key verification failed.\r\n" + UNWRITTEN + CLOSED_WAY,
        [FIRST, HOP], "host key unknown", "its host key is not known", "first",
    ),
    (
        "Unable to negotiate with 10.0.0.9 port 22: no matching cipher found. Their offer: 3des-cbc\r\n" + CLOSED_WAY,
        [HOP], "ssh",
        "Unable to negotiate with 10.0.0.9 port 22: no matching cipher found. Their offer: 3des-cbc", "hop",
    ),
    (
        "kex_exchange_identification: banner line contains invalid characters\r\n" + CLOSED_WAY,
        [HOP], "no ssh",
        "the server at 10.0.0.9 port 22 does not speak SSH: banner line contains invalid characters", "hop",
    ),
    (
        "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by 10.0.0.9 port 22\r\n"
        + CLOSED_WAY,
        [HOP], "dropped", "sshd dropped the connection before its banner", "hop",
    ),
    (CLOSED_WAY, [HOP], "dropped", "sshd dropped the connection before its banner", None),
    (CLOSED_WAY * 2, [FIRST, HOP], "dropped", "sshd dropped the connection before its banner", "hop"),
    ("banner exchange: Connection to 10.0.0.2 port 2222: Broken pipe\r\n",
     [], "dropped", "sshd dropped the connection before its banner", None),
    (
        "Received disconnect from 10.0.0.8 port 22:2: Too many authentication failures\r\n" + CLOSED_WAY * 2,
        [FIRST, HOP], "login refused", "login refused for user ann (tried nothing: there is no key)", "first",
    ),
    (
        "Connection timed out during banner exchange\r\n" + CLOSED_WAY * 2,
        [FIRST, HOP], "timed out", "10.0.0.2 port 2222 does not answer through first, hop", None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("said", "hops", "kind", "text", "gateway"), SAID, ids=[row[0].strip()[:60] for row in SAID])
def test_what_ssh_says_has_a_class(said, hops, kind, text, gateway):
    failure, blamed = classify(said, NODE, hops, is_late=False)
    assert (failure.kind, failure.text, blamed) == (kind, text, gateway)
    assert failure.fix


@pytest.mark.parametrize("closed", [CLOSED_WAY, UNWRITTEN])
def test_a_proxy_command_is_quoted(closed):
    behind = answer("node", "10.0.0.2", 2222, "proxycommand nosuch 10.0.0.2")
    failure, _ = classify("/bin/sh: 1: exec: nosuch: not found\n" + closed, behind, [], is_late=False)
    assert (failure.kind, failure.text) == (
        "cut off",
        "its ProxyCommand exited: /bin/sh: 1: exec: nosuch: not found",
    )
    assert classify(closed, behind, [], is_late=False)[0].kind is HostFailureKind.DROPPED


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("ssh: connect to host 10.0.0.7 port 23: Connection refused", "10.0.0.7 port 23 refuses the connection"),
        (
            "eve@10.0.0.7: Permission denied (publickey).",
            "login refused for user eve (tried the keys that ssh has for it)",
        ),
    ],
)
def test_a_name_that_no_hop_has_is_blamed_itself(said, text):
    """As that of a gateway to which a ProxyCommand leads."""
    failure, blamed = classify(f"{said}\r\n{CLOSED_WAY}", BY_PROXY, [], is_late=False)
    assert (failure.text, blamed) == (text, "10.0.0.7")
    assert "10.0.0.2" not in failure.fix


def test_a_login_that_takes_too_long():
    failure, _ = classify("a banner\r\n", NODE, [], is_late=True)
    assert (failure.kind, failure.text) == (HostFailureKind.SLOW_LOGIN, "it did not finish the login in time")


def test_a_key_that_has_changed_is_told_with_its_fingerprint():
    failure, _ = classify(CHANGED, NODE, [], is_late=False)
    new = "SHA256:PkA5gfsv2oR9YDtjYtQ0pM036z/p9l4hnMkCZBJOUa0"
    assert failure.text == f"its host key has changed: {new} is not in known_hosts"


def test_the_hints_name_file_and_alias():
    said = (
        "No ED25519 host key is known for gpu and you have requested strict checking.\r\nHost key verification failed."
    )
    failure, _ = classify(said, ALIASED, [], is_late=False)
    assert failure.fix == (
        "check it and add it: ssh-keyscan 10.0.0.2 | sed 's/^[^ #]*/gpu/' >> /k; "
        "or trust new keys: StrictHostKeyChecking accept-new in ssh_config"
    )
    failure, _ = classify(said.replace("gpu", "10.0.0.9"), NODE, [HOP], is_late=False)
    assert failure.fix.startswith("check it and add it: ssh-keyscan 10.0.0.9 >> /k; or trust")


def test_keys_with_a_passphrase_are_told_from_refused_ones(tmp_path):
    for name, passphrase in (("open", ""), ("locked", "secret")):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", tmp_path / name]
        subprocess.run(words, check=True, timeout=DEADLINE_S)
    said = "ann@10.0.0.2: Permission denied (publickey).\r\n"
    locked = answer("node", "10.0.0.2", 2222, f"identityfile {tmp_path}/locked")
    both = answer("node", "10.0.0.2", 2222, f"identityfile {tmp_path}/locked", f"identityfile {tmp_path}/open")
    assert classify(said, locked, [], is_late=False)[0].kind is HostFailureKind.KEY_ENCRYPTED
    failure, _ = classify(said, both, [], is_late=False)
    assert failure.text == f"login refused for user ann (tried {tmp_path}/locked, {tmp_path}/open)"


@pytest.mark.parametrize(
    ("said", "methods", "fix"),
    [
        ('Load key "KEY": bad permissions', "publickey", "chmod 600 KEY: ssh ignores a key that others may read"),
        ('Load key "/of/a/hop": bad permissions', "publickey", "copy a key there: ssh-copy-id -p 2222 ann@10.0.0.2"),
        ("", "password", ONLY_PASSWORD),
        ("", "publickey,password", "copy a key there: ssh-copy-id -p 2222 ann@10.0.0.2"),
        (PARTLY, "publickey,keyboard-interactive", ONLY_PASSWORD),
        (PARTLY, "publickey", "copy a key there: ssh-copy-id -p 2222 ann@10.0.0.2"),
    ],
)
def test_how_to_log_in_all_the_same(tmp_path, said, methods, fix):
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=DEADLINE_S)
    named = answer("node", "10.0.0.2", 2222, f"identityfile {key}")
    text = f"{said}\r\nann@10.0.0.2: Permission denied ({methods}).\r\n".replace("KEY", str(key))
    failure, _ = classify(text, named, [], is_late=False)
    assert failure.text == f"login refused for user ann (tried {key})"
    assert failure.fix.replace(str(key), "KEY") == fix


@pytest.mark.parametrize(
    ("jump", "parts"),
    [
        ("hop", ("hop", None, None)),
        ("eve@hop:23", ("hop", "eve", "23")),
        ("ssh://eve@hop:23", ("hop", "eve", "23")),
        ("[fe80::1]:23", ("fe80::1", None, "23")),
        ("eve@[fe80::1]", ("fe80::1", "eve", None)),
        ("fe80::1", ("fe80::1", None, None)),
        ("a@b@hop", ("hop", "a@b", None)),
    ],
)
def test_a_jump_in_its_parts(jump, parts):
    assert split_jump(jump) == parts
