"""The logs of a run: what they leave free on a disk, what becomes of the rest, and launch.log.

`launch attach` finds in memory what the disk of the logs doesn't take.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from machines.logs import without_stamps
from machines.patience import DEADLINE_S

from launcher.hosts.host import Host
from launcher.output import log_writer, write_queue
from launcher.output.console import Console
from launcher.output.lines import STDOUT
from launcher.output.log_reader import Choice, RunLogs
from launcher.output.log_writer import DiskSpace, LiveOutput, find_live_output, warn_of_little
from launcher.output.node_output import NodeOutput
from launcher.output.output_streams import find_streams
from launcher.output.run_folder import RunRecord, create_record
from launcher.output.write_queue import WriteQueue

needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the controller of a run needs Linux")

# the free space of the disk


def fail(*_: object) -> None:
    raise AssertionError


def test_a_disk_is_looked_at_in_its_own_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LOOK_S", 0.0)
    disk = WriteQueue("disk", fail, fail)
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
    monkeypatch.setattr(log_writer, "LOOK_S", 0.0)
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


# live output, in memory


def open_logs(folder: Path) -> RunLogs:
    """Return the logs of a run as another process reads them, each time what has come since."""
    return RunLogs(folder, ["n1"], Choice(), live=find_live_output(os.getpid(), folder.parent.name))


def make_full_record(folder: Path) -> RunRecord:
    return RunRecord(folder, folder.parent.name, lambda path, error: None, least_free_bytes=2_000_000_000_000_000)


def read(logs: RunLogs) -> list[bytes]:
    return [line.text for line in logs.read()]


@needs_memfd
def test_a_disk_that_is_almost_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log counts what is missing in it; who watches misses nothing. The first line comes before a look at it."""
    monkeypatch.setattr(log_writer, "LOOK_S", 0.0)
    folder = tmp_path / "logs"
    folder.mkdir()
    record = make_full_record(folder)
    output, logs = NodeOutput("n1", record.open_log(0), None), open_logs(folder)
    seen = []
    for number in range(3):
        output.feed(0, STDOUT, b"line %d\n" % number)
        assert record.disk.wait()
        seen += read(logs)
    assert seen == [b"line 0", b"line 1", b"line 2"]


@needs_memfd
def test_a_disk_that_can_t_be_written(tmp_path: Path) -> None:
    """Also what `launch` itself says."""
    record = make_full_record(tmp_path / "gone")
    record.transcript.begin()
    record.transcript.add("launch: stopped by you")
    assert record.disk.wait()
    assert read(open_logs(tmp_path / "gone")) == [b"launch: stopped by you"]


@needs_memfd
def test_what_is_too_much_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "MOST_LIVE_BYTES", 20)
    live, logs = LiveOutput(tmp_path.name), open_logs(tmp_path / "logs")
    live.write(b"[n1] one two\n")
    assert read(logs) == [b"one two"]
    live.write(b"[n1] three\n")
    assert read(logs) == [b"three"]


@needs_memfd
def test_a_process_without_live_output() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert find_live_output(process.pid, "r") is None
        process.communicate(b"\n")
    assert find_live_output(process.pid, "r") is None


# launch.log: from the start of the run, also while its disk hangs


@pytest.fixture
def console() -> Console:
    return Console([Host("n1")], find_streams(os.environ), is_quiet=True)


def make_record(folder: Path, console: Console) -> RunRecord:
    record = create_record(folder, datetime(2026, 11, 20, 9, 12, 33), console.complain)
    console.transcribe(record.transcript)
    return record


def test_messages_wait_for_the_start(tmp_path: Path, console: Console) -> None:
    record = make_record(tmp_path, console)
    console.say("launch: first\n  its second line")
    assert (record.has_begun, [*record.folder.iterdir()]) == (False, [])
    record.transcript.begin()
    console.say("launch: \x1b[2Jthird")
    assert (record.has_begun, record.disk.close()) == (True, True)
    text = (record.folder / "launch.log").read_text()
    assert re.sub(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ", "", text) == (
        "launch: first\n  its second line\nlaunch: third\n"
    )
    console.close()


def test_a_disk_that_hangs_is_told_and_stops_nobody(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said of the disk belongs into launch.log itself, which waits for that disk."""
    monkeypatch.setattr(write_queue, "STALLED_S", 0.05)
    monkeypatch.setattr(write_queue, "QUEUE_BYTES", 1)
    record, healed = make_record(tmp_path, console), threading.Event()
    record.transcript.begin()
    record.disk.put(healed.wait, size=10)
    speaking = threading.Thread(target=lambda: [console.say(f"launch: {number}") for number in range(20)])
    time.sleep(0.1)
    speaking.start()
    speaking.join(DEADLINE_S)
    assert not speaking.is_alive()
    healed.set()
    while not record.disk.close():
        time.sleep(0.01)
    text = (record.folder / "launch.log").read_text()
    assert text.count(f"launch: the disk of {record.folder} does not respond") == 1
    assert "launch: 19\n" in text
    console.close()
