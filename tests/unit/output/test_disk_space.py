"""What the logs leave free on a disk that others need as well."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from machines.logs import without_stamps

from launcher.output import disk_space
from launcher.output.disk_space import DiskSpace, warn_of_little
from launcher.output.disk_writer import DiskWriter
from launcher.output.lines import STDOUT
from launcher.output.node_log import NodeOutput
from launcher.output.run_folder import RunRecord


def fail(*_: object) -> None:
    raise AssertionError


def test_a_disk_is_looked_at_in_its_own_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "LOOK_S", 0.0)
    disk = DiskWriter(fail, fail)
    found = os.statvfs(tmp_path)
    much, little = (DiskSpace(tmp_path, size, disk) for size in (1, found.f_blocks * found.f_frsize))
    assert (much.has_room(), little.has_room()) == (True, True), "nobody has looked yet"
    assert disk.wait()
    assert (much.has_room(), little.has_room()) == (True, False)
    assert DiskSpace(tmp_path, 0, disk).has_room()
    error = DiskSpace(tmp_path, 1_000_000_000, disk).describe()
    assert (error.errno, error.strerror) == (errno.ENOSPC, "less than 1 GB is free")


def test_little_space_is_said_before_output_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert warn_of_little(tmp_path, 0, "n1") == warn_of_little(tmp_path / "none", 1 << 60, "n1") == []
    full = os.statvfs_result((4096, 4096, 1000, 500, 366_000, 0, 0, 0, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda path: full)
    assert warn_of_little(tmp_path, 1_000_000_000, "n1") == [
        f"launch: n1, which controls the run, has 1.5 GB free in {tmp_path}; below 1.0 GB the logs leave the output "
        "out; fix: free space there"
    ]
    assert warn_of_little(tmp_path, 700_000_000, "n1") == []


def test_output_is_left_out_and_counted_while_too_little_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line comes before the disk was looked at."""
    monkeypatch.setattr(disk_space, "LOOK_S", 0.0)
    heard: list[str | None] = []
    record = RunRecord(
        tmp_path, "r", lambda path, error: heard.append(error.strerror), least_free_bytes=2_000_000_000_000_000
    )
    output = NodeOutput("n1", record.open_log(0), None)
    for number in range(3):
        output.feed(0, STDOUT, b"line %d\n" % number)
        assert record.disk.wait()
    output.finish()
    assert record.disk.wait()
    assert heard == ["less than 2e+06 GB is free"] * 2
    lines = without_stamps((tmp_path / "node_0.log").read_bytes()).decode().splitlines()
    assert lines == ["[n1:0] line 0", "[n1] ---- 2 lines missing here: the disk did not take them ----"]
