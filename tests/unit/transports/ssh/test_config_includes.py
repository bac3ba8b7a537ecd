"""Configurations with Include, Host and Match in every order: what we read of them is what the real ssh reads."""

from __future__ import annotations

import getpass
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.ssh.config_files import ConfigFiles
from launcher.transports.ssh.config_lines import OPTIONS
from launcher.transports.ssh.known_hosts_paths import read_paths

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh: apt install openssh-client")

NAMES = ["a", "ab", "B.x", "10.0.0.1"]
PATTERNS = ["a", "a*", "?", "*", "!a", "!*b", "B.x", "b.x", "10.0.0.1", "a.x", '"a"', "[ab]"]
FILES = ["f0", "d/f1", "d/f2", "f3"]
VALUES = {
    "HostName": ["10.0.0.1", "%h.x", "a", '"ab"', "x%%y", "A.Example"],
    "user": ["ann", "bob", '"a b"', "eve  # was ann"],
    "Port": ["23", "0024", '"25"'],
    "ProxyJump": ["hop", "eve@hop:23,last", "none", "NONE", "hop # the old one"],
    "ProxyCommand": ["nc a 22", "none", '"/a b/nc" "%h"', "nc # c", "nc it\\'s"],
    "ConnectTimeout": ["5", "1m30s", "none", "1H"],
    "IdentityFile": ["/k1", '"/k 2"', "'/k 3'", "/k\\ 4", "none", "/k5#6"],
    "CertificateFile": ["/c1", '"/c 2"', "none", "/c3 # old"],
    "IdentitiesOnly": ["yes", "FALSE", "true"],
    "PubkeyAuthentication": ["no", "yes", "unbound"],
    "StrictHostKeyChecking": ["Off", "accept-new", "yes", "ask"],
    "HostKeyAlias": ["alias"],
    "IdentityAgent": ["none", "/agent", "SSH_AUTH_SOCK"],
    "UserKnownHostsFile": ["/kh", '/kh "/a b/kh"', "none", "/kh /kh2 # old"],
    "GlobalKnownHostsFile": ["/kh", "none"],
    "KnownHostsCommand": ["/bin/k %H", "none"],
    "CanonicalizeHostname": ["no"],
    "ServerAliveInterval": ["30"],
    "SendEnv": ["LANG LC_*"],
}


LISTS = [*(each for each in PATTERNS if '"' not in each), "a,!ab", "B.X,10.*", "*,!b.x"]
USERS = ["ann", getpass.getuser(), "!bob,*", '"a b"']
ONLY_SSH = [
    "Match exec true", "Match exec false", 'Match exec "test %n = a1"', 'Match host a* exec "true"', "Match final all",
    "Match canonical", "Match final host a.x,10.0.0.1", "Match user ann final", "UserKnownHostsFile /kh_%h /kh_%C",
    "Match !final user root", "Match host = a", "Match nothing a", "ProxyJump [::1]:23", "Port nothing",
    "ProxyJump none # b", "ProxyCommand nc it's", "Match all user root", 'Match user ""', "UserKnownHostsFile none /x",
]  # fmt: skip
DIRECT = ["Host hop last ::1", "ProxyJump none", "Match all"]  # jump hosts, which may lead to themselves otherwise


def write_match(rng):
    """Return conditions that every ssh reads alike, and no `final`."""
    criteria = []
    for _ in range(rng.randint(1, 2)):
        if rng.random() < 0.6:
            name, argument = rng.choice(["host", "originalhost"]), rng.choice(LISTS)
        else:
            name, argument = rng.choice(["user", "LocalUser"]), rng.choice(USERS)
        criteria.append(rng.choice(["", "", "!"]) + name + rng.choice(" =") + argument)
    return rng.choice(["Match all", "Match host a* all", f"Match {' '.join(criteria)}"])


def write_include(rng, own):
    """Return an Include for file number `own` that names later files alone: none may include itself."""
    names = FILES[own + 1 :]
    found = [f"FOLDER/{name}" for name in names] + [f'"FOLDER/{name}"' for name in names] + ["FOLDER/none", "none*"]
    found += ["FOLDER/d/*"] * 2 * (own < 0) + ["FOLDER/[ef]3"] * (own < 3)
    return f"Include {' '.join(rng.choices(found, k=rng.randint(1, 3)))}"


def write_line(rng, own):
    kind = rng.random()
    if kind < 0.5:
        key = rng.choice(list(VALUES))
        return rng.choice(["  ", "", "\t"]) + key + rng.choice([" ", "=", " = ", "\t"]) + rng.choice(VALUES[key])
    if kind < 0.7:
        return f"Host {' '.join(rng.choices(PATTERNS, k=rng.randint(1, 3)))}"
    if kind < 0.8:
        return write_match(rng)
    return write_include(rng, own) if kind < 0.97 else rng.choice(["", "# Host a", "   "])


def make_tree(seed):
    """Return files by their names, any mixture of what stands above, the same for the same seed."""
    rng = random.Random(seed)
    names = ["config", *FILES]
    return {name: [write_line(rng, own) for _ in range(rng.randint(2, 9))] for own, name in enumerate(names, -1)}


def write_tree(folder, tree):
    for name, lines in tree.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines).replace("FOLDER", str(folder)))
    return folder / "config"


def answer_of_ssh(path, name, user=None):
    """Return the options that we read, as `ssh -G` prints them; its words if it refuses the file."""
    login = [*(["-l", user] if user else []), "--", name]
    done = subprocess.run(["ssh", "-G", "-F", path, *login], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr
    options = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        if key in OPTIONS:
            options.setdefault(key, []).append(value)
    return options


def own_answer(files, name, defaults, user=None):
    found = files.find_hops(Host(name, user))[-1].settings
    answer = {key: [value] if isinstance(value, str) else value for key, value in found.items() if key in OPTIONS}
    return {**defaults, **answer}


def comparable(options):
    """Bring to one form what may be written in several."""
    answer = {key: value for key, value in options.items() if value not in (["none"], ["-1"])}
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        if key in answer:
            paths = " ".join(map(str, read_paths(answer[key][0])))
            answer[key] = [paths.replace("%h", answer["hostname"][0])]
    if "proxycommand" in answer:  # which has its tokens replaced
        answer["proxycommand"] = [answer["proxycommand"][0].replace("%h", answer["hostname"][0])]
    return answer


@pytest.fixture(scope="module")
def defaults():
    return answer_of_ssh(Path("/dev/null"), "a")


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**9))
def test_a_tree_of_files_is_read_as_ssh_reads_it(defaults, asked, seed):
    tree = make_tree(seed)
    tree["config"] = [*DIRECT, *tree["config"]]
    note(f"{tree}")
    with tempfile.TemporaryDirectory() as name:
        path = write_tree(Path(name), tree)
        logins = [*((name, None) for name in NAMES), ("a", "ann")]
        expected = [comparable(answer_of_ssh(path, *login)) for login in logins]
        asked()
        files = ConfigFiles(path)
        found = [comparable(own_answer(files, host, defaults, user)) for host, user in logins]
        if asked():  # versions differ in what follows `ProxyJump none`
            assert "none" in f"{tree}".lower()
            found, expected = ([{**each, "identityfile": []} for each in some] for some in (found, expected))
        assert found == expected


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**9), st.lists(st.sampled_from(ONLY_SSH), min_size=1, max_size=2))
def test_what_only_ssh_can_tell_is_what_ssh_tells_of_each_host(defaults, seed, lines):
    tree = make_tree(seed)
    for number, line in enumerate(lines):
        tree["config"].insert(seed // 10**number % len(tree["config"]), line)
    tree["config"] = [*DIRECT, *tree["config"]]
    note(f"{tree}")
    with tempfile.TemporaryDirectory() as name:
        path = write_tree(Path(name), tree)
        files = ConfigFiles(path)
        for host in ("a", "a1", "a2", "B.x", "10.0.0.1", "10.0.0.2"):
            theirs = answer_of_ssh(path, host)
            if isinstance(theirs, str):
                with pytest.raises(UsageError):
                    files.find_hops(Host(host))
            else:
                ours = own_answer(files, host, defaults)  # without the keys that don't exist
                assert comparable({**ours, "identityfile": []}) == comparable({**theirs, "identityfile": []})
