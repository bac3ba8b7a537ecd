"""The directory of a run that several processes make or mend at once, on one host or on hosts that share a cache."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.node.code import folders, listing
from launcher.node.code.folders import Folder
from launcher.node.code.listing import Entry

DATA = bytes(range(256)) * 1000


@pytest.fixture
def base(tmp_path: Path) -> str:
    folders.make_base(str(tmp_path))
    return str(tmp_path)


def make(base: str, *paths: str) -> tuple[Folder, list[Entry]]:
    """Return a directory without a name that has files with this content, and their entries."""
    entries = [Entry(path, listing.FILE, len(DATA), hashlib.sha256(DATA).hexdigest()) for path in paths]
    folder = folders.begin(base, "proj")
    assert all(folders.write_file(folder.make_room(entry), entry, [DATA]) for entry in entries)
    return folder, entries


def test_who_comes_second_gets_the_directory_at_once(base: str) -> None:
    first, second = (folders.begin(base, "proj") for _ in range(2))
    place = folders.open_folder(base, "run", "f" * 64, "proj")
    assert folders.appear(first, place) is first
    assert folders.appear(second, place) is place
    assert place.lock(fcntl.LOCK_SH)
    assert not Path(second.path).exists()


def test_all_who_mend_a_directory_at_once_find_it_whole(base: str) -> None:
    names = "changed", "missing", "pkg/missing"
    fresh, entries = make(base, *names, "unchanged")
    folder = folders.appear(fresh, folders.open_folder(base, "run", "f" * 64, "proj"))
    root = Path(folder.root)
    (root / "changed").write_bytes(b"mine")
    (root / "missing").unlink()
    (root / "pkg/missing").unlink()
    (root / "pkg").rmdir()
    begin = threading.Barrier(6)
    halves: list[bytes] = []

    def mend() -> None:
        own = make(base, *names)
        begin.wait()
        folder.take_over(*own)

    threads = [threading.Thread(target=mend) for _ in range(5)]
    for thread in threads:
        thread.start()
    begin.wait()
    while any(thread.is_alive() for thread in threads):
        for path in (path for path in root.rglob("*") if path.is_file()):
            with suppress(FileNotFoundError):  # it has just got its other name
                halves += {path.read_bytes()} - {DATA, b"mine"}
    assert halves == []
    assert listing.find_wrong(folder.root, entries) == []
    kept = [path.read_bytes() for path in root.glob("changed.replaced-*")]
    assert kept.count(b"mine") == 1
    aside = set(root.glob("*.replaced-*"))
    folder.take_over(*make(base, *names))
    assert set(root.glob("*.replaced-*")) == aside, "what is right stays"
    (root / "missing").unlink()
    (root / "missing/of/mine").mkdir(parents=True)
    folder.take_over(*make(base, *names))
    assert (root / "missing").read_bytes() == DATA
    assert len(list(root.glob("missing.replaced-*/of/mine"))) == 1


def test_a_copy_has_the_content_of_its_entry_or_there_is_none(tmp_path: Path) -> None:
    """Nothing waits for a FIFO, or follows a link, and what is longer isn't read."""
    entry = Entry("a", listing.PROGRAM, 3, hashlib.sha256(b"old").hexdigest())
    source, path = tmp_path / "source", tmp_path / "path"
    for how in (
        lambda: source.write_bytes(b"new"), lambda: source.write_bytes(b"older"), source.unlink, source.mkdir,
        lambda: (source.rmdir(), os.mkfifo(source)), lambda: (source.unlink(), source.symlink_to("elsewhere")),
    ):  # fmt: skip
        how()
        assert not folders.copy_file(str(source), entry, str(path))
        assert not path.exists()
    source.unlink()
    source.write_bytes(b"old")
    assert folders.copy_file(str(source), entry, str(path))
    assert (path.read_bytes(), path.stat().st_mode & 0o700) == (b"old", 0o700)


def test_what_a_killed_process_has_begun_is_removed_and_what_another_one_fills_stays(base: str) -> None:
    (begun, _), (filled, _), (fresh, _) = make(base, "a"), make(base, "a"), make(base, "a")
    for folder in begun, filled:
        os.utime(folder.path, (time.time() - 60,) * 2)
    begun.unlock()
    fresh.unlock()  # its process has not locked it yet
    Path(base, "trees", "note").write_text("a file of the user's does no harm")
    folders.prune(base)
    left = {Path(each.path).name for each in (filled, fresh)}
    assert {path.name for path in Path(base, "trees").iterdir()} == {"note", *left}


def test_a_directory_whose_listing_is_damaged_is_named_for_good(base: str) -> None:
    """Nobody knows what in it was sent, so nothing is removed; whoever cleans twice hears of it twice."""
    fresh, _ = make(base, "a")
    folder = folders.appear(fresh, folders.open_folder(base, "run", "f" * 64, "proj"))
    folder.unlock()
    Path(folder.path, "listing").write_bytes(b"[[")
    for _ in range(2):
        assert folders.prune(base, kept=0) == (0, 0, [folder.root])
    assert Path(folder.root, "a").read_bytes() == DATA


def test_a_file_that_cannot_be_read_is_one_that_is_missing(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (entry,) = make(base, "whole")

    def refuse(*arguments: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", refuse)  # as on a damaged disk
    assert not folders.copy_file(f"{folder.root}/whole", entry, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
