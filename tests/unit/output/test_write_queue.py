"""The thread for a disk: order, a disk that hangs, and what is put after the end."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from machines.patience import DEADLINE_S

from launcher.output import write_queue
from launcher.output.lines import STDOUT
from launcher.output.log_writer import LogWriter
from launcher.output.node_output import NodeOutput
from launcher.output.write_queue import WriteQueue


def unexpected(*args):
    raise AssertionError(args)


def make_disk(*, on_failure=unexpected, on_stall=unexpected):
    return WriteQueue("disk", on_failure, on_stall)


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr(write_queue, "STALLED_S", 0.05)
    monkeypatch.setattr(write_queue, "FAREWELL_S", 0.2)
    monkeypatch.setattr(write_queue, "QUEUE_BYTES", 1000)
    monkeypatch.setattr(write_queue, "ENTRY_BYTES", 0)


def until_written(disk):
    """Wait for a disk that has just begun to respond again."""
    deadline = time.monotonic() + DEADLINE_S
    while not disk.close():
        assert time.monotonic() < deadline


def test_all_is_done_in_order_by_another_thread():
    disk, done = make_disk(), []
    for number in range(100):
        assert disk.put(lambda number=number: done.append((number, threading.current_thread())), size=1 << 20)
    assert disk.close()
    assert [number for number, _ in done] == list(range(100))
    (thread,) = {thread for _, thread in done}
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_what_is_put_after_the_end_is_done_too():
    disk, done = make_disk(), []
    assert disk.close()
    for number in (1, 2):
        disk.put(partial(done.append, number))
        assert disk.close()
    assert done == [1, 2]


def test_work_that_fails_is_told_and_the_next_is_done():
    heard, done = [], []
    disk = make_disk(on_failure=lambda error: heard.append(str(error)))
    disk.put(lambda: unexpected("broken"))
    disk.put(partial(done.append, 1))
    assert disk.close()
    assert (heard, done) == (["('broken',)"], [1])


@pytest.mark.usefixtures("_impatient")
def test_a_disk_that_hangs_holds_up_nobody():
    """The record of a run has no size, so it is never dropped; it is written once the disk responds again."""
    stalls, done, healed = [], [], threading.Event()
    disk = make_disk(on_stall=lambda: stalls.append(1))
    disk.put(healed.wait, size=600)
    assert disk.put(partial(done.append, "log"), size=600)
    assert not disk.put(partial(done.append, "lost"), size=600)
    assert disk.put(partial(done.append, "record"))
    assert (disk.wait(), disk.close()) == (False, False)
    assert (done, stalls) == ([], [1])
    healed.set()
    until_written(disk)
    assert (done, stalls) == (["log", "record"], [1])


@pytest.mark.usefixtures("_impatient")
def test_a_disk_that_fails_slowly_delays_the_end_once(monkeypatch):
    """Each work takes less than the limit, and all of them far more."""
    heard = []
    disk = make_disk(on_failure=heard.append, on_stall=lambda: None)
    waits = threading.Event()

    def fail():
        waits.wait(0.1)
        raise OSError("I/O error")

    for _ in range(100):
        disk.put(fail)
    began_at = time.monotonic()
    assert not disk.close()
    assert not disk.close(is_hurried=lambda: True)
    assert time.monotonic() - began_at < 5
    waits.set()
    until_written(disk)
    assert len(heard) == 100


def test_a_user_in_a_hurry_waits_for_a_disk_that_is_well(monkeypatch):
    """Otherwise the second Ctrl-C would make the logs incomplete."""
    monkeypatch.setattr(write_queue, "HURRIED_S", DEADLINE_S)  # a busy machine is no disk that hangs
    done = []
    disk = make_disk(on_stall=lambda: None)
    disk.put(lambda: done.append(time.sleep(0.05)))
    assert (disk.close(is_hurried=lambda: True), done) == (True, [None])


@pytest.mark.usefixtures("_impatient")
def test_a_log_says_how_many_lines_are_missing(tmp_path):
    heard, healed = [], threading.Event()
    disk = make_disk(on_stall=lambda: None)
    log = LogWriter(tmp_path / "node_0.log", lambda path, error: heard.append(error.strerror), tmp_path, disk)
    output = NodeOutput("gpu1", log, None)
    output.feed(0, STDOUT, b"kept\n")
    assert disk.wait(DEADLINE_S)  # a busy disk may take longer than the farewell of this test
    disk.put(healed.wait, size=2000)
    output.feed(0, STDOUT, b"lost\nlost\n")
    output.feed(0, STDOUT, b"lost\r\n")
    healed.set()
    until_written(disk)
    output.feed(0, STDOUT, b"back\n")
    output.finish()
    until_written(disk)
    lines = [line[line.index("[") :] for line in (tmp_path / "node_0.log").read_text().splitlines()]
    missing = "[gpu1] ---- 3 lines missing here: the disk did not take them ----"
    assert lines == ["[gpu1:0] kept", missing, "[gpu1:0] back"]
    assert set(heard) == {"the disk does not respond"}
