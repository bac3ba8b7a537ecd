"""How an attempt ends on a host: once, whatever gives the reason."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.node.ending import Ending
from launcher.node.loop import Loop
from launcher.node.processes import proc, stop_steps
from launcher.node.processes.run_processes import RunProcesses, read_children

MARK = f"test.{os.urandom(4).hex()}.0"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"


class Ranks:
    """Stands for those of the run."""

    ending_since: float | None = None
    settled = 0

    def settle(self) -> None:
        self.settled += 1


class SendQueue(list[dict[str, Any]]):
    """Stands for what is sent; `drained` counts how often the ranks' pipes were read."""

    drained = 0

    def send(self, kind: str, **fields: Any) -> None:
        self.append({"type": kind, **fields})

    def drain(self) -> None:
        self.drained += 1


class Scene:
    """An ending, and what becomes of it."""

    def __init__(self, folder: Path, guardian: int = 1) -> None:
        self.loop = Loop()
        self.sent = SendQueue()
        self.ranks = Ranks()
        self.owned = RunProcesses(MARK)
        self.owned.strangers = {0: 0, **_list_children()}  # which a session's fixture may have started
        self.ends = 0
        self.counts: list[tuple[list[str], dict[str, Any]]] = []
        self.ending = Ending(
            self.loop, self.sent, self.ranks, self.owned, guardian,  # type: ignore[arg-type]
            lambda: time.monotonic, self._note_end, self._note_count,
        )  # fmt: skip
        self.ending.folder = str(folder)
        (folder / "files").mkdir(parents=True)
        (folder / "files" / "loss.json").write_text("[1]")

    def _note_end(self) -> None:
        self.ends += 1

    def _note_count(self, left: list[proc.Process], fields: dict[str, Any]) -> None:
        self.counts.append(([process.name for process in left], fields))

    def run(self) -> dict[str, Any]:
        """Turn until it is counted; return what the census says besides."""
        while not self.counts:
            self.loop.run_once()
        ((left, fields),) = self.counts
        assert left == []
        return fields


def _list_children() -> dict[int, int]:
    found = (proc.read_process(pid) for pid in read_children())
    return {process.pid: process.started for process in found if process is not None}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "launch-test-12345678")


@pytest.fixture
def stubborn(scene: Scene) -> subprocess.Popen[bytes]:
    """A rank that doesn't end before it is killed."""
    process = subprocess.Popen([sys.executable, "-c", IGNORES], env={"LAUNCH_MARK": MARK}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    found = proc.read_process(process.pid)
    assert found is not None
    scene.owned.add_rank(0, found)
    return process


def test_a_requested_stop_has_no_reason(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    scene.ending.stop({"timeout_s": 5}, b"")
    assert scene.run() == {}
    assert (scene.ending.reason, scene.sent, scene.ends) == (None, [], 1)
    assert scene.ending.files == [("loss.json", b"[1]")]
    assert not Path(scene.ending.folder).exists()
    assert (scene.sent.drained, capfd.readouterr().err) == (1, "")


def test_another_reason_is_told_once(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    assert not scene.ending.has_begun
    scene.ending.begin("it got a signal")
    assert scene.ending.has_begun
    scene.ending.begin("it lost its parent")
    scene.ending.stop({"timeout_s": 5}, b"")
    scene.run()
    assert scene.ending.reason == "it got a signal"
    assert scene.sent == [{"type": "failed", "text": "it got a signal"}]
    assert capfd.readouterr().err.splitlines() == [
        "stopping the run: it got a signal", "stopping the run: it lost its parent",
    ]  # fmt: skip
    assert scene.ends == 3


def test_ranks_have_their_time_and_a_later_reason_takes_none_of_it(
    scene: Scene, stubborn: subprocess.Popen[bytes]
) -> None:
    began_at = time.monotonic()
    scene.ending.stop({"timeout_s": 0.5}, b"")
    since = scene.ranks.ending_since
    scene.ending.begin("it got a signal", 0.01)
    threading.Thread(target=stubborn.wait, daemon=True).start()  # as a supervisor reaps it; else a zombie is waited for
    scene.run()
    assert time.monotonic() - began_at >= 0.5
    assert scene.ranks.ending_since == since is not None
    assert stubborn.wait() == -signal.SIGKILL


def test_after_the_count_nothing_begins_again(scene: Scene) -> None:
    scene.ending.stop({"timeout_s": 0}, b"")
    scene.run()
    scene.ending.stop({"timeout_s": 0}, b"")
    assert len(scene.counts) == 1
    assert not scene.ending.is_over
    scene.ending.finish()
    scene.ending.begin("it got a signal")
    assert (scene.ending.is_over, len(scene.counts), scene.sent) == (True, 1, [])


NO_PROCESSES = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_callback_that_fails_ends_the_run(scene: Scene) -> None:
    scene.ending.fail(NO_PROCESSES)
    scene.run()
    text = f"its helper failed: {NO_PROCESSES}"
    assert scene.ending.reason == text
    assert scene.sent == [{"type": "failed", "text": text}]


def test_a_step_that_fails_leaves_the_run_to_the_guardian(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:  # a fake: the limit of descriptors
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(OSError, match="Too many open files") as raised:
        scene.ending.stop({"timeout_s": 0}, b"")
    with pytest.raises(OSError, match="Too many open files"):
        scene.ending.fail(raised.value)
    assert scene.counts == []


def test_the_directory_stays_while_something_is_left(
    scene: Scene, stubborn: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_steps, "CENSUS_S", 0)  # as what is in state D
    scene.ending.stop({"timeout_s": 0}, b"")
    assert scene.counts == [([stubborn.args[0].rpartition("/")[2][:15]], {})]  # type: ignore[index]
    assert sorted(path.name for path in Path(scene.ending.folder).iterdir()) == ["files"]
    stubborn.kill()
    stubborn.wait()


def test_what_earlier_runs_have_left_is_removed_and_what_stays_is_told(scene: Scene, tmp_path: Path) -> None:
    scene.owned.born = 5
    scene.ending.adopt({"marks": [f"{MARK}1"], "folders": [str(tmp_path / "gone")]}, b"")
    assert (scene.owned.marks, scene.owned.born) == ({MARK, f"{MARK}1"}, 0), "they were started before"
    scene.ending.stop({"timeout_s": 0}, b"")
    assert scene.run() == {"folders": []}
