"""What comes from a launcher on another host: its output up to its last line, and its logs."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machines.example_run import ExampleRun

from launcher.controller.fetching import send_logs, take_logs
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
        (b"one~12ab \n two~12ab \n~12ab \n~12ab 0\n", b"one two", "0"),  # with heartbeats
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


def sent(*files: tuple[object, bytes]) -> bytes:
    """Return what a host sends for these files."""
    lines = (json.dumps({"path": path, "size": len(content)}).encode() + b"\n" + content for path, content in files)
    return gzip.compress(b"".join(lines))


def test_logs_are_copied_and_only_the_user_can_read_them(tmp_path: Path) -> None:
    log = b"\xff\r\n" * 10_000
    data = sent(("node_0.log", log), ("files/restart_1/node_0/a", b"1"))
    assert take_logs(Pieces(data), WAY, "RUN", tmp_path / "logs") == (tmp_path / "logs" / "RUN", "")
    assert (tmp_path / "logs" / "RUN" / "node_0.log").read_bytes() == log
    assert (tmp_path / "logs" / "RUN" / "files/restart_1/node_0/a").read_bytes() == b"1"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "logs" / "RUN").rglob("*")}
    assert modes == {0o600, 0o700}


@pytest.mark.parametrize(
    "path",
    [
        "/etc/evil", "../node_0.log", "files/../node_0.log", "", ".", "node_0.log/a", "node_0\n.log", "fetched.json",
        ".git/config", ".envrc", "launcher.toml", "report.html", "files/node_0/.git", "files/node_0/Launcher.toml",
        "files/node_0/pyproject.toml", "files/node_0/a/b", "bisection/.git/run.json", "node_\u0663.log", 7,
    ],
)  # fmt: skip
def test_only_what_launch_keeps_of_a_run_is_taken(tmp_path: Path, path: object) -> None:
    with pytest.raises(LauncherError, match="is no file of a run"):
        take_logs(Pieces(sent(("node_0.log", b"x"), (path, b"x"))), WAY, "RUN", tmp_path / "a" / "logs")
    assert {path.name for path in tmp_path.rglob("*")} <= {"a", "logs"}


def test_all_that_a_run_keeps_is_sent_and_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, a part of a file and what else lies there stay."""
    names = {
        "run.json", "launch.log", "node_0.log", "node_1.log", "samples.jsonl", "stacks-1.txt",
        "stacks-restart_2-1.txt", "files/node_0/trace_0", "files/restart_1/node_12/a.txt",
        "bisection/20261120-091233-2/node_0.log", "bisection/20261120-091233-2/files/node_0/matrix.json",
    }  # fmt: skip
    run = ExampleRun().write(tmp_path)
    folder = run.folder
    for name in {*names, "run.json.new", ".git/config", "files/node_0/.a.part", "core.1234"}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(10))
    (folder / "node_2.log").symlink_to("/etc/passwd")
    stdout = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(stdout))
    send_logs(run)
    copied, _ = take_logs(Pieces(stdout.getvalue()), WAY, "RUN", tmp_path)
    assert copied is not None
    files = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    assert files == {*names, "fetched.json"}
    assert all((copied / name).read_bytes() == (folder / name).read_bytes() for name in names)


def copy(base: Path, content: bytes = b"x", way: Way = WAY, code: int = 0) -> Path | None:
    """Copy the logs of a run that have one file."""
    return take_logs(Pieces(sent(("node_0.log", content)), code=code), way, "RUN", base)[0]


def test_a_copy_replaces_only_an_earlier_one_of_the_same_run(tmp_path: Path) -> None:
    """Any host may name any run."""
    others = [WAY, Way("gpu1", "ann"), Way("gpu1", port=2222), Way("gpu2")]
    for _ in range(2):
        names = [copy(tmp_path, way.name.encode(), way) for way in others]
        assert names == [tmp_path / name for name in ("RUN", "RUN.2", "RUN.3", "RUN.4")]
    assert [(tmp_path / name / "node_0.log").read_bytes() for name in ("RUN", "RUN.4")] == [b"gpu1", b"gpu2"]
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
    assert (tmp_path / "RUN" / "node_0.log").read_bytes() == content


def test_what_a_killed_copy_has_left_is_removed_later(tmp_path: Path) -> None:
    for name, age_s in ((".RUN.0a1b.new", 1e6), (".RUN.2c3d.new", 10.0)):
        (tmp_path / name / "files").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    copy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".RUN.2c3d.new", "RUN"}


def test_logs_whose_sender_failed_are_no_copy(tmp_path: Path) -> None:
    """They may look whole."""
    copy(tmp_path, b"old")
    assert copy(tmp_path, code=1) is None
    assert (tmp_path / "RUN" / "node_0.log").read_bytes() == b"old"


def test_logs_that_break_off(tmp_path: Path) -> None:
    data = sent(("node_0.log", bytes(range(256)) * 4000))
    with pytest.raises(LauncherError, match="arrived damaged"):
        take_logs(Pieces(data[: len(data) // 2]), WAY, "RUN", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_logs_whose_bytes_were_changed(tmp_path: Path) -> None:
    """The copy that was there stays."""
    take_logs(Pieces(sent(("node_0.log", b"old"))), WAY, "RUN", tmp_path)
    data = bytearray(sent(("node_0.log", os.urandom(100_000))))
    data[50_000] ^= 1
    with pytest.raises(LauncherError, match="arrived damaged"):
        take_logs(Pieces(bytes(data)), WAY, "RUN", tmp_path)
    assert (tmp_path / "RUN" / "node_0.log").read_bytes() == b"old"


def test_a_host_without_logs_says_why(tmp_path: Path) -> None:
    said = "launch: no run '7'\n"
    assert take_logs(Pieces(b"", said.encode()), WAY, "RUN", tmp_path) == (None, said)


@pytest.mark.parametrize(
    ("plain", "error"),
    [
        (bytes(64 << 20), "Expecting value"), (b"[" * (64 << 20), ""), (b"{}\n", ""), (b"[]\n", ""),
        (b'{"path": "run.json", "size": -1}\n', "more than"), (b'{"path": "run.json", "size": true}\n', ""),
        (b'{"path": "run.json", "size": %d}\n' % (65 << 30), "more than 64 GiB"),
        (b'{"path": "run.json", "size": %s}\n' % (b"9" * 5000), ""),
        (b'{"path": "run.json", "size": 2}\nx', "a file without its end"),
        (b"".join(b'{"path": "node_%d.log", "size": 0}\n' % n for n in range(101)), "more than 100 files"),
        (b'{"path": "run.json", "size": 0}\n' * 2, "more than once"),
    ],
)  # fmt: skip
def test_what_are_no_logs_takes_little_memory_and_leaves_nothing(
    tmp_path: Path, plain: bytes, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is 64 kB on the wire was 64 MB in memory, and 2 KB were 2 GiB on the disk."""
    monkeypatch.setattr("launcher.controller.fetching._MOST_FILES", 100)
    bomb = gzip.compress(plain)
    tracemalloc.start()
    with pytest.raises(LauncherError, match=f"^the logs of gpu1 arrived damaged: .*{error}"):
        take_logs(Pieces(bomb), WAY, "RUN", tmp_path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 << 20
    assert [*tmp_path.iterdir()] == []
