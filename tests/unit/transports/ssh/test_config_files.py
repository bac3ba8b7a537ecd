"""What ssh_config says of a host: our answer held against that of the real ssh, file by file."""

from __future__ import annotations

import shutil
import subprocess

import fabric
import pytest

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.ssh import config_files
from launcher.transports.ssh.config_files import ConfigFiles
from launcher.transports.ssh.fabric import FabricTransport
from launcher.transports.ssh.settings import SshSettings

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh: apt install openssh-client")

HOP = "Host hop\n  HostName 10.0.0.9\n  User jumper\n  Port 2200\n"
OTHER = "Host a\n  HostName 10.0.0.1\n  User ann\n  Port 2222\n"
MATCH = "Match host nothing\n  User wrong\n"  # paramiko alone would read it: ssh is asked


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a file, with FOLDER for where it is, and gives (its ConfigFiles, its path)."""

    def write(text):
        path = tmp_path / "config"
        path.write_text(text.replace("FOLDER", str(tmp_path)))
        return ConfigFiles(path), path

    (tmp_path / "other").write_text(OTHER)
    return write


def answer(files, host, *names):
    found = files.lookup(host).lookup(host)
    return {name: found[name] for name in names or ("hostname", "user", "port", "proxyjump") if name in found}


def answer_of_ssh(path, host):
    done = subprocess.run(["ssh", "-G", "-F", path, "--", host], stdout=subprocess.PIPE, text=True, check=True)
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return {name: found[name] for name in ("hostname", "user", "port", "proxyjump") if name in found}


def asks_ssh(files):
    """Tell it by what is promised: the same object for all hosts, or one for each."""
    return files.lookup("x") is not files.lookup("y")


FILES = [
    (f"{OTHER}Host *\n  User bob\n", False, {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}),
    ("User bob\nHost b\n  User ann\n", False, {"hostname": "a", "user": "bob"}),
    ("Host a\n  HostName %h.example.com\n", False, {"hostname": "a.example.com"}),
    (f"Match host 10.0.0.1\n  Port 23\n{OTHER}", True, {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}),
    ("Host a\n  HostName 10.0.0.1\nMatch host 10.0.0.1\n  User ann\n", True, {"hostname": "10.0.0.1", "user": "ann"}),
    ("match originalhost=a\n  User ann\n", True, {"user": "ann"}),
    ("Match exec true\n  User ann\n", True, {"user": "ann"}),
    ("CanonicalizeHostname no\nHost a\n  User ann\n", True, {"user": "ann"}),
    ("Include FOLDER/other\nHost *\n  User bob\n", True, {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}),
    ("Include FOLDER/none FOLDER/oth*\n", True, {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}),
    ("include=FOLDER/other\n", True, {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}),
    ('Include "FOLDER/other"\n', True, {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}),
    ("Host b\n  Include FOLDER/other\n", True, {"hostname": "a", "port": "22"}),
    ("Include FOLDER/none\nInclude FOLDER/no*\nHost *\n  User bob\n", False, {"hostname": "a", "user": "bob"}),
    ("#Include FOLDER/other\n# Match all\nHost *\n  User bob\n", False, {"hostname": "a", "user": "bob"}),
    ("Host a\n  HostName 10.0.0.1  # the old one\n", None, {"hostname": "10.0.0.1"}),
]


@pytest.mark.parametrize(("text", "needs_ssh", "expected"), FILES, ids=[text.split("\n")[0] for text, *_ in FILES])
def test_a_host_is_what_ssh_says_it_is(read, text, needs_ssh, expected):
    files, path = read(text)
    ours, theirs = answer(files, "a"), answer_of_ssh(path, "a")
    assert expected.items() <= theirs.items()
    assert ours == {name: value for name, value in theirs.items() if name in ours}
    assert expected.keys() <= ours.keys() | {"port"}
    assert needs_ssh is None or asks_ssh(files) is needs_ssh


@pytest.mark.parametrize("text", [OTHER, OTHER + MATCH])
def test_an_answer_is_kept(read, text):
    files, _ = read(text)
    assert files.lookup("a") is files.lookup("a")


@pytest.mark.parametrize("more", ["", MATCH])
def test_options_that_are_not_set_are_not_there(read, more):
    files, _ = read(OTHER + more)
    assert answer(files, "a", "proxyjump", "proxycommand", "identityfile") == {}


# the way to a host


@pytest.mark.parametrize("more", ["", MATCH, "Include FOLDER/other\n"])
def test_what_is_said_of_a_hop_is_known(read, more):
    files, _ = read(f"{more}Host node\n  User worker\n  ProxyJump eve@hop:23\n{HOP}")
    assert answer(files, "node", "user", "proxyjump") == {"user": "worker", "proxyjump": "eve@hop:23"}
    hop = files.lookup("node").lookup("hop")  # fabric looks it up in the configuration of the host
    assert (hop["hostname"], hop["user"], hop["port"]) == ("10.0.0.9", "jumper", "2200")


@pytest.mark.parametrize("more", ["", MATCH, "Include FOLDER/other\n"])
@pytest.mark.parametrize(
    ("jump", "hops"),
    [
        ("hop", [("10.0.0.9", "jumper", 2200)]),
        ("eve@hop:23", [("10.0.0.9", "eve", 23)]),
        ("hop,last", [("10.0.0.8", "second", 22), ("10.0.0.9", "jumper", 2200)]),
    ],
)
def test_a_hop_has_its_own_name_user_and_port(read, more, jump, hops):
    last = "Host last\n  HostName 10.0.0.8\n  User second\n"
    _, path = read(f"{more}Host node\n  HostName 10.0.0.2\n  User worker\n  ProxyJump {jump}\n{HOP}{last}")
    connection = FabricTransport(SshSettings(path)).prepare(Host("node"))
    found = [(connection.host, connection.user, connection.port)]
    while connection.gateway is not None:
        connection = connection.gateway
        found.append((connection.host, connection.user, connection.port))
    assert found == [("10.0.0.2", "worker", 22), *hops]


def test_a_hop_with_a_hop_before_it(read):
    files, _ = read(f"{MATCH}Host node\n  ProxyJump inner\nHost inner\n  User in\n  ProxyJump hop\n{HOP}")
    inner = fabric.Connection("node", config=fabric.Config(ssh_config=files.lookup("node"))).gateway
    assert (inner.host, inner.user, inner.port) == ("inner", "in", 22)
    assert (inner.gateway.host, inner.gateway.user, inner.gateway.port) == ("10.0.0.9", "jumper", 2200)


@pytest.mark.parametrize("none", ["ProxyJump none", "proxyjump=none"])
def test_a_bastion_for_all_hosts_but_itself(read, none):
    files, path = read(f"Host bastion\n  User guard\n  {none}\nHost *\n  ProxyJump bastion\n")
    assert answer(files, "a", "proxyjump") == {"proxyjump": "bastion"}
    assert answer(files, "bastion", "user", "proxyjump") == {"user": "guard"}
    assert "proxyjump" not in answer_of_ssh(path, "bastion")


def test_a_bastion_for_all_hosts_but_itself_is_the_way(read):
    files, _ = read("Host bastion\n  User guard\n  ProxyJump none\nHost *\n  ProxyJump bastion\n")
    connection = fabric.Connection("a", config=fabric.Config(ssh_config=files.lookup("a")))
    assert (connection.gateway.host, connection.gateway.user, connection.gateway.gateway) == ("bastion", "guard", None)
    bastion = fabric.Connection("bastion", config=fabric.Config(ssh_config=files.lookup("bastion")))
    assert bastion.gateway is None


# keys


@pytest.mark.parametrize("more", ["", MATCH])
@pytest.mark.parametrize("name", ["key", "my key", "key_%h"])
def test_a_key_is_found(read, tmp_path, more, name):
    key = tmp_path / name.replace("%h", "a")
    key.write_text("")
    files, _ = read(f'Host a\n  IdentityFile "FOLDER/{name}"\n{more}')
    assert answer(files, "a", "identityfile") == {"identityfile": [str(key)]}


# the files


def test_a_block_ends_with_its_file(tmp_path, monkeypatch):
    mine, system = tmp_path / "mine", tmp_path / "system"
    mine.write_text("Host gpu*\n  User ann")
    system.write_text("Port 2222\nUser bob\nHost lab\n  HostName 10.0.0.3\n")
    monkeypatch.setattr(config_files, "_USER_FILE", mine)
    monkeypatch.setattr(config_files, "_SYSTEM_FILE", system)
    files = ConfigFiles()
    assert answer(files, "gpu1") == {"hostname": "gpu1", "user": "ann", "port": "2222"}
    assert answer(files, "lab") == {"hostname": "10.0.0.3", "user": "bob", "port": "2222"}


def test_files_of_ones_own_need_not_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr(config_files, "_USER_FILE", tmp_path / "none")
    monkeypatch.setattr(config_files, "_SYSTEM_FILE", tmp_path)  # a folder can't be read either
    assert answer(ConfigFiles(), "a") == {"hostname": "a"}


def test_a_named_file_must_be_there(tmp_path):
    with pytest.raises(UsageError) as caught:
        ConfigFiles(tmp_path / "none")
    assert (caught.value.message, caught.value.hint) == (
        f"{tmp_path}/none: no such file",
        "--ssh-config names an OpenSSH client configuration",
    )


def test_what_ssh_refuses_is_refused_in_its_words(read):
    files, path = read(f"{MATCH}Port x\n")
    with pytest.raises(UsageError) as caught:
        files.lookup("a")
    assert (caught.value.message, caught.value.hint) == (f"{path} line 3: Bad port 'x'.", "`ssh -G HOST` says more")


def test_an_option_that_macos_s_ssh_alone_knows(read):
    text = f"Host *\n    UseKeychain yes\n{MATCH}Port 77\n"
    files, path = read(text)
    with pytest.raises(UsageError) as caught:
        files.lookup("a")
    assert (caught.value.message, caught.value.hint) == (
        f"{path}: line 2: Bad configuration option: usekeychain",
        "only macOS's own ssh knows it: `IgnoreUnknown UseKeychain` as the first line lets others skip it",
    )
    files, _ = read(f"IgnoreUnknown UseKeychain\n{text}")
    assert files.lookup("a").lookup("a")["hostname"] == "a"


@pytest.mark.parametrize("text", ["Nonsense\n", f"{MATCH}Nonsense\n", 'Host "a\n'])
def test_a_file_that_is_wrong_is_refused_in_one_line(read, text):
    with pytest.raises(UsageError):
        read(text)[0].lookup("a")
