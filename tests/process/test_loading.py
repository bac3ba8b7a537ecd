"""How a host keeps launch's code: what is run is what was sent, whatever happens to the files and directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from machines.probe_code import make_probe

from launcher.node.kept_archives import KEPT_S
from launcher.node.loading import in_time, path_kept
from launcher.transports.archives import PackedCode, pack, read_package
from launcher.transports.bootstrap import loader_command, start_code

pytestmark = pytest.mark.linux
PROBE = make_probe(
    "import part; print(part.WORD, flush=True)", part="WORD: str = 'sent'\nassert __annotations__['WORD'] is str"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the code is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "launch" / "code"


def begin(probe: PackedCode, python: str) -> subprocess.Popen[bytes]:
    command = ["/bin/sh", "-c", loader_command(python, "nonce", probe)]
    return subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def read_marker(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[2].decode()


def go_on(process: subprocess.Popen[bytes], probe: PackedCode) -> tuple[str, str]:
    """Return whether it had the code, and what its program has printed."""
    said = read_marker(process)
    output, errors = process.communicate(start_code("probe", probe, is_kept=said == "kept"))
    return said, (output + errors).decode().strip()


def start(probe: PackedCode = PROBE, python: str = sys.executable) -> tuple[str, str]:
    return go_on(begin(probe, python), probe)


def test_the_code_is_sent_once(cache: Path, any_python: str) -> None:
    assert start(python=any_python) == ("missing", "sent")
    assert start(python=any_python) == ("kept", "sent")
    assert [path.stat().st_mode & 0o777 for path in (cache.parent, cache, *cache.iterdir())] == [0o700] * 2 + [0o600]


def name_kept(probe: PackedCode) -> str:
    return Path(path_kept("", probe.name)).name


def replace_code(path: Path, old: bytes) -> None:
    """Let a part say something else, with the right hash of the whole."""
    data = path.read_bytes()[32:].replace(old, old.replace(b"sent", b"evil"))
    path.write_bytes(sha256(data).digest() + data)


def damage_bytecode(path: Path) -> None:
    evil = path.read_bytes().replace(b"sent", b"evil")
    path.write_bytes(evil.replace(PROBE.content.replace(b"sent", b"evil"), PROBE.content))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "another archive": lambda path: replace_code(path, b"'sent'"),
    "other bytecode": damage_bytecode,
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a link": lambda path: (path.rename(path.with_name("it")), path.symlink_to("it")),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
    "of another Python": lambda path: path.rename(path.with_name(f"{PROBE.name}.00000000")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_archive_is_sent_again(cache: Path, damage: Callable[[Path], object]) -> None:
    start()
    damage(cache / name_kept(PROBE))
    assert start() == ("missing", "sent")
    assert start() == ("kept", "sent")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_what_others_could_have_written_is_not_run(cache: Path) -> None:
    """While the directory was open to them, say."""
    kept = cache / name_kept(PROBE)
    for spoil in (lambda: os.chown(kept, 12346, -1), lambda: kept.chmod(0o620)):
        start()
        spoil()
        assert start() == ("missing", "sent")
        assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (os.geteuid(), 0o600)


def test_code_that_was_changed_on_its_way_is_not_run(cache: Path) -> None:
    process = begin(PROBE, sys.executable)
    read_marker(process)
    changed = replace(PROBE, content=PROBE.content.replace(b"'sent'", b"'evil'"))
    output, errors = process.communicate(start_code("probe", changed, is_kept=False))
    assert (process.returncode, output, errors) == (1, b"", b"launch's code came with another content\n")
    assert not list(cache.iterdir())


def test_a_directory_in_which_others_may_write_is_not_used(cache: Path) -> None:
    start()
    cache.parents[1].chmod(0o777)
    assert start() == ("missing", "sent")
    cache.parents[1].chmod(0o755)
    assert start() == ("kept", "sent")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_not_used(cache: Path) -> None:
    start()
    os.chown(cache.parent, 12345, -1)
    assert start() == ("missing", "sent")


def test_without_a_directory_it_is_imported_from_memory(any_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert start(python=any_python) == ("missing", "sent")
    assert start(python=any_python) == ("missing", "sent")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that is full")
def test_a_full_disk(cache: Path) -> None:
    place = cache.parents[1]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(place)], check=True)
    try:
        with contextlib.suppress(OSError):
            (place / "full").write_bytes(bytes(1 << 20))
        assert start() == ("missing", "sent")
        assert [path.name for path in place.rglob("*") if path.is_file()] == ["full"]
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system that hangs")
def test_a_disk_that_hangs_is_not_used(cache: Path) -> None:
    """As NFS does whose server is away: a process that looks there can't even be killed."""
    fuse = os.open("/dev/fuse", os.O_RDWR)
    place = cache.parents[1]
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0"
    subprocess.run(["mount", "-i", "-t", "fuse", "-o", options, "none", str(place)], pass_fds=[fuse], check=True)
    try:
        assert start() == ("missing", "sent")
    finally:
        os.close(fuse)
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_who_may_hang_holds_nothing_open() -> None:
    spare, *_ = ends = os.pipe()
    high = fcntl.fcntl(spare, fcntl.F_DUPFD, 500)
    held = in_time(lambda: b" ".join(path.name.encode() for path in Path("/proc/self/fd").iterdir())).split()
    assert len(held) == 2, "its answer, and what this reads"
    for fd in (*ends, high):
        os.close(fd)


def test_several_starts_at_once(cache: Path) -> None:
    processes = [begin(PROBE, sys.executable) for _ in range(4)]
    assert [read_marker(process) for process in processes] == ["missing"] * 4
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(start_code("probe", PROBE, is_kept=False))
    assert [process.communicate()[0] for process in processes] == [b"sent\n"] * 4
    assert start() == ("kept", "sent")
    assert [path.name for path in cache.iterdir()] == [name_kept(PROBE)]


def test_what_nobody_has_used_for_long_is_removed(cache: Path) -> None:
    start()
    old = time.time() - KEPT_S - 60
    for path in cache.iterdir():
        os.utime(path, (old, old))
    (cache / "used").touch()
    other = make_probe("print(1, flush=True)")
    assert start(other) == ("missing", "1")
    names = {path.name.partition(".")[0] for path in cache.iterdir()}
    assert names == {"used", other.name}


def test_a_traceback_shows_the_source(cache: Path) -> None:
    probe = make_probe("try: 1 / 0  # here\n    except ZeroDivisionError: __import__('traceback').print_exc()")
    for _ in range(2):
        assert 'probe.py", line 4, in main\n    try: 1 / 0  # here\n' in start(probe)[1]


def test_what_ranks_get_of_the_code_is_nowhere_on_a_disk(tmp_path: Path) -> None:
    """But without a name in this directory, where Python has no memfd_create."""
    body = f"""import os; from launcher.node.processes.lent_code import open_code
    for _ in range(2):
        found = os.fstat(open_code({str(tmp_path)!r}))
        print(found.st_dev == os.stat({str(tmp_path)!r}).st_dev, found.st_nlink, found.st_size > 1 << 18, flush=True)
        if hasattr(os, "memfd_create"):
            del os.memfd_create"""
    files = read_package(("launcher/__init__.py", "launcher/node/"))
    text = f"def main(nonce, wait_s):\n    {body}\n"
    assert start(pack({**files, "probe.py": text.encode()}))[1].split("\n") == ["False 0 True", "True 0 True"]
    assert not list(tmp_path.iterdir())
