"""What comes from a launcher on another host: its output up to its last line, and the archive of its logs."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.controller.fetching import take_logs
from launcher.controller.remote_launcher import LineCut
from launcher.errors import LauncherError
from launcher.output.lines import STDERR, STDOUT
from launcher.runs.run_list import Way

MARK = b"~12ab "
WAY = Way("gpu1")


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

    def __init__(self, stdout: bytes, stderr: bytes = b"", code: int = 0) -> None:
        self.stdout, self.stderr, self._code = stdout, stderr, code
        self.exit_code: int | None = None

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        yield STDERR, self.stderr
        for start in range(0, len(self.stdout), 1000):
            yield STDOUT, self.stdout[start : start + 1000]
        self.exit_code = self._code


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
    assert take_logs(Pieces(data), WAY, "RUN", tmp_path / "logs") == (tmp_path / "logs" / "RUN", "")
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
        ("RUN/fetched.json", b"x", ""),
        ("RUN/fetched.json/a", b"x", ""),
    ],
)
def test_a_host_that_lies_writes_nothing_elsewhere(tmp_path: Path, member: tuple[str, bytes | None, str]) -> None:
    take_logs(Pieces(archive(("RUN", None, ""), member)), WAY, "RUN", tmp_path / "a" / "logs")
    assert {path.name for path in tmp_path.rglob("*")} <= {"a", "logs", "RUN", "fetched.json"}


def copy(base: Path, content: bytes = b"x", way: Way = WAY, code: int = 0) -> Path | None:
    """Copy the logs of a run that have one file."""
    return take_logs(Pieces(archive(("RUN", None, ""), ("RUN/a", content, "")), code=code), way, "RUN", base)[0]


def test_a_copy_replaces_only_an_earlier_one_of_the_same_run(tmp_path: Path) -> None:
    """Any host may name any run."""
    others = [WAY, Way("gpu1", "ann"), Way("gpu1", port=2222), Way("gpu2")]
    for _ in range(2):
        names = [copy(tmp_path, way.name.encode(), way) for way in others]
        assert names == [tmp_path / name for name in ("RUN", "RUN.2", "RUN.3", "RUN.4")]
    assert [(tmp_path / name / "a").read_bytes() for name in ("RUN", "RUN.4")] == [b"gpu1", b"gpu2"]
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize("kind", ["logs", "empty", "file", "link", "dangling link", "link to a copy"])
def test_what_is_no_copy_stays(tmp_path: Path, kind: str) -> None:
    """The logs of a run of this machine, or what somebody has put where a copy will be."""
    base, victim = tmp_path / "logs", tmp_path / "victim"
    base.mkdir()
    if kind == "link to a copy":
        copy(tmp_path / "elsewhere")
        victim = tmp_path / "elsewhere" / "RUN"
    elif kind != "dangling link":
        victim.mkdir()
        (victim / "a").write_text("mine")
    if "link" in kind:
        (base / "RUN").symlink_to(victim)
    elif kind == "file":
        (base / "RUN").touch()
    else:
        (base / "RUN").mkdir()
        (base / "RUN" / "run.json").touch() if kind == "logs" else None
    before = [path.lstat() for path in (base / "RUN", victim) if os.path.lexists(path)]
    assert copy(base) == base / "RUN.2"
    assert [path.lstat() for path in (base / "RUN", victim) if os.path.lexists(path)] == before
    assert {path.name for path in base.iterdir()} == {"RUN", "RUN.2"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_a_copy_of_another_user_stays(tmp_path: Path) -> None:
    copy(tmp_path)
    os.chown(tmp_path / "RUN", 54321, -1)
    assert copy(tmp_path) == tmp_path / "RUN.2"


def test_copies_that_are_made_at_once_are_whole(tmp_path: Path) -> None:
    """As after several attaches that end together; whichever comes last stays."""
    content = os.urandom(100_000)
    with ThreadPoolExecutor(8) as pool:
        names = [*pool.map(lambda _: copy(tmp_path, content), range(64))]
    assert {*names} == {tmp_path / "RUN"}
    assert {path.name for path in tmp_path.iterdir()} == {"RUN"}
    assert (tmp_path / "RUN" / "a").read_bytes() == content


def test_what_a_killed_copy_has_left_is_removed_later(tmp_path: Path) -> None:
    for name, age_s in ((".RUN.0a1b.new", 1e6), (".RUN.2c3d.new", 10.0)):
        (tmp_path / name / "files").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    copy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".RUN.2c3d.new", "RUN"}


def test_an_archive_whose_sender_failed_is_no_copy(tmp_path: Path) -> None:
    """It may look whole: both the archive and its compression were closed."""
    copy(tmp_path, b"old")
    assert copy(tmp_path, code=1) is None
    assert (tmp_path / "RUN" / "a").read_bytes() == b"old"


def test_an_archive_that_breaks_off(tmp_path: Path) -> None:
    data = archive(("RUN", None, ""), ("RUN/node_0.log", bytes(range(256)) * 4000, ""))
    with pytest.raises(LauncherError, match="arrived damaged"):
        take_logs(Pieces(data[: len(data) // 2]), WAY, "RUN", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_whose_bytes_were_changed(tmp_path: Path) -> None:
    """The copy that was there stays."""
    take_logs(Pieces(archive(("RUN", None, ""), ("RUN/a", b"old", ""))), WAY, "RUN", tmp_path)
    data = bytearray(archive(("RUN", None, ""), ("RUN/a", os.urandom(100_000), "")))
    data[50_000] ^= 1
    with pytest.raises(LauncherError, match="arrived damaged"):
        take_logs(Pieces(bytes(data)), WAY, "RUN", tmp_path)
    assert (tmp_path / "RUN" / "a").read_bytes() == b"old"


def test_a_host_without_logs_says_why(tmp_path: Path) -> None:
    said = "launch: no run '7'\n"
    assert take_logs(Pieces(b"", said.encode()), WAY, "RUN", tmp_path) == (None, said)


def member(kind: bytes, size: int) -> bytes:
    found = tarfile.TarInfo("RUN/a")
    found.type, found.size = kind, size
    return found.tobuf(tarfile.GNU_FORMAT)


BOMBS = {
    "a header": member(tarfile.XHDTYPE, 1 << 30),
    "a name": member(tarfile.GNUTYPE_LONGNAME, 1 << 30),
    "a header behind a directory": member(tarfile.DIRTYPE, 1 << 30) + member(tarfile.XHDTYPE, 1 << 30),
}


@pytest.mark.parametrize("begin", BOMBS.values(), ids=BOMBS)
def test_a_small_archive_takes_little_memory(tmp_path: Path, begin: bytes) -> None:
    """What tarfile reads whole: 64 kB became 64 MB, and 1 MB would have become 1 GB."""
    bomb = gzip.compress(begin + bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(LauncherError, match="arrived damaged: a header of more than 1048576 bytes"):
        take_logs(Pieces(bomb), WAY, "RUN", tmp_path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 << 20
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("records", [b"22 GNU.sparse.map=x,y\n", b""])
def test_headers_that_tarfile_does_not_survive(tmp_path: Path, records: bytes) -> None:
    header = member(tarfile.XHDTYPE, len(records)) + records.ljust(512 if records else 0, b"\0")
    bad = gzip.compress((header if records else header * 1500) + member(tarfile.REGTYPE, 0) + bytes(1024))
    with pytest.raises(LauncherError, match="the logs of gpu1 arrived damaged: "):
        take_logs(Pieces(bad), WAY, "RUN", tmp_path)


def test_large_files_and_many_of_them_arrive(tmp_path: Path) -> None:
    """Also behind one that isn't wanted."""
    large = os.urandom(3 << 20)
    data = archive(("RUN/a\nb", large, ""), ("RUN/large", large, ""), *((f"RUN/{n}", b"x", "") for n in range(1100)))
    folder, _ = take_logs(Pieces(data), WAY, "RUN", tmp_path)
    assert folder is not None
    assert (folder / "large").read_bytes() == large
    assert len([*folder.iterdir()]) == 1100 + 2
