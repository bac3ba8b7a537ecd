"""What comes from a launcher on another host: its output up to its last line, and the archive of its logs."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.controller.fetching import take_logs
from launcher.controller.remote_launcher import LineCut
from launcher.errors import LauncherError
from launcher.output.lines import STDERR, STDOUT

MARK = b"~12ab "


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("data", "shown", "word"),
    [
        (b"one\n~12ab 0\n", b"one\n", "0"),
        (b"half~12ab left\nrest", b"half", "left"),
        (b"~~12ab 7\n", b"~", "7"),
        (b"~12a b\n", b"~12a b\n", ""),
        (b"~12ab 13", b"", ""),
    ],
)
def test_output_comes_up_to_the_last_line(data: bytes, shown: bytes, word: str, size: int) -> None:
    cut = LineCut(MARK)
    found = b""
    for start in range(0, len(data), size):
        if not cut.word:
            found += cut.take(data[start : start + size])
    assert (found, cut.word) == (shown, word)


class Pieces:
    """The output of a launcher, as the tests write it."""

    def __init__(self, stdout: bytes, stderr: bytes = b"") -> None:
        self.stdout, self.stderr = stdout, stderr

    def __call__(self) -> Iterator[tuple[int, bytes]]:
        yield STDERR, self.stderr
        for start in range(0, len(self.stdout), 1000):
            yield STDOUT, self.stdout[start : start + 1000]


def archive(*members: tuple[str, bytes | None, str]) -> bytes:
    """Return an archive of members: name, content (None: a directory), target of a link."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        for name, content, link in members:
            member = tarfile.TarInfo(name)
            member.size = len(content or b"")
            member.type = tarfile.SYMTYPE if link else tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
            member.linkname, member.mode = link, 0o777
            file.addfile(member, io.BytesIO(content or b""))
    return gzip.compress(stream.getvalue())


def test_logs_are_copied_and_only_the_user_can_read_them(tmp_path: Path) -> None:
    log = b"\xff\r\n" * 10_000
    data = archive(("RUN", None, ""), ("RUN/node_0.log", log, ""), ("RUN/files", None, ""), ("RUN/files/a", b"1", ""))
    assert take_logs(Pieces(data)(), "gpu1", "RUN", tmp_path / "logs") == (tmp_path / "logs" / "RUN", "")
    assert (tmp_path / "logs" / "RUN" / "node_0.log").read_bytes() == log
    assert (tmp_path / "logs" / "RUN" / "files" / "a").read_bytes() == b"1"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "logs" / "RUN").rglob("*")}
    assert modes == {0o600, 0o700}


@pytest.mark.parametrize(
    "member",
    [
        ("/etc/evil", b"x", ""),
        ("../evil", b"x", ""),
        ("RUN/../../evil", b"x", ""),
        ("RUN/link", None, "/etc"),
        ("OTHER/run.json", b"x", ""),
        (".", None, ""),
        ("RUN/a\nb", b"x", ""),
        ("RUN", b"x", ""),
    ],
)
def test_a_host_that_lies_writes_nothing_elsewhere(tmp_path: Path, member: tuple[str, bytes | None, str]) -> None:
    take_logs(Pieces(archive(("RUN", None, ""), member))(), "gpu1", "RUN", tmp_path / "a" / "logs")
    assert {path.name for path in tmp_path.rglob("*")} <= {"a", "logs", "RUN"}


def test_a_link_that_is_there_already_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "logs" / "RUN").mkdir(parents=True)
    (tmp_path / "logs" / "RUN" / "run.json").symlink_to(tmp_path / "victim")
    data = archive(("RUN", None, ""), ("RUN/run.json", b"x", ""))
    assert take_logs(Pieces(data)(), "gpu1", "RUN", tmp_path / "logs")[0] == tmp_path / "logs" / "RUN"
    assert not (tmp_path / "victim").exists()
    assert (tmp_path / "logs" / "RUN" / "run.json").read_bytes() == b"x"


def test_an_archive_that_breaks_off(tmp_path: Path) -> None:
    data = archive(("RUN", None, ""), ("RUN/node_0.log", bytes(range(256)) * 4000, ""))
    with pytest.raises(LauncherError, match="arrived damaged"):
        take_logs(Pieces(data[: len(data) // 2])(), "gpu1", "RUN", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_whose_bytes_were_changed(tmp_path: Path) -> None:
    """The copy that was there stays."""
    take_logs(Pieces(archive(("RUN", None, ""), ("RUN/a", b"old", "")))(), "gpu1", "RUN", tmp_path)
    data = bytearray(archive(("RUN", None, ""), ("RUN/a", os.urandom(100_000), "")))
    data[50_000] ^= 1
    with pytest.raises(LauncherError, match="arrived damaged"):
        take_logs(Pieces(bytes(data))(), "gpu1", "RUN", tmp_path)
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "RUN").iterdir()] == [("a", b"old")]


def test_a_host_without_logs_says_why(tmp_path: Path) -> None:
    said = "launch: no run '7'\n"
    assert take_logs(Pieces(b"", said.encode())(), "gpu1", "RUN", tmp_path) == (None, said)
