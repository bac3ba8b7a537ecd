"""What the disk of the logs doesn't take is there for `launch attach`, from memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.output import disk_space, live_output
from launcher.output.lines import STDOUT
from launcher.output.live_output import LiveOutput, find_live_output
from launcher.output.log_reader import Choice, RunLogs
from launcher.output.node_log import NodeOutput
from launcher.output.run_folder import RunRecord

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the controller of a run needs Linux")


def open_logs(folder: Path) -> RunLogs:
    """Return the logs of a run as another process reads them, each time what has come since."""
    return RunLogs(folder, ["n1"], Choice(), live=find_live_output(os.getpid(), folder.parent.name))


def make_record(folder: Path) -> RunRecord:
    return RunRecord(folder, folder.parent.name, lambda path, error: None, least_free_bytes=2_000_000_000_000_000)


def read(logs: RunLogs) -> list[bytes]:
    return [line.text for line in logs.read()]


def test_a_disk_that_is_almost_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log counts what is missing in it; who watches misses nothing. The first line comes before a look at it."""
    monkeypatch.setattr(disk_space, "LOOK_S", 0.0)
    folder = tmp_path / "logs"
    folder.mkdir()
    record = make_record(folder)
    output, logs = NodeOutput("n1", record.open_log(0), None), open_logs(folder)
    seen = []
    for number in range(3):
        output.feed(0, STDOUT, b"line %d\n" % number)
        assert record.disk.wait()
        seen += read(logs)
    assert seen == [b"line 0", b"line 1", b"line 2"]


def test_a_disk_that_can_t_be_written(tmp_path: Path) -> None:
    """Also what `launch` itself says."""
    record = make_record(tmp_path / "gone")
    record.transcript.begin()
    record.transcript.add("launch: stopped by you")
    assert record.disk.wait()
    assert read(open_logs(tmp_path / "gone")) == [b"launch: stopped by you"]


def test_what_is_too_much_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_output, "MOST_BYTES", 20)
    live, logs = LiveOutput(tmp_path.name), open_logs(tmp_path / "logs")
    live.write(b"[n1] one two\n")
    assert read(logs) == [b"one two"]
    live.write(b"[n1] three\n")
    assert read(logs) == [b"three"]


def test_a_process_without_live_output() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert find_live_output(process.pid, "r") is None
        process.communicate(b"\n")
    assert find_live_output(process.pid, "r") is None
