"""The content of what is sent: each file as it was at one moment, whatever happens to it meanwhile."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from machines.repositories import make_repository, write_files

from launcher.errors import UsageError
from launcher.node.code import listing
from launcher.node.code.listing import FILE, LINK, PROGRAM, Entry
from launcher.sync.selection import select
from launcher.sync.snapshot import take_snapshot

_read = os.read


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_snapshot_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "r", "a.py", "run.sh", "d/b\udcff\n")
    large = os.urandom(1 << 20) * 2 + b"end"
    (root / "large").write_bytes(large)
    (root / "empty").write_bytes(b"")
    (root / "run.sh").chmod(0o744)
    (root / "a.py").chmod(0o655)  # executable, but not for its owner
    (root / "d/link").symlink_to("../a.py")
    found = take_snapshot(select(root))
    assert listing.decode(found.listing) == [
        Entry("a.py", FILE, 4, hash_of(b"a.py")),
        Entry("d/b\udcff\n", FILE, 5, hash_of(b"d/b\xff\n")),
        Entry("d/link", LINK, 0, "../a.py"),
        Entry("empty", FILE, 0, hash_of(b"")),
        Entry("large", FILE, len(large), hash_of(large)),
        Entry("run.sh", PROGRAM, 6, hash_of(b"run.sh")),
    ]
    assert found.hash == listing.hash_listing(found.listing)
    assert (found.root, found.bytes_in_all, found.files) == (str(root), len(large) + 15, 6)
    (root / "a.py").chmod(0o755)
    assert take_snapshot(select(root)).hash != found.hash


def test_what_is_replaced_after_the_selection_does_no_harm(tmp_path: Path) -> None:
    names = ("a", "gone", "now_fifo", "now_folder", "now_link_inside", "gone_folder/x", "linked/x")
    root = make_repository(tmp_path / "r", *names)
    (root / "link").symlink_to("a")
    (root / "link_gone").symlink_to("a")
    selection = select(root)
    for name in ("gone", "now_fifo", "now_folder", "now_link_inside", "gone_folder/x", "link", "link_gone"):
        (root / name).unlink()
    os.mkfifo(root / "now_fifo")
    (root / "now_folder").mkdir()
    (root / "now_link_inside").symlink_to("a")
    (root / "gone_folder").rmdir()
    write_files(root, "gone_folder", "link")
    assert [(entry.path, entry.kind) for entry in listing.decode(take_snapshot(selection).listing)] == [
        ("a", FILE), ("link", FILE), ("linked/x", FILE), ("now_link_inside", LINK),
    ]  # fmt: skip
    (root / "a").unlink()
    (root / "a").symlink_to("/etc/passwd")
    assert "a" not in [entry.path for entry in listing.decode(take_snapshot(selection).listing)]


def test_of_a_file_that_grows_what_was_there_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_repository(tmp_path / "r", "log.txt")

    def read_beside_a_writer(descriptor: int, size: int) -> bytes:
        with (root / "log.txt").open("ab") as file:
            file.write(b"more")
        return _read(descriptor, size)

    selection = select(root)
    monkeypatch.setattr(os, "read", read_beside_a_writer)
    found = take_snapshot(selection)
    assert listing.decode(found.listing) == [Entry("log.txt", FILE, 7, hash_of(b"log.txt"))]
    assert found.kept == {hash_of(b"log.txt"): b"log.txt"}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_repository(tmp_path / "r", "a", "b")
    selection = select(root)

    def fail(*args: object) -> bytes:
        raise OSError(5, "Input/output error")

    if os.geteuid() != 0:
        (root / "b").chmod(0)
        with pytest.raises(UsageError, match="/b can't be read: Permission denied"):
            take_snapshot(selection)
    monkeypatch.setattr(os, "read", fail)
    with pytest.raises(UsageError, match="/a can't be read: Input/output error") as raised:
        take_snapshot(selection)
    assert raised.value.fix == "make it readable, or leave it out with .launchignore"
