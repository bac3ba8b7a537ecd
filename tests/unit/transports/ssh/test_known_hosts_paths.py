"""Which files UserKnownHostsFile names: what ssh_config says, as the real ssh hands it on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from machines.patience import DEADLINE_S

from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.known_hosts_paths import find_doubt, find_files, read_paths
from launcher.transports.ssh.openssh_config import read_answer

# What stands in ssh_config, and what it names, below a folder with the folder `a b` in it.
VALUES = [
    ("/kh", ["/kh"]),
    ("/kh /kh2", ["/kh", "/kh2"]),
    ('"/a b/kh"', ["/a b/kh"]),
    ('"/a b/kh" /kh2', ["/a b/kh", "/kh2"]),
    ('/kh2 "/a b/kh"', ["/kh2", "/a b/kh"]),
    ('"/a b/kh" "/kh2"', ["/a b/kh", "/kh2"]),
    ('"/a b/kh" /kh2 "/kh3"', ["/a b/kh", "/kh2", "/kh3"]),
    ("'/a b/kh'", ["/a b/kh"]),
    ("/a\\ b/kh /kh2", ["/a b/kh", "/kh2"]),
    ('"/o\'b/kh"', ["/o'b/kh"]),
    ('"/no such/kh"', ["/no such/kh"]),
    ("none", []),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a b").mkdir()
    return tmp_path


def write_config(folder: Path, value: str) -> Path:
    for mark in ('"', "'", " "):
        value = value.replace(f"{mark}/", f"{mark}{folder}/")
    value = f"{folder}{value}" if value.startswith("/") else value
    config = folder / "config"
    config.write_text(f"Host e1\n  UserKnownHostsFile {value}\n")
    return config


@pytest.mark.parametrize(("value", "files"), VALUES)
def test_what_ssh_gives(folder: Path, value: str, files: list[str]) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("no ssh: apt-get install openssh-client")
    argv = ["ssh", "-F", str(write_config(folder, value)), "-G", "e1"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.splitlines()
    (text,) = (line.partition(" ")[2] for line in said if line.startswith("userknownhostsfile "))
    assert read_paths(text) == [Path(f"{folder}{file}") for file in files]
    assert read_answer("e1", said).place.known_file == (f"{folder}{files[0]}" if files else None)


@pytest.mark.parametrize("alias", [None, "Gpu"])
def test_tokens_stand_for_what_ssh_makes_of_them(tmp_path: Path, alias: str | None) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("no ssh: apt-get install openssh-client")
    value = "/%d/%h/%i/%k/%L/%l/%n/%p/%r/%u/%%/kh"
    config = tmp_path / "config"
    alias_line = f"  HostKeyAlias {alias}\n" if alias else ""
    config.write_text(f"Host E1\n  HostName e1.Example\n  User ann\n{alias_line}  UserKnownHostsFile {value}\n")
    argv = ["ssh", "-F", str(config), "-G", "-p", "2222", "E1"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.splitlines()
    (text,) = (line.partition(" ")[2] for line in said if line.startswith("userknownhostsfile "))
    own, _ = find_files({"userknownhostsfile": value}, Destination("E1", "e1.Example", 2222, "ann", alias))
    assert own == [Path(text)]


def test_tokens_that_are_not_known_stay(folder: Path) -> None:
    place = Destination("e1", "e1", 22, "ann")
    names = ["%C", "%h%C", "%x", "50%", "${X}"]
    settings = {"userknownhostsfile": " ".join(f"{folder}/{name}" for name in names)}
    assert find_files(settings, place)[0] == [folder / name for name in names]
    (folder / "%h").touch()
    assert find_files({"userknownhostsfile": f"{folder}/%h"}, place)[0] == [folder / "%h"]


def test_what_is_there_decides_what_a_blank_is(folder: Path) -> None:
    one = f"{folder}/a /b/kh"
    assert read_paths(one) == [folder / "a", Path("/b/kh")]
    (folder / "a " / "b").mkdir(parents=True)
    assert read_paths(one) == [Path(one)]
    assert read_paths("kh kh2") == [Path("kh"), Path("kh2")]
    for second in ("%d/kh2", "${HOME}/kh2"):
        assert read_paths(f"{folder}/kh {second}") == [folder / "kh", Path(second)]
    both = f"{folder}/kh kh2"
    assert read_paths(both) == [Path(both)]
    (folder / "kh").touch()
    assert find_doubt(Path(both)) == "may be one file or two: create the one that you mean first"


def test_the_home_stands_for_its_sign() -> None:
    assert read_paths("~/.ssh/kh ~/.ssh/kh2")[0] == Path.home() / ".ssh" / "kh"
    assert read_paths("~nobody-of-this-name/kh") == [Path("~nobody-of-this-name/kh")]


def test_no_file_is_made_where_the_meaning_is_in_doubt(folder: Path) -> None:
    (folder / "50%").touch()
    (folder / "a").mkdir()
    names = ["kh", "a b/kh", "no/such", "50%", "no such/kh", "%h", "${HOME}"]
    assert [name for name in names if not find_doubt(folder / name)] == ["kh", "a b/kh", "no/such", "50%"]


@example('" "')
@example('" /')
@given(st.lists(st.sampled_from(['"', "'", "\\", " ", "/", "~", "a", "\0", "none", "%d"]), max_size=12).map("".join))
def test_no_text_is_an_error(value: str) -> None:
    assert all(str(path).strip() for path in read_paths(value))
    assert all(isinstance(find_doubt(path), str) for path in read_paths(value))
