"""Files of a run, copied from a host by a real Python there: only what is missing, and only into one directory."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines.launches import run_launch
from machines.patience import DEADLINE_S

from launcher.cli.file_receiver import Fetched, Wish, fetch_files, is_safe, refuse_pattern
from launcher.errors import HostFailureKind, LauncherError
from launcher.hosts.host import Host
from launcher.node import file_sender
from launcher.sync.kept_code import hash_path
from launcher.transports.base import STDERR, STDOUT, TransportError
from launcher.transports.process_channel import LocalTransport

HOST = Host("gpu1", source="test")
MOST = 1_000_000


def fetch(
    folder: Path, target: Path, *patterns: str, most_bytes: int = MOST, origin: dict[str, object] | None = None
) -> Fetched:
    wish = Wish(str(folder), patterns, most_bytes)
    return fetch_files(LocalTransport(), HOST, [sys.executable], 10, wish, target, origin)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A working directory whose outputs are elsewhere, as --sync links them."""
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "live" / "deep").mkdir(parents=True)
    (folder / "outputs").symlink_to(tmp_path / "live")
    (folder / "outputs/a.pt").write_bytes(b"a" * 1000)
    (folder / "outputs/deep/b \u00e9.txt").write_text("b")
    (folder / "outputs/empty").touch()
    (folder / "outputs/link").symlink_to("/etc/passwd")
    (folder / "outputs/away").symlink_to("/etc")
    os.mkfifo(folder / "outputs/fifo")
    (folder / "train.py").touch()
    return folder


def test_files_come_once_and_continue(workdir: Path, tmp_path: Path) -> None:
    target = tmp_path / "logs" / "R-fetched" / "gpu1"
    (tmp_path / "logs").mkdir()
    found = fetch(workdir, target, "outputs/", "*.none")
    assert (found.matched, found.copied, found.bytes_in_all, found.odd) == (3, 3, 1001, [])
    copies = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert copies == {"outputs/a.pt", "outputs/deep/b \u00e9.txt", "outputs/empty"}
    assert {path.stat().st_mode & 0o077 for path in [target.parent, target, *target.rglob("*")]} == {0}
    found = fetch(workdir, target, "outputs/")
    assert (found.copied, found.bytes_in_all) == (0, 0)

    with (workdir / "outputs/a.pt").open("ab") as file:  # it has grown, another has changed, and one was cut off
        file.write(b"more")
    (workdir / "outputs/deep/b \u00e9.txt").write_text("c")
    (target / "outputs/empty").write_bytes(b"it was not")
    (workdir / "outputs/c").write_bytes(b"c" * 100)
    (target / "outputs/.c.part").write_bytes(b"c" * 60)
    found = fetch(workdir, target, "outputs/**")
    assert (found.copied, found.bytes_in_all) == (4, 4 + 1 + 40)
    for name in ("a.pt", "deep/b \u00e9.txt", "c", "empty"):
        assert (target / "outputs" / name).read_bytes() == (workdir / "outputs" / name).read_bytes()
    assert not [*target.rglob("*.part")]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.py", {"train.py"}), ("**/*.pt", set()), ("*/a.pt", set()), ("./outputs//a.pt", {"a.pt"}),
        ("outputs/*", {"a.pt", "b \u00e9.txt", "empty"}), ("outputs/**/*.txt", {"b \u00e9.txt"}),
        ("outputs/**/a.*", {"a.pt"}), ("outputs/*/b*", {"b \u00e9.txt"}), ("outputs/away/*", {"hostname"}),
        ("outputs/[ae]*", {"a.pt", "empty"}), ("none/*", set()), ("train.py/*", set()),
        ("outputs", {"a.pt", "b \u00e9.txt", "empty"}), ("*", {"train.py"}), (".h*/*", {"d"}), ("**/.h/*", {"d"}),
        (".h/d", {"d"}), ("[.]h/*", set()), ("*h/*", set()), ("outputs/.h", {"d"}), ("outputs/**/.h", {"d"}),
    ],
)  # fmt: skip
def test_what_matches(
    pattern: str, names: set[str], workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".h", "outputs/.h"):
        (workdir / name).mkdir()
        (workdir / name / "d").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").touch()
    (workdir / "outputs/away").unlink()
    (workdir / "outputs/away").symlink_to(tmp_path / "etc")  # followed only if it is named
    monkeypatch.chdir(workdir)
    found = file_sender.find_files([pattern], ())
    assert {Path(path).name for path in found} == names


def test_a_file_that_is_a_link_stays_there(workdir: Path, tmp_path: Path) -> None:
    found = fetch(workdir, tmp_path / "R", "outputs/link")
    assert (found.copied, found.odd) == (0, ["outputs/link: Too many levels of symbolic links"])


def test_what_other_programs_would_obey_stays_there(workdir: Path, tmp_path: Path) -> None:
    for name in (
        "outputs/.hydra/c",
        "outputs/deep/.GIT/config",
        "outputs/code/pyproject.toml",
        "Launcher.toml",
        ".env",
    ):
        (workdir / name).parent.mkdir(exist_ok=True)
        (workdir / name).touch()
    found = fetch(workdir, tmp_path / "R", "outputs", "*.pt")
    assert (found.copied, found.odd) == (3, [])
    found = fetch(workdir, tmp_path / "R", "*", ".e*", "outputs/**/.hydra/")
    assert found.copied == 3
    copies = {path.relative_to(tmp_path / "R").as_posix() for path in (tmp_path / "R").rglob("*") if path.is_file()}
    assert {path for path in copies if not path.startswith("outputs/")} == {".env", "train.py"}
    assert "outputs/.hydra/c" in copies and not {path for path in copies if "GIT" in path or path.endswith(".toml")}


def test_a_limit_leaves_out_what_is_larger(workdir: Path, tmp_path: Path) -> None:
    found = fetch(workdir, tmp_path / "R", "outputs", most_bytes=500)
    assert (found.matched, found.copied, found.too_large) == (3, 2, [("outputs/a.pt", 1000)])


def test_nothing_is_written_through_a_link_here(workdir: Path, tmp_path: Path) -> None:
    (tmp_path / "R").mkdir(mode=0o700)
    (tmp_path / "R/outputs").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(LauncherError, match="it is a link"):
        fetch(workdir, tmp_path / "R", "outputs/a.pt")
    assert not [*(tmp_path / "elsewhere").iterdir()]


ORIGIN = {"run": "R", "host": "gpu1", "user": None, "port": None}


def test_logs_continue_a_copy_of_the_same_run(workdir: Path, tmp_path: Path) -> None:
    """Any host may name any run."""
    assert fetch(workdir, tmp_path / "R", "train.py", origin=ORIGIN).copied == 1
    (workdir / "train.py").write_text("more")
    assert fetch(workdir, tmp_path / "R", "train.py", origin=ORIGIN).copied == 1
    for key, value in (("run", "S"), ("host", "gpu2"), ("user", "ann"), ("port", 2222)):
        with pytest.raises(LauncherError, match="R is no copy of this run"):
            fetch(workdir, tmp_path / "R", "*", origin={**ORIGIN, key: value})
    assert {path.name for path in (tmp_path / "R").iterdir()} == {"train.py", "fetched.json"}


@pytest.mark.parametrize("kind", ["logs", "file", "link to a copy"])
def test_what_is_no_copy_of_logs_stays(workdir: Path, tmp_path: Path, kind: str) -> None:
    """The logs of a run of this machine, or what somebody has put where a copy will be."""
    target, victim = tmp_path / "logs" / "R", tmp_path / "victim"
    target.parent.mkdir()
    if kind == "link to a copy":
        fetch(workdir, victim, "train.py", origin=ORIGIN)
        target.symlink_to(victim)
    elif kind == "file":
        target.touch()
    else:
        target.mkdir()
        (target / "run.json").touch()

    def stats() -> list[tuple[int, ...]]:
        """Return what a change to them changes; a look at them moves the time of access."""
        found = [path.lstat() for path in (target, victim) if os.path.lexists(path)]
        return [(each.st_mode, each.st_ino, each.st_size, each.st_mtime_ns) for each in found]

    before = stats()
    with pytest.raises(LauncherError, match=r"it is a link|File exists|is no copy of this run"):
        fetch(workdir, target, "outputs", origin=ORIGIN)
    assert stats() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_a_copy_of_another_user_stays(workdir: Path, tmp_path: Path) -> None:
    fetch(workdir, tmp_path / "R", "train.py", origin=ORIGIN)
    os.chown(tmp_path / "R", 54321, -1)
    with pytest.raises(LauncherError, match="it belongs to user 54321"):
        fetch(workdir, tmp_path / "R", "outputs", origin=ORIGIN)


@pytest.mark.parametrize(("may_grow", "size", "mark"), [(True, 15, b"+"), (False, 15, b"-"), (True, 5, b"-")])
def test_a_file_that_changes_while_it_is_sent(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], *, may_grow: bool, size: int, mark: bytes
) -> None:
    """What a run appends to its logs is left for the next copy; results that are written anew aren't taken."""
    path = tmp_path / "node_0.log"
    path.write_bytes(b"x" * 10)
    with path.open("r+b") as file:
        found = os.fstat(file.fileno())
        os.truncate(path, size)
        file_sender._send(file.fileno(), "node_0.log", 0, found, may_grow=may_grow)
    sent = capfdbinary.readouterr().out.partition(b"\n")[2]
    assert (len(sent), sent[-1:]) == (11, mark)


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"^gpu1: .* can't be entered: No such file or directory$"):
        fetch(tmp_path / "none", tmp_path / "R", "x")


class Liar:
    """A host whose Python sends what it likes."""

    name = "liar"

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def open(self, host: Host, command: str, timeout_s: float) -> Liar:
        nonce = command.partition("~launch ")[2].partition('"')[0]
        self._pieces: Iterator[tuple[int, bytes]] = iter(
            [(STDOUT, f"~launch {nonce} missing 3.11\n".encode()), (STDERR, b"said \x1b]0;x\n"), (STDOUT, self._answer)]
        )
        return self

    def own_messages(self, host: Host) -> list[str]:
        return []

    def read(self) -> tuple[int, bytes]:
        return next(self._pieces, (0, b""))

    def write(self, data: bytes) -> None:
        """Take it."""

    def close(self) -> None:
        """Be gone."""

    def exit_code(self) -> int | None:
        return 0


def entry(path: object, begin: object = 0, size: object = 1, content: bytes = b"x+") -> bytes:
    return json.dumps({"path": path, "begin": begin, "size": size}).encode() + b"\n" + content


END = b'{"end": true, "matched": 1}\n'


class Lost(Liar):
    """A host that is lost after it has sent some bytes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self._is_closed = threading.Event()

    def read(self) -> tuple[int, bytes]:
        piece = super().read()
        if not piece[0]:
            assert self._is_closed.wait(DEADLINE_S)
        return piece

    def close(self) -> None:
        self._is_closed.set()


@pytest.mark.parametrize("answer", [b"", entry("a"), entry("a", 0, 9, b"x")])
def test_a_host_that_is_lost_ends_the_copy(answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.cli.file_receiver.SILENCE_S", 0.2)
    with pytest.raises(TransportError) as raised:
        fetch_files(Lost(answer), HOST, ["p"], 10, Wish("/w", ("*",), MOST), tmp_path / "R")
    failure = raised.value.failure
    assert (failure.kind, failure.text) == (HostFailureKind.SILENT, "it has sent nothing for 0.2 s")


def test_a_host_that_looks_for_long_shows_that_it_is_there(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workdir)
    monkeypatch.setattr(file_sender, "BEAT_S", 0.0)
    file_sender.find_files(["outputs"], ())
    assert capfd.readouterr().out == "\n" * 2  # for each directory
    with Path("outputs/a.pt").open("rb") as file:
        assert file_sender.hash_start(file.fileno(), 1000) == hash_path(workdir / "outputs/a.pt")
    assert capfd.readouterr().out == "\n"
    answer = b"\n\n" + entry("a") + b"\n" + END
    found = fetch_files(Liar(answer), HOST, ["p"], 1, Wish("/w", ("*",), MOST), tmp_path / "R")
    assert (found.matched, found.copied) == (1, 1)


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x", "", ".", "a//b", "a\n", "\x1b[2J", "a/",
                                  ".x.part", "a/.Git/config", "Launcher.toml",
                                  "\u00e9" * 130, "a/" * 5000 + "a"])  # fmt: skip
def test_a_name_that_leads_elsewhere_is_skipped(path: str, tmp_path: Path) -> None:
    found = fetch_files(Liar(entry(path) + END), HOST, ["p"], 1, Wish("/w", ("*",), MOST), tmp_path / "R")
    assert (found.copied, found.bytes_in_all, len(found.odd), found.odd[0].isprintable()) == (0, 0, 1, True)
    assert [path.name for path in tmp_path.rglob("*")] == ["R"]
    assert not is_safe(path)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (entry(3), "sent what is no file"), (entry("a", 2, 1), "sent what is no file"),
        (entry("a", -1), "isn't here"), (entry("a", 1, 2), "isn't here"), (entry("a", 0, MOST + 1), "more than"),
        (b"[]\n", "no answer"), (b"[" * 100_000 + b"\n", "no answer"), (b"x" * (1 << 21), "line without end"),
        *((entry(path), f"wasn't asked for: {path}") for path in (".envrc", "a/b/.x")),
        (entry("a", 0, 9, b"x"), "connection was lost: said "), (b"", "connection was lost"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_an_error(answer: bytes, error: str, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=error) as raised:
        fetch_files(Liar(answer), HOST, ["p"], 1, Wish("/w", ("*",), MOST), tmp_path / "R")
    assert str(raised.value).isprintable()


def test_more_directories_than_one_copy_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.cli.file_receiver._MOST_FILES", 100)
    answer = b"".join(entry("a/" * 20 + str(number) + "/x") for number in range(10))
    with pytest.raises(TransportError, match="sent too many files"):
        fetch_files(Liar(answer), HOST, ["p"], 1, Wish("/w", ("a",), MOST), tmp_path / "R")


def test_patterns() -> None:
    assert [refuse_pattern(each) for each in ("outputs/", "*.pt", "..x/**")] == [None] * 3
    assert all(map(refuse_pattern, ("/etc/passwd", "~/x", "../x", "a/../../x", "", ".git/config", "a/Pyproject.toml")))


def test_files_of_a_run(tmp_path: Path) -> None:
    words = ["singlenode", "--nproc", "1", "--cpu", "--no-check", "--no-python", "sh", "-c"]

    def call(*words: str, code: int = 0) -> str:
        return run_launch(*words, cwd=tmp_path, code=code).stderr

    call(*words, "mkdir outputs; echo 1 | tee outputs/model.pt outputs/log.txt; exit 3", code=3)
    run_id = (tmp_path / "logs/latest").readlink().name
    assert "launch: copied 1 file (2 bytes) of " in call("fetch", run_id, "outputs/*.txt")
    said = call("fetch", run_id, "outputs/", "*.none")
    name = next((tmp_path / "logs" / f"{run_id}-fetched").iterdir()).name
    assert (
        f"launch: copied 1 file (2 bytes) of {name} to {tmp_path}/logs/{run_id}-fetched/{name}; 1 file unchanged\n"
        in said
    )
    assert (tmp_path / "logs" / f"{run_id}-fetched" / name / "outputs/model.pt").read_text() == "1\n"
    assert "matches *.none" in call("fetch", run_id, "*.none", code=1)
    assert "must be relative" in call("fetch", run_id, "/etc/passwd", code=2)
