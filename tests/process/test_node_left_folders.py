"""Directories of runs that nobody was left to remove: found, told from those of runs that go on, and removed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from node_process import WAITS, Node, Nodes, is_alive, parent_of, shell, wait_until

from launcher.node import clock, messages
from launcher.node.facts import leftovers
from launcher.node.processes import proc

TOKEN = "ab12cd34"
NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory in which runs may have made theirs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def marked() -> Iterator[str]:
    """Return the id of a run of which one process lives."""
    env = {"PATH": os.defpath, "LAUNCH_MARK": "marked.ab12.0"}
    with subprocess.Popen(["sleep", "300"], env=env) as process:
        wait_until(lambda: proc.read_mark(process.pid) is not None)
        yield "marked"
        process.kill()


def note_of(*keepers: tuple[int, int], **other: Any) -> str:
    """Return the note of a run of this machine and boot, but for what is in `other`."""
    here = {
        "host": os.uname().nodename,
        "boot_id": clock.boot_id(),
        "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
        "keepers": keepers,
    }
    return json.dumps({**here, **other})


def make(
    place: Path, run: str, note: str | None = None, *, age_s: float = 0, token: str = TOKEN, order: str = ""
) -> Path:
    """Make a run's directory, as a supervisor does; order: what older ones wrote there."""
    path = place / f"launch-{run}-{token}"
    (path / "files").mkdir(parents=True)
    if note is not None:
        (path / "owner").write_text(note)
    if order:
        (path / "order").write_text(order)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def lock(path: Path) -> None:
    """Lock a directory as its supervisor does, as long as this process lives."""
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH)


def found_in(place: Path) -> list[str]:
    """Return the runs whose directories are found there, and find again nothing else once these are removed."""
    paths = [folder["path"] for folder in leftovers.find_folders([]) if Path(folder["path"]).parent == place]
    return sorted(Path(path).name[len("launch-") : -len(TOKEN) - 1] for path in paths)


def find_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def me() -> tuple[int, int]:
    process = proc.read_process(os.getpid())
    assert process is not None
    return process.pid, process.started


def test_which_directories_are_of_runs_that_are_over(place: Path, marked: str) -> None:
    pid, started = me()
    lost_power = {"boot_id": "another"}
    make(place, "lost-power", note_of(me(), **lost_power))
    make(place, "killed", note_of((pid, started - 1)))  # another process has its number now
    make(place, "restarted-container", note_of(me(), pid_namespace="pid:[1]"))
    make(place, "older-launcher", age_s=100, order='{"env": {"API_KEY": "hush"}}')
    make(place, "torn", '{"host": "he', age_s=100)  # the note was not on the disk yet
    over = ["killed", "lost-power", "older-launcher", "restarted-container", "torn"]
    # None of these.
    make(place, "alive", note_of((1, 0), me()))
    make(place, "elsewhere", note_of(host="another", **lost_power))  # in a home that both have
    lock(make(place, "other-container", note_of(pid_namespace="pid:[1]")))
    lock(make(place, "older-alive", age_s=100))
    make(place, "being-made")
    make(place, marked, note_of(**lost_power))
    make(place, "short", note_of(**lost_power), token="ab12cd3")
    make(place, "notes", note_of(**lost_power), token="notation")
    (place / f"launch-bare-{TOKEN}").mkdir()  # not made by us: each of ours has more in it
    (place / f"launch-link-{TOKEN}").symlink_to(place / f"launch-killed-{TOKEN}")
    if os.geteuid() == 0:
        os.chown(make(place, "of-nobody", note_of(**lost_power)), NOBODY, -1)
    assert found_in(place) == over
    # What is told to be removed is looked at again.
    paths = sorted(str(path) for path in place.iterdir())
    kept = leftovers.remove_folders([*paths, f"{place}/launch-gone-{TOKEN}", str(place)])
    assert found_in(place) == []
    assert sorted(set(paths) - {str(path) for path in place.iterdir()}) == [
        f"{place}/launch-{run}-{TOKEN}" for run in over
    ]
    assert (f"{place}/launch-alive-{TOKEN}", "its run goes on") in [tuple(entry) for entry in kept]


def test_a_run_of_which_only_leftover_processes_live_is_over_with_them(place: Path, marked: str) -> None:
    path = str(make(place, marked, note_of(boot_id="another")))
    left = {"pid": 7, "name": "sleep", "mark": "marked.ab12.0", "is_owned": False}
    assert [folder for folder in leftovers.find_folders([left]) if folder["run"] == marked] == [
        {"path": path, "run": marked, "files": 0}
    ]
    # Two hosts of a run may be one machine.
    other = {**left, "mark": "marked.ab12.1", "is_owned": True}
    assert [folder for folder in leftovers.find_folders([left, other]) if folder["run"] == marked] == []


def test_what_can_t_be_removed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user who is not root, whom no mode stops."""
    with TemporaryDirectory() as base:
        monkeypatch.setenv("TMPDIR", base)
        path = make(Path(base), "killed", note_of())
        (path / "files" / "dump").touch()
        (path / "files").chmod(0o500)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if os.geteuid() == 0:
                    for each in (Path(base), path, path / "files"):
                        os.chown(each, NOBODY, -1)
                    os.setuid(NOBODY)
                os.write(write_end, repr(leftovers.remove_folders([str(path)])).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as answer:
            assert answer.read() == repr([[str(path), "files/dump: Permission denied"]])
        os.waitpid(child, 0)
        (path / "files").chmod(0o700)


def find_over(nodes: Nodes, node: Node) -> tuple[Node, list[str]]:
    """Ask a new node that makes its directory beside another's; return it, and what it finds there."""
    cleaner = nodes.start(env={"TMPDIR": str(node.tmpdir)})
    cleaner.prepare(facts=True, checks=True, pythons=[], gpus=False)
    folders = cleaner.wait_for(messages.FACTS)["checks"]["folders"]
    return cleaner, [folder["path"] for folder in folders if folder["path"].startswith(str(node.tmpdir))]


def test_a_run_whose_keepers_were_killed(nodes: Nodes) -> None:
    lost = nodes.start()
    lost.prepare(env={"API_KEY": "hush"})
    assert find_over(nodes, lost)[1] == []  # it has no process with its mark yet
    lost.start_ready(shell(WAITS))
    assert find_over(nodes, lost)[1] == []
    pids = (lost.guardian.pid, lost.supervisor, parent_of(lost.pid_of(0)), lost.pid_of(0))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    lost.guardian.wait()
    wait_until(lambda: not any(map(is_alive, pids)))
    # What the disk of a host that loses power keeps.
    assert [path for path in find_files(lost.folder) if b"hush" in path.read_bytes()] == []
    cleaner, paths = find_over(nodes, lost)
    assert paths == [str(lost.folder)]
    cleaner.send(messages.ADOPT, marks=[], folders=paths)
    assert cleaner.stop() == []
    assert cleaner.find(messages.CENSUS)[0]["folders"] == []
    assert not lost.folder.exists()
