"""Processes that share a cache directory: one makes a tree, and the others wait for it, but for no dead one."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.node.code import store as store_module
from launcher.node.code.store import Store, make_alone

TREE = "0123456789abcdef" * 4


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path))
    store.make()
    return store


@pytest.fixture
def holder_fd(store: Store, tmp_path: Path) -> Iterator[int]:
    """Lock the file as another process does that makes the tree."""
    fd = os.open(tmp_path / "making-0123456789abcdef", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield fd
    os.close(fd)


def test_one_after_the_other_makes_a_tree_and_no_file_is_left(store: Store, tmp_path: Path) -> None:
    inside, most = [0], [0]
    lock = threading.Lock()

    def make() -> None:
        with make_alone(store, TREE, time.sleep):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.01)
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    with make_alone(store, "f" * 64, time.sleep):  # another tree waits for none of them
        pass
    for thread in threads:
        thread.join()
    assert most == [1]
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


def test_the_lock_of_a_file_that_was_removed_is_none(
    store: Store, holder_fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder ends after another process has opened the file and before that has locked it."""
    path = tmp_path / "making-0123456789abcdef"
    flock = fcntl.flock

    def lock_late(fd: int, operation: int) -> None:
        if path.exists():
            path.unlink()
            flock(holder_fd, fcntl.LOCK_UN)
        flock(fd, operation)
        monkeypatch.setattr(fcntl, "flock", flock)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with make_alone(store, TREE, time.sleep):
        assert path.exists(), "the next one waits for it"


def test_a_living_holder_is_waited_for(
    store: Store, holder_fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "STALLED_S", 0.2)
    path = tmp_path / "making-0123456789abcdef"
    began_at = time.monotonic()

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        if time.monotonic() - began_at < 0.6:
            os.utime(path)
        else:
            fcntl.flock(holder_fd, fcntl.LOCK_UN)

    with make_alone(store, TREE, pause):
        assert time.monotonic() - began_at >= 0.6
        assert path.exists(), "now it is this one's"
    assert not path.exists()


@pytest.mark.usefixtures("holder_fd")
def test_a_holder_that_shows_no_life_is_not_waited_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a host that has died, whose lock a network file system keeps."""
    monkeypatch.setattr(store_module, "STALLED_S", 0.2)
    with make_alone(store, TREE, time.sleep):
        pass
    assert (tmp_path / "making-0123456789abcdef").exists(), "it is still the other's"


def test_the_holder_shows_life(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_LIFE_S", 0.01)
    path = tmp_path / "making-0123456789abcdef"
    with make_alone(store, TREE, time.sleep):
        seen = {path.stat().st_mtime_ns}
        deadline = time.monotonic() + 10
        while len(seen) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
            seen.add(path.stat().st_mtime_ns)
    assert len(seen) == 3


@pytest.mark.usefixtures("holder_fd")
def test_who_waits_ends_with_its_supervisor(store: Store) -> None:
    def pause(seconds: float) -> None:
        raise EOFError

    with pytest.raises(EOFError), make_alone(store, TREE, pause):
        pass


def test_where_no_file_can_be_made_nobody_waits(tmp_path: Path) -> None:
    with make_alone(Store(str(tmp_path / "missing")), TREE, time.sleep):
        pass
