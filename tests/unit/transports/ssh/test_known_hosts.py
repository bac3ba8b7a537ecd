"""A known_hosts file that others write as well: no key of theirs is lost, and none is believed in their stead."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.patience import DEADLINE_S

from launcher.transports.ssh.known_hosts import (
    KnownKey,
    KnownKeys,
    append,
    end_last_line,
    find_files,
    find_unclear,
    lacks_newline,
    parse_known_hosts,
)
from launcher.transports.ssh.openssh_config import keep_known_keys, read_answer

KIND = "ssh-ed25519"


def make_key(name: str, fill: str) -> KnownKey:
    fields = (KIND.encode(), fill.encode() * 32)
    return KnownKey(name, KIND, b"".join(len(field).to_bytes(4, "big") + field for field in fields), None)


def line(key: KnownKey) -> str:
    return f"{key.names} {key.kind} {b64encode(key.blob).decode()}"


A, B, OTHER_A = make_key("a", "1"), make_key("b", "2"), make_key("a", "3")
A_LINE, B_LINE = line(A), line(B)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, f"{A_LINE}\n"),
        ("", f"{A_LINE}\n"),
        (f"{B_LINE}\n", f"{B_LINE}\n{A_LINE}\n"),
        (B_LINE, f"{B_LINE}\n{A_LINE}\n"),
        (f"{B_LINE} comment", f"{B_LINE} comment\n{A_LINE}\n"),
        (f"{B_LINE}\n\n", f"{B_LINE}\n\n{A_LINE}\n"),
        (A_LINE[:-8], f"{A_LINE[:-8]}\n{A_LINE}\n"),  # of a writer that was cut off: it is no key
        (A_LINE[:-8] + "ä", f"{A_LINE[:-8]}ä\n{A_LINE}\n"),
        ("|1|ä|ä" + A_LINE[1:], f"|1|ä|ä{A_LINE[1:]}\n{A_LINE}\n"),
        ("# a", f"# a\n{A_LINE}\n"),
    ],
)
def test_a_line_of_its_own(tmp_path: Path, before: str | None, after: str) -> None:
    path = tmp_path / "new" / "known_hosts"
    if before is not None:
        path.parent.mkdir()
        path.write_text(before)
    append(path, A)
    assert path.read_text() == after
    assert [*parse_known_hosts(after)][-1] == A


@pytest.mark.parametrize("kind", ["ssh-rsa", "rsa-sha2-256", "rsa-sha2-512"])
def test_rsa_has_three_names(kind: str) -> None:
    blob = b"".join(len(field).to_bytes(4, "big") + field for field in (b"ssh-rsa", b"e", b"n"))
    (key,) = parse_known_hosts(f"@revoked a {kind} {b64encode(blob).decode()}")
    assert (key.kind, key.blob, key.marker) == ("ssh-rsa", blob, "@revoked")


def test_a_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles", tmp_path / "known_hosts"
    target.write_text(B_LINE)
    link.symlink_to(target)
    append(link, A)
    assert link.is_symlink()
    assert target.read_text() == f"{B_LINE}\n{A_LINE}\n"


def test_a_last_line_is_ended_for_who_writes_behind_it(tmp_path: Path) -> None:
    """As ssh does: it looks at no end."""
    target, link = tmp_path / "dotfiles", tmp_path / "known_hosts"
    target.write_text(f"{B_LINE}\n{A_LINE}")
    link.symlink_to(target)
    for _ in range(2):
        end_last_line(link)
        assert (link.is_symlink(), target.read_text()) == (True, f"{B_LINE}\n{A_LINE}\n")


@pytest.mark.parametrize(
    ("option", "is_ended"),
    [
        ("stricthostkeychecking true", False),
        ("stricthostkeychecking ask", False),
        ("stricthostkeychecking accept-new", True),
        ("stricthostkeychecking false", True),
        ("checkhostip yes", True),
    ],
)
def test_a_file_that_ssh_does_not_write_is_left_as_it_is(tmp_path: Path, option: str, is_ended: bool) -> None:
    """On the way to a host as well."""
    for name in ("host", "hop"):
        (tmp_path / name).write_text(B_LINE)
    host, hop = (
        read_answer(name, ["hostname h", "port 22", "user u", f"userknownhostsfile {tmp_path / name} /second", option])
        for name in ("host", "hop")
    )
    keep_known_keys(host, [hop])
    ended = f"{B_LINE}\n" if is_ended else B_LINE
    assert [(tmp_path / name).read_text() for name in ("host", "hop")] == [ended] * 2


def test_what_is_no_file_is_left_as_it_is(tmp_path: Path) -> None:
    """A pipe would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for path in (tmp_path / "none" / "known_hosts", tmp_path, tmp_path / "pipe", tmp_path / "empty", Path("\0")):
        end_last_line(path)
        assert not lacks_newline(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "pipe"]
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_device_is_a_file_as_well() -> None:
    append(Path("/dev/null"), A)


def test_what_can_t_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "known_hosts", Path("/dev/full")):
        with pytest.raises(OSError, match=r"\w"):
            append(path, A)


WRITER = """
import sys
from pathlib import Path
from launcher.transports.ssh.known_hosts import KnownKey, append, parse_known_hosts
(key,) = parse_known_hosts(sys.argv[2])
for number in range(50):
    append(Path(sys.argv[1]), KnownKey(f"{key.names}{number}", key.kind, key.blob, None))
"""


def test_many_launches_at_once(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("a last line without an end")
    argv = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*argv, line(make_key(f"host{number}-", str(number)))]) for number in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    lines = path.read_text().splitlines()
    keys = list(parse_known_hosts(path.read_text()))
    assert lines[0] == "a last line without an end"
    assert len(lines) == 1 + len(keys)
    names = [key.names for key in keys]
    assert sorted(names) == sorted(f"host{w}-{n}" for w in range(4) for n in range(50))


NAMES = (
    "n1",
    "N1",
    "[n1]:22",
    "n2",
    "n1,n2",
    "n?",
    "*,!n1",
    "!n1",
    "n1,!n1",
    "n1,n1",
    f"|1|{b64encode(b'salt').decode()}|{b64encode(hmac.new(b'salt', b'n1', hashlib.sha1).digest()).decode()}",
)


@given(st.lists(st.sampled_from(NAMES)))
def test_the_lines_about_a_name_are_found_as_by_a_look_at_each(names: list[str]) -> None:
    lines = [KnownKey(name, "ssh-ed25519", bytes([number]), None) for number, name in enumerate(names)]
    for name in ("n1", "N1", "n2", "n3", "[n1]:22"):
        assert KnownKeys(lines).about(name) == [line for line in lines if line.is_of(name)]


# ---- which files ssh_config names -----------------------------------------------------------------------------------

# What stands in ssh_config, and the files that it names; None: `ssh -G` doesn't show clearly which.
VALUES = [
    ("/kh", ["/kh"]),
    ("/kh ~/kh2", ["/kh", "~/kh2"]),
    ('"/kh" "/kh2"', ["/kh", "/kh2"]),
    ('"/a b/kh"', None),
    ("kh", None),
    ("/%h/kh", ["/e1.example/kh"]),
    ("/%C/kh", None),
    ("none", []),
]


@pytest.mark.parametrize(("value", "files"), VALUES)
def test_which_files_ssh_names(tmp_path: Path, value: str, files: list[str] | None) -> None:
    """As the real ssh hands them on; with a token that depends on its version, it may have replaced that itself."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh: apt-get install openssh-client")
    config = tmp_path / "config"
    config.write_text(f"Host e1\n  HostName e1.example\n  UserKnownHostsFile {value}\n  GlobalKnownHostsFile /all\n")
    argv = ["ssh", "-F", str(config), "-G", "e1"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.splitlines()
    found = read_answer("e1", said)
    if files is None:
        assert find_unclear(found.settings) or ("%C" in value and "%" not in found.settings["userknownhostsfile"])
    else:
        paths = [Path(file).expanduser() for file in files]
        assert (find_unclear(found.settings), find_files(found.settings)) == ("", [*paths, Path("/all")])
        assert found.place.known_file == (str(paths[0]) if paths else None)
