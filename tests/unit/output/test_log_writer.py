"""launch.log: from the start of a run, also while its disk hangs."""

from __future__ import annotations

import os
import re
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.hosts.host import Host
from launcher.output import log_writer, write_queue
from launcher.output.console import Console
from launcher.output.log_writer import warn_of_little
from launcher.output.output_streams import find_streams
from launcher.output.run_folder import RunRecord, create_record


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
