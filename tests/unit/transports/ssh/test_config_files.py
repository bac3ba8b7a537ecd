"""What ssh_config says of a host: our answer held against that of the real ssh, file by file."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.ssh import config_files
from launcher.transports.ssh.config_files import ConfigFiles

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh: apt install openssh-client")

HOP = "Host hop\n  HostName 10.0.0.9\n  User jumper\n  Port 2200\n"
OTHER = "Host a\n  HostName 10.0.0.1\n  User ann\n  Port 2222\n"
MATCH = "Match exec false\n  User wrong\n"  # ssh is asked


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a file, with FOLDER for where it is, and gives (its ConfigFiles, its path)."""

    def write(text):
        path = tmp_path / "config"
        path.write_text(text.replace("FOLDER", str(tmp_path)))
        return ConfigFiles(path), path

    (tmp_path / "other").write_text(OTHER)
    (tmp_path / "for_b").write_text("Host b\n  Port 23\n")
    return write


def settings_of(files, name, user=None):
    return files.find_hops(Host(name, user))[-1].settings


def hops_of(path, host):
    """Return host, user and port of each login, that of the host itself first."""
    return [(hop.place.host, hop.place.user, hop.place.port) for hop in ConfigFiles(path).find_hops(host)][::-1]


def answer(files, host, *names):
    found = settings_of(files, host)
    return {name: found[name] for name in names or ("hostname", "user", "port", "proxyjump") if name in found}


def answer_of_ssh(path, host):
    done = subprocess.run(["ssh", "-G", "-F", path, "--", host], stdout=subprocess.PIPE, text=True, check=True)
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return {name: found[name] for name in ("hostname", "user", "port", "proxyjump") if name in found}


A = {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}
FILES = [
    (f"{OTHER}Host *\n  User bob\n", False, A),
    ("User bob\nHost b\n  User ann\n", False, {"hostname": "a", "user": "bob"}),
    ("Host a\n  HostName %h.example.com\n", False, {"hostname": "a.example.com"}),
    ("Host a\n  HostName 10.0.0.1  # the old one\n", False, {"hostname": "10.0.0.1"}),
    ("Host [a]\n  User bob\nHost A\n  User eve\n", False, {"hostname": "a"}),
    ("Host a\n  ProxyCommand nc b\nHost *\n  ProxyJump b\n", False, {"hostname": "a"}),
    (f"Match host 10.0.0.1\n  Port 23\n{OTHER}", False, A),
    ("Host a\n  HostName 10.0.0.1\nMatch host 10.0.0.1\n  User ann\n", False, {"hostname": "10.0.0.1", "user": "ann"}),
    ("match originalhost=a\n  User ann\n", False, {"user": "ann"}),
    ("Match originalhost b exec true\n  User ann\n", False, {"hostname": "a"}),
    ("CanonicalizeHostname no\nHost a\n  User ann\n", False, {"user": "ann"}),
    ("Match exec true\n  User ann\n", True, {"user": "ann"}),
    ("Match final all\n  User ann\n", True, {"user": "ann"}),
    ("Host b\n  Match final all\n  User ann\n", True, {"user": "ann"}),
    ("Match canonical\n  User ann\n", True, {"hostname": "a"}),
    ("Host a\n  ProxyJump none\nHost *\n  ProxyCommand nc b\n", True, {"hostname": "a"}),
    ("Host a\n  ProxyJump [::1]:23\n", True, {"proxyjump": "[::1]:23"}),
    ("Host b\n  ProxyJump [::1]:23\n", False, {"hostname": "a"}),
    ("Include FOLDER/other\nHost *\n  User bob\n", False, A),
    ("Include FOLDER/none FOLDER/oth*\n", False, A),
    ("include=FOLDER/other\n", False, A),
    ('Include "FOLDER/other"\n', False, A),
    ("Include FOLDER/none # FOLDER/other\n", False, {"hostname": "a"}),
    ("Include FOLDER/none\nInclude FOLDER/no*\nHost *\n  User bob\n", False, {"hostname": "a", "user": "bob"}),
    ("#Include FOLDER/other\n# Match all\nHost *\n  User bob\n", False, {"hostname": "a", "user": "bob"}),
    ("Include FOLDER\nUser bob\n", False, {"user": "bob"}),  # a folder
    # A block in a file applies where the Include does; after it the block around it goes on.
    ("Host b\n  Include FOLDER/other\n", False, {"hostname": "a", "port": "22"}),
    ("Host a\n  Include FOLDER/other\n", False, A),
    ("Host a\n  Include FOLDER/for_b\n  User ann\n", False, {"hostname": "a", "user": "ann"}),
    ("Host b\n  Include FOLDER/other\n  User ann\n", False, {"hostname": "a", "user": getpass.getuser()}),
    ("Match user nobody\n  Include FOLDER/other\nMatch all\n  User eve\n", False, {"hostname": "a", "user": "eve"}),
]


@pytest.mark.parametrize(("text", "needs_ssh", "expected"), FILES, ids=[text.split("\n")[0] for text, *_ in FILES])
def test_a_host_is_what_ssh_says_it_is(read, asked, text, needs_ssh, expected):
    files, path = read(text)
    theirs = answer_of_ssh(path, "a")
    asked()
    ours = answer(files, "a")
    assert asked() == (["a"] if needs_ssh else [])
    assert expected.items() <= theirs.items()
    assert ours == {name: value for name, value in theirs.items() if name in ours}
    assert expected.keys() <= ours.keys() | {"port", "user"}


@pytest.mark.parametrize("text", [OTHER, OTHER + MATCH])
def test_an_answer_is_kept(read, text):
    files, _ = read(text)
    assert files.find_hops(Host("a")) is files.find_hops(Host("a"))


@pytest.mark.parametrize("more", ["", MATCH])
def test_options_that_are_not_set_are_not_there(read, more):
    files, _ = read(OTHER + more)
    assert answer(files, "a", "proxyjump", "proxycommand", "identityfile") == {}


# the way to a host


@pytest.mark.parametrize("more", ["", MATCH, "Include FOLDER/other\n"])
def test_what_is_said_of_a_hop_is_known(read, more):
    files, _ = read(f"{more}Host node\n  User worker\n  ProxyJump eve@hop:23\n{HOP}")
    assert answer(files, "node", "user", "proxyjump") == {"user": "worker", "proxyjump": "eve@hop:23"}
    hop, _ = files.find_hops(Host("node"))
    assert (hop.place.host, hop.place.user, hop.place.port) == ("10.0.0.9", "eve", 23)  # as named on the way


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
    assert hops_of(path, Host("node")) == [("10.0.0.2", "worker", 22), *hops]


def test_a_hop_with_a_hop_before_it(read):
    _, path = read(f"{MATCH}Host node\n  ProxyJump inner\nHost inner\n  User in\n  ProxyJump hop\n{HOP}")
    assert hops_of(path, Host("node"))[1:] == [("inner", "in", 22), ("10.0.0.9", "jumper", 2200)]


@pytest.mark.parametrize("none", ["ProxyJump none", "proxyjump=none"])
def test_a_bastion_for_all_hosts_but_itself(read, none):
    files, path = read(f"Host bastion\n  User guard\n  {none}\nHost *\n  ProxyJump bastion\n")
    assert answer(files, "a", "proxyjump") == {"proxyjump": "bastion"}
    assert answer(files, "bastion", "user", "proxyjump") == {"user": "guard"}
    assert "proxyjump" not in answer_of_ssh(path, "bastion")


def test_a_bastion_for_all_hosts_but_itself_is_the_way(read):
    _, path = read("Host bastion\n  User guard\n  ProxyJump none\nHost *\n  ProxyJump bastion\n")
    assert hops_of(path, Host("a"))[1:] == hops_of(path, Host("bastion")) == [("bastion", "guard", 22)]


def test_a_bastion_for_all_hosts_is_not_reached_through_itself(read):
    _, path = read("User guard\nProxyJump bastion\n")
    assert hops_of(path, Host("a"))[1:] == hops_of(path, Host("bastion")) == [("bastion", "guard", 22)]


def test_jump_hosts_that_lead_to_each_other_are_refused(read):
    files, _ = read("Host a\n  ProxyJump b\nHost b\n  ProxyJump c\nHost c\n  ProxyJump b\n")
    with pytest.raises(UsageError, match="ProxyJump loop on the way to a: b is reached through itself"):
        files.find_hops(Host("a"))


def test_a_way_without_an_end_is_refused(read):
    files, _ = read("Host *\n  ProxyJump gate-%h\n")
    with pytest.raises(UsageError, match="ProxyJump loop on the way to a: gate-"):
        files.find_hops(Host("a"))


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
    monkeypatch.setattr(config_files, "USER_FILE", mine)
    monkeypatch.setattr(config_files, "SYSTEM_FILE", system)
    files = ConfigFiles()
    assert answer(files, "gpu1") == {"hostname": "gpu1", "user": "ann", "port": "2222"}
    assert answer(files, "lab") == {"hostname": "10.0.0.3", "user": "bob", "port": "2222"}


def test_files_of_ones_own_need_not_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr(config_files, "USER_FILE", tmp_path / "none")
    monkeypatch.setattr(config_files, "SYSTEM_FILE", tmp_path)  # a folder can't be read either
    assert answer(ConfigFiles(), "a") == {"hostname": "a"}


def test_a_named_file_must_be_there(tmp_path):
    with pytest.raises(UsageError) as caught:
        ConfigFiles(tmp_path / "none")
    assert (caught.value.message, caught.value.fix) == (
        f"{tmp_path}/none: no such file",
        "name an OpenSSH client configuration with --ssh-config",
    )


@pytest.mark.parametrize("before", ["", "Include FOLDER/other\n"])
def test_what_ssh_refuses_is_refused_in_its_words(read, before):
    text = f"{before}Host b\n  Port x\n"
    files, path = read(text)
    with pytest.raises(UsageError) as caught:
        files.find_hops(Host("a"))
    assert (caught.value.message, caught.value.fix) == (
        f"{path} line {text.count(chr(10))}: Bad port 'x'.",
        "run `ssh -G HOST` for details",
    )


def test_an_option_that_macos_s_ssh_alone_knows(read):
    text = f"Host *\n    UseKeychain yes\n{MATCH}Port 77\n"
    files, path = read(text)
    with pytest.raises(UsageError) as caught:
        files.find_hops(Host("a"))
    assert (caught.value.message, caught.value.fix) == (
        f"{path}: line 2: Bad configuration option: usekeychain",
        "only macOS's own ssh knows it: add `IgnoreUnknown UseKeychain` as the first line",
    )
    files, _ = read(f"IgnoreUnknown UseKeychain\n{text}")
    assert settings_of(files, "a")["hostname"] == "a"


@pytest.mark.parametrize("text", ["Nonsense\n", f"{MATCH}Nonsense\n", 'Host "a\n'])
def test_a_file_that_is_wrong_is_refused_in_one_line(read, text):
    with pytest.raises(UsageError):
        read(text)[0].find_hops(Host("a"))


# Include


def test_a_relative_include_is_looked_up_beside_the_file_of_its_owner(tmp_path, monkeypatch):
    mine, system = tmp_path / "mine" / "config", tmp_path / "system" / "config"
    for folder, user in ((mine.parent, "ann"), (system.parent, "bob")):
        folder.mkdir()
        (folder / "config").write_text("Include parts/*.conf\n")
        (folder / "parts").mkdir()
        (folder / "parts" / "one.conf").write_text(f"User {user}\nHost {user}\n  Port 2222\n")
        (folder / "parts" / ".two.conf").write_text("HostName hidden\n")
    monkeypatch.setattr(config_files, "USER_FILE", mine)
    monkeypatch.setattr(config_files, "SYSTEM_FILE", system)
    assert answer(ConfigFiles(), "bob") == {"hostname": "bob", "user": "ann", "port": "2222"}
    named = tmp_path / "named"
    named.write_text("Include parts/one.conf\n")
    assert answer(ConfigFiles(named), "ann") == {"hostname": "ann", "user": "ann", "port": "2222"}


def test_a_home_is_expanded(read, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    files, _ = read("Include ~/other\n")
    assert answer(files, "a") == {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}


@pytest.mark.parametrize("depth", [16, 17])
def test_includes_may_be_sixteen_deep(read, tmp_path, depth):
    for number in range(1, depth):
        (tmp_path / f"deep{number}").write_text(f"Include {tmp_path}/deep{number + 1}\n")
    (tmp_path / f"deep{depth}").write_text("User deep\n")
    files, _ = read("Include FOLDER/deep1\n")
    if depth <= 16:
        assert answer(files, "a", "user") == {"user": "deep"}
        return
    with pytest.raises(UsageError, match="Too many recursive configuration includes"):
        files.find_hops(Host("a"))


def test_a_file_that_others_may_write_is_refused_as_ssh_refuses_it(read, tmp_path):
    (tmp_path / "other").chmod(0o646)
    with pytest.raises(UsageError, match=f"^Bad owner or permissions on {tmp_path}/other$"):
        read("Include FOLDER/other\n")


def test_whether_a_group_may_write_a_file_is_one_question(read, asked, tmp_path):
    """Debian's ssh allows it where the group has its owner alone."""
    (tmp_path / "other").chmod(0o664)
    (tmp_path / "config").write_text(f"Include {tmp_path}/other\n")
    asked()
    if subprocess.run(["ssh", "-G", "-F", tmp_path / "config", "a"], capture_output=True, check=False).returncode:
        with pytest.raises(UsageError, match="Bad owner or permissions on"):
            ConfigFiles(tmp_path / "config")
    else:
        files = ConfigFiles(tmp_path / "config")
        assert [answer(files, name, "user") for name in ("a", "b")] == [{"user": "ann"}, {}]
    assert asked()[1:] == ["localhost"]


def test_ssh_is_asked_whether_the_own_file_will_do(tmp_path, monkeypatch, asked):
    """The real ssh looks at the real file, and has nothing against that."""
    mine = tmp_path / "mine"
    mine.write_text("User ann\n")
    mine.chmod(0o622)
    monkeypatch.setattr(config_files, "USER_FILE", mine)
    monkeypatch.setattr(config_files, "SYSTEM_FILE", tmp_path / "none")
    asked()
    assert answer(ConfigFiles(), "a", "user") == {"user": "ann"}
    assert asked() == ["localhost"]


@pytest.mark.parametrize("is_same", [False, True])
def test_ssh_is_not_asked_about_a_file_that_it_does_not_read(tmp_path, monkeypatch, is_same):
    """ssh looks into the home that passwd names; HOME is another one in containers, and after `sudo -E`."""
    monkeypatch.setattr(config_files, "SYSTEM_FILE", tmp_path / "none")
    folder = tmp_path / ".ssh"
    if is_same:
        folder.symlink_to(Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh"))
        mine = tmp_path / "mine"
        monkeypatch.setattr(config_files, "USER_FILE", mine)
    else:
        folder.mkdir()
        mine = folder / "config"
    mine.write_text("User ann\n")
    mine.chmod(0o666)
    monkeypatch.setenv("HOME", str(tmp_path))
    if is_same:
        assert answer(ConfigFiles(), "a", "user") == {"user": "ann"}
        return
    with pytest.raises(UsageError) as caught:
        ConfigFiles()
    assert (caught.value.message, caught.value.fix) == (
        f"{mine}: other users own it or can write to it",
        f"chmod go-w {mine}, or chown it, or name a file with --ssh-config",
    )


@pytest.mark.parametrize("pattern", [r"FOLDER/\[x\]", "FOLDER/[[:alpha:]]3"])
def test_a_pattern_that_python_reads_otherwise_is_left_to_ssh(read, tmp_path, asked, pattern):
    for name in ("[x]", "f3"):
        (tmp_path / name).write_text("User ann\n")
    asked()
    files, path = read(f"Include {pattern}\n")
    assert answer(files, "a", "user") == {"user": answer_of_ssh(path, "a")["user"]} == {"user": "ann"}
    assert asked() == ["a", "a"]


CANNOT_TELL = "install openssh-client, so that `launch` can run `ssh -G`"
REFUSED = [
    ("Match exec true\n", "config:1: only ssh can tell whether `Match exec true` applies", CANNOT_TELL),
    ("Match final all\n", "config:1: only ssh can tell what `Match final` changes", CANNOT_TELL),
    ("CanonicalizeHostname yes\n", "config:1: only ssh can look up canonical names", CANNOT_TELL),
    ("UserKnownHostsFile /k%C\n", "config:1: userknownhostsfile: only ssh can expand /k%C", CANNOT_TELL),
    ("Include ${HOME}/x\n", "config:1: Include: only ssh can expand ${HOME}/x", "install openssh-client"),
    ("User ann\nHost b\n  Port x\n", "config:3: port can't be 'x'", "correct that line"),
    ("IdentitiesOnly maybe\n", "config:1: identitiesonly can't be 'maybe'", "correct that line"),
    ("Host a\n  User\n", "config:2: 'User' is not an option with a value", "correct that line"),
    ('Host "a\n', "config:1: host: no value, or a quote that is not closed", "correct that line"),
    ("Include FOLDER/config\n", "config: Include is nested more than 16 files deep", "check if one includes itself"),
    ("Include FOLDER/open\n", "open: other users own it or can write to it", "chmod go-w FOLDER/open, or chown it"),
]


@pytest.mark.usefixtures("without_ssh")
@pytest.mark.parametrize(("text", "message", "fix"), REFUSED)
def test_without_ssh_what_it_alone_could_tell_is_one_line(tmp_path, text, message, fix):
    (tmp_path / "open").write_text("User eve\n")
    (tmp_path / "open").chmod(0o666)
    (tmp_path / "config").write_text(text.replace("FOLDER", str(tmp_path)))
    with pytest.raises(UsageError) as caught:
        ConfigFiles(tmp_path / "config").find_hops(Host("a"))
    assert (caught.value.message, caught.value.fix) == (
        f"{tmp_path}/{message}",
        fix.replace("FOLDER", str(tmp_path)),
    )


@pytest.mark.usefixtures("without_ssh")
def test_without_ssh_includes_and_matches_are_read_all_the_same(read):
    files, _ = read(
        "Include FOLDER/other\nMatch originalhost b exec true\n  Port 1\nMatch user ann\n  IdentityFile /k\n"
    )
    assert answer(files, "a", "hostname", "user", "port", "identityfile") == {
        "hostname": "10.0.0.1", "user": "ann", "port": "2222", "identityfile": ["/k"],
    }  # fmt: skip


# what every ssh refuses

WRONG = [
    ("ProxyCommand nc it's", "proxycommand: no value, or a quote that is not closed"),
    ('KnownHostsCommand k "%H', "knownhostscommand: no value, or a quote that is not closed"),
    ("Match all user root", "match can't be 'all user root'"),
    ("Match !all user x", "match can't be '!all user x'"),
    ('Match user ""', "match can't be 'user \"\"'"),
    ('Match host=""', "match can't be 'host=\"\"'"),
    ("ProxyJump eve@hop:xyz,last", "proxyjump can't be 'eve@hop:xyz,last'"),
    ("UserKnownHostsFile none /x", "userknownhostsfile can't be 'none /x'"),
    ("GlobalKnownHostsFile /x NONE", "globalknownhostsfile can't be '/x NONE'"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_line_that_every_ssh_refuses_is_refused(read, tmp_path, monkeypatch, line, message):
    """For every host, also one to which its block doesn't apply."""
    text = f"Host b\n  {line}\n"
    files, path = read(text)
    said = subprocess.run(["ssh", "-G", "-F", path, "a"], capture_output=True, text=True, check=False).stderr
    with pytest.raises(UsageError) as caught:
        files.find_hops(Host("a"))
    assert caught.value.message in said.splitlines()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        read(text)[0].find_hops(Host("a"))
    assert (caught.value.message, caught.value.fix) == (f"{path}:2: {message}", "correct that line")


@pytest.mark.usefixtures("without_ssh")
def test_options_that_launch_does_not_read_are_skipped(read):
    files, _ = read(f"UseKeychain yes\nSetEnv A=it's\n{OTHER}")
    assert answer(files, "a") == {"hostname": "10.0.0.1", "user": "ann", "port": "2222"}


# what is named with a host

NAMED = [
    "Match user eve\n  Port 2222\n  IdentityFile /rk\nMatch all\n  User bob\n",
    "Match user eve exec true\n  Port 2222\n  IdentityFile /rk\nMatch all\n  User bob\n",
]


@pytest.mark.parametrize("text", NAMED)
def test_a_user_who_is_named_with_a_host_is_matched(read, tmp_path, text):
    (tmp_path / "rk").touch()
    files, path = read(text.replace("/rk", "FOLDER/rk"))
    named, own = settings_of(files, "a", "eve"), settings_of(files, "a")
    assert (named["user"], named["port"], named["identityfile"]) == ("eve", "2222", [f"{tmp_path}/rk"])
    assert (own["user"], own.get("port", "22"), own.get("identityfile", [])) == ("bob", "22", [])
    assert hops_of(path, Host("a", "eve")) == [("a", "eve", 2222)]


@pytest.mark.parametrize("text", NAMED)
def test_the_user_of_a_jump_host_is_matched(read, text):
    _, path = read(f"Host a\n  ProxyJump eve@hop\n{text}")
    assert hops_of(path, Host("a"))[1:] == [("hop", "eve", 2222)]


def test_user_and_port_that_are_named_reach_a_proxy_command(read):
    files, _ = read("User bob\nPort 23\nProxyCommand nc -u %r %h %p %%\n")
    assert files.find_hops(Host("a", "eve", 2222))[0].settings["proxycommand"] == "nc -u eve a 2222 %"


# certificates


@pytest.mark.parametrize("more", ["", MATCH, "Match exec true\n"])
def test_every_certificate_is_known(read, more):
    text = 'CertificateFile /c1\nHost *\n  CertificateFile "/c 2"\n  CertificateFile /c1\n'
    files, _ = read(f"{more}{text}" if more != MATCH else f"{text}{more}")
    assert answer(files, "a", "certificatefile") == {"certificatefile": ["/c1", "/c 2"]}


# what fabric would not take as it is


def test_values_that_fabric_would_misread(read):
    jump = "Host hop\n  ProxyJump none\nHost *\n  ProxyJump ssh://eve@hop:23\n"
    _, path = read(f"ForwardAgent /tmp/agent\nConnectTimeout 1m\nPort 0022\n{jump}")
    hop, last = ConfigFiles(path).find_hops(Host("a"))
    assert (last.settings["connecttimeout"], last.place.port, hop.place.host) == ("60", 22, "hop")


# asked once for hosts that match the same blocks


GROUPED = [
    ("Match exec true\n  User ann\n", ["n1"]),
    ("Match exec true\n  User ann\nHost n1 x\n  Port 23\n", ["n1", "n2"]),
    ("Match exec true\n  HostName %h.lab\nHost n*\n  HostName 10.0.0.1\n", ["n1"]),
    ("Match final all\n  User ann\nHost *.lab\n  Port 23\nHost n*\n  HostName %h.lab\n", ["n1"]),
    # After the HostName is known, another block applies to n2.
    ("Host n*\n  HostName %h.lab\nHost n2.lab\n  Port 23\nMatch final all\n  User ann\n", ["n1", "n2"]),
    ('Match exec "test %n != n3"\n  User ann\n', ["n1", "n2", "n3", "n4"]),
    ("Match exec true\n  User ann\nUserKnownHostsFile /k_%h\n", ["n1", "n2", "n3", "n4"]),
    ("Match exec true\n  User ann\nHost *\n  ProxyJump hop\n", ["n1"]),
    ("Match exec true\n  User ann\nHost n*\n  ProxyJump hop-%h\n", ["n1", "n2", "n3", "n4"]),
]


@pytest.mark.parametrize(("text", "questions"), GROUPED, ids=[text.replace("\n", ";") for text, _ in GROUPED])
def test_hosts_that_match_the_same_blocks_are_one_question(read, asked, text, questions):
    files, path = read(text)
    expected = {name: answer_of_ssh(path, name) for name in ("n1", "n2", "n3", "n4")}
    asked()
    ours = {name: answer(files, name) for name in expected}
    seen = [name for name in asked() if not name.startswith("hop-")]
    assert sorted(seen) == sorted(questions)
    jumps = {name: each["proxyjump"].replace("%h", name) for name, each in expected.items() if "proxyjump" in each}
    assert ours == {name: {**each, **({"proxyjump": jumps[name]} if jumps else {})} for name, each in expected.items()}


def test_hosts_that_are_asked_about_at_the_same_time_are_one_question(read, asked):
    files, _ = read('Match exec "sleep 0.2"\n  User ann\n')
    names = [f"n{number}" for number in range(16)]
    asked()
    with ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(lambda name: answer(files, name), names))
    assert found == [{"hostname": name, "user": "ann", "port": "22"} for name in names]
    assert len(asked()) == 1


def test_a_refusal_is_one_question_too(read, asked):
    files, path = read("Match exec true\n  Port x\n")
    asked()
    for name in ("n1", "n2", "n3"):
        with pytest.raises(UsageError, match=f"^{path} line 2: Bad port 'x'.$"):
            files.find_hops(Host(name))
    assert asked() == ["n1"]
