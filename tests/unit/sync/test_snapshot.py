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
    assert found.entries == (
        Entry("a.py", FILE, 4, hash_of(b"a.py")),
        Entry("d/b\udcff\n", FILE, 5, hash_of(b"d/b\xff\n")),
        Entry("d/link", LINK, 0, "../a.py"),
        Entry("empty", FILE, 0, hash_of(b"")),
        Entry("large", FILE, len(large), hash_of(large)),
        Entry("run.sh", PROGRAM, 6, hash_of(b"run.sh")),
    )
    assert found.listing == listing.encode(found.entries)
    assert listing.decode(found.listing) == list(found.entries)
    assert found.hash == listing.hash_listing(found.listing)
    assert (found.root, found.bytes_in_all, found.files, found.warnings) == (root, len(large) + 15, 6, ())
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
    assert [(entry.path, entry.kind) for entry in take_snapshot(selection).entries] == [
        ("a", FILE), ("link", FILE), ("linked/x", FILE), ("now_link_inside", LINK),
    ]  # fmt: skip
    (root / "a").unlink()
    (root / "a").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="/a changes while launch reads it"):
        take_snapshot(selection)


@pytest.mark.parametrize("change", ["longer", "shorter", "touched"])
@pytest.mark.parametrize("times", [2, 3])
def test_a_file_that_changes_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, times: int
) -> None:
    root = make_repository(tmp_path / "r", "a", "log.txt")
    (root / "log.txt").write_bytes(b"x" * 100)
    changes = iter(range(times))

    def read_beside_a_writer(descriptor: int, size: int) -> bytes:
        """Read while another program writes: the file is shorter just before, or another one a moment later."""
        is_due = size > 50 and next(changes, None) is not None
        if is_due and change == "shorter":
            os.truncate(root / "log.txt", size - 9)
        data = _read(descriptor, size)
        if is_due and change == "longer":
            (root / "log.txt").write_bytes(b"x" * (size + 9))
        elif is_due and change == "touched":
            before = os.fstat(descriptor)
            os.utime(root / "log.txt", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        return data

    selection = select(root)
    monkeypatch.setattr(os, "read", read_beside_a_writer)
    if times < 3:
        now = take_snapshot(selection).entries[1]
        assert (now.size, now.content) == (
            (root / "log.txt").stat().st_size, hash_of((root / "log.txt").read_bytes()),
        )  # fmt: skip
    else:
        with pytest.raises(UsageError) as raised:
            take_snapshot(selection)
        assert raised.value.message == f"{root}/log.txt changes while launch reads it"
        assert raised.value.fix == "launch again when nothing writes to it, or leave it out with .launchignore"


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


def test_pointers_of_git_lfs_are_named(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "r", "a.py")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
    for name in "wxyz":
        (root / name).write_bytes(pointer)
    (root / "no_pointer").write_bytes(pointer + b"x" * 100)
    found = take_snapshot(select(root))
    assert found.warnings == (
        "4 files of Git LFS sent as pointers, without their content: w, x, y and 1 more; fix: git lfs pull",
    )
    assert found.files == 6
