"""The logs of a run: what becomes of what their disk doesn't take, and launch.log.

`launch attach` finds in memory what the disk of the logs doesn't take.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.hosts.host import Host
from launcher.output import log_writer, write_queue
from launcher.output.console import Console
from launcher.output.log_reader import Choice, RunLogs
from launcher.output.log_writer import LiveOutput, find_live_output, warn_of_little
from launcher.output.output_streams import find_streams
from launcher.output.run_folder import RunRecord, create_record

needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the controller of a run needs Linux")


def test_a_disk_that_may_soon_be_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert warn_of_little(tmp_path / "none", "n1") == []
    full = os.statvfs_result((4096, 4096, 1000, 500, 366_000, 0, 0, 0, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda path: full)
    assert warn_of_little(tmp_path, "n1") == [
        f"launch: n1, which controls the run, has 1.5 GB free in {tmp_path}; on a full disk the logs have gaps; "
        "fix: free space there"
    ]
    monkeypatch.setattr(log_writer, "FEW_BYTES", 700_000_000)
    assert warn_of_little(tmp_path, "n1") == []


# live output, in memory


def open_logs(folder: Path) -> RunLogs:
    """Return the logs of a run as another process reads them, each time what has come since."""
    return RunLogs(folder, ["n1"], Choice(), live=find_live_output(os.getpid(), folder.parent.name))


def make_full_record(folder: Path) -> RunRecord:
    return RunRecord(folder, folder.parent.name, lambda path, error: None, has_live=True)


def read(logs: RunLogs) -> list[bytes]:
    return [line.text for line in logs.read()]


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
