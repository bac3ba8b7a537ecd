"""What small files of the system say, whatever is in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.node import system

MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /home rw shared:2 master:1 - nfs4 nas:/home rw,vers=4.2
24 23 254:1 /x /home/ana/fast rw - xfs /dev/vdb rw
25 22 0:22 / /mnt/my\\040data\\134x rw - fuse.sshfs ana@nas: rw
26 22 0:23 / /mnt/cloud rw - fuse.ntfs disk rw
27 22 0:24 net:[4026532281] /run/netns/x rw - nsfs nsfs rw
"""


@pytest.fixture
def _mounts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(system, "MOUNTS", str(tmp_path / "mountinfo"))


def test_a_text_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\xff\n" + b"x" * 100_000)
    assert system.read_text(str(path), 3) == "one"
    assert system.read_text(str(path)) == "one\ufffd\n" + "x" * 100_000
    assert system.read_text(str(path), 4, "surrogateescape") == "one\udcff"


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "nul"])
def test_what_is_no_text_is_empty_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "place")
    if kind == "directory":
        Path(path).mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "nul":
        path += "\0"
    assert system.read_text(path) == ""
    assert system.read_rows(path) == []


def test_a_machine_without_an_id_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "MACHINE_ID", str(tmp_path / "id"))
    assert system.machine_id() is None
    (tmp_path / "id").write_text("\n")
    assert system.machine_id() is None
    (tmp_path / "id").write_text("0123\n")
    assert system.machine_id() == "0123"


@pytest.mark.usefixtures("_mounts")
@pytest.mark.parametrize(
    ("path", "is_remote"),
    [
        ("/nowhere", False), ("/home", True), ("/home/ana/.cache", True), ("/home/ana/fast/x", False),
        ("/home/ana/faster", True), ("/homes", False), ("/mnt/my data\\x/y", True), ("/mnt/cloud", False),
    ],
)  # fmt: skip
def test_the_nearest_mount_says_whose_disk_it_is(path: str, is_remote: bool) -> None:
    assert system.is_remote(path) == is_remote


@pytest.mark.usefixtures("_mounts")
def test_a_mount_below_a_directory_is_found() -> None:
    assert system.find_mount("/home") == "ana/fast"
    assert system.find_mount("/home/ana") == "fast"
    assert system.find_mount("/mnt/my data\\x") is None
    assert system.find_mount("/home/an") is None
    assert system.find_mount("/mnt") == "my data\\x"


def test_without_the_list_nothing_is_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "MOUNTS", "/nowhere")
    assert (system.is_remote("/home"), system.find_mount("/")) == (False, None)
