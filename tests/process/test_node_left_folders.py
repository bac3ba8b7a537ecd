"""Directories of runs that nobody was left to remove: found, told from those of runs that go on, and removed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from machines.processes import is_alive, read_parent, send_signal
from node_process import WAITS, Node, Nodes, shell, wait_until

from launcher.node import clock, messages
from launcher.node.processes import proc, run_folders, run_owner, workers

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


def note_of(*keepers: tuple[int, int], **other: Any) -> dict[str, Any]:
    """Return the note of a run of this machine and boot, but for what is in `other`."""
    here = {
        "host": os.uname().nodename,
        "machine_id": Path("/etc/machine-id").read_text().strip() if Path("/etc/machine-id").exists() else None,
        "boot_id": clock.boot_id(),
        "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
        "keepers": keepers,
    }
    return {**here, **other}


def make(place: Path, run: str, note: Mapping[str, Any] | str | None, *, token: str = TOKEN) -> Path:
    """Make a run's directory of ten minutes ago, as a supervisor does; a note has its path if it has no other."""
    path = place / f"launch-{run}-{token}"
    (path / "files").mkdir(parents=True)
    path.chmod(0o700)
    if note is not None:
        text = note if isinstance(note, str) else json.dumps({"folder": str(path.resolve()), **note})
        (path / "owner").write_text(text)
    os.utime(path, (time.time() - 600,) * 2)
    return path


def lock(path: Path) -> None:
    """Lock a directory as its supervisor does, as long as this process lives."""
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH)


def found_in(place: Path) -> list[str]:
    """Return the runs whose directories are found there, and find again nothing else once these are removed."""
    paths = [folder["path"] for folder in run_folders.find_folders([]) if Path(folder["path"]).parent == place]
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
    lost = make(place, "lost-power", note_of(me(), **lost_power))
    make(place, "killed", note_of((pid, started - 1)))  # another process has its number now
    make(place, "restarted-container", note_of(me(), pid_namespace="pid:[1]"))
    over = ["killed", "lost-power", "restarted-container"]
    # None of these.
    make(place, "alive", note_of((1, 0), me()))
    make(place, "elsewhere", note_of(host="another", **lost_power))  # on a disk that both have
    make(place, "clone", note_of(machine_id="another", **lost_power))
    lock(make(place, "namesake", note_of(**lost_power)))  # its host has our name, and booted at another time
    lock(make(place, "other-container", note_of(pid_namespace="pid:[1]")))
    lock(make(place, "bootless", note_of(boot_id=None)))
    make(place, marked, note_of(**lost_power))
    make(place, "short", note_of(**lost_power), token="ab12cd3")
    make(place, "notes", note_of(**lost_power), token="notation")
    (place / f"launch-link-{TOKEN}").symlink_to(lost)
    if os.geteuid() == 0:
        os.chown(make(place, "of-nobody", note_of(**lost_power)), NOBODY, -1)
    assert found_in(place) == over
    # What is told to be removed is looked at again.
    paths = sorted(str(path) for path in place.iterdir())
    kept = run_folders.remove_folders([*paths, f"{place}/launch-gone-{TOKEN}", str(place)])
    assert found_in(place) == []
    assert sorted(set(paths) - {str(path) for path in place.iterdir()}) == [
        f"{place}/launch-{run}-{TOKEN}" for run in over
    ]
    assert (f"{place}/launch-alive-{TOKEN}", "its run is still active") in [tuple(entry) for entry in kept]


@pytest.mark.parametrize("at", ["TMPDIR", "HOME"])
def test_a_directory_that_launch_did_not_make_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setenv(at, str(tmp_path))
    over = note_of(boot_id="another")
    made = make(tmp_path, "20261120-091233", over)
    own = [
        make(tmp_path, "results", None, token="20241224"),  # a date has eight hexadecimal digits as well
        make(tmp_path, "20261120-091233", None, token="00000001"),
        make(tmp_path, "20261120-091233", "", token="00000002"),  # the note was not on the disk yet
        make(tmp_path, "20261120-091233", '{"host": "he', token="00000003"),
        make(tmp_path, "20261120-091233", {**over, "folder": None}, token="00000004"),
        make(tmp_path, "20261120-091233", {**over, "folder": str(made)}, token="00000005"),  # `cp -r` made it
        make(tmp_path, "20261120-091233", over, token="00000006"),
    ]
    own[-1].chmod(0o777)  # anybody may have put the note there
    for path in own:
        (path / "files" / "photo.jpg").touch()
    assert found_in(tmp_path) == ["20261120-091233"]
    run_folders.remove_folders([str(path) for path in (made, *own)])
    assert not made.exists()
    assert [path for path in own if not (path / "files" / "photo.jpg").exists()] == []


def test_the_note_in_a_directory_that_was_just_made(place: Path) -> None:
    path = workers.make_folder("20261120-091233")
    run_owner.sign(path, [os.getpid()])
    assert json.loads(Path(path, "owner").read_text()) == {"folder": path, **note_of(), "keepers": [[*me()]]}
    assert not run_owner.has_ended(path)


@pytest.mark.parametrize("open_level", ["", "a", "a/b"])
def test_no_run_has_its_directory_where_others_could_replace_it(
    tmp_path: Path, open_level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a/b")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "link"))
    own = Path(workers.make_folder("20261120-091233"))
    assert own.parent == tmp_path / "link"
    (tmp_path / open_level).chmod(0o777)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", lambda path, mode: tried.append(path))
        tried: list[str] = []
        workers.make_folder("20261120-091233")
    assert [Path(path).parent for path in tried] == [Path("/tmp")]
    (tmp_path / open_level).chmod(0o1777)
    assert Path(workers.make_folder("20261120-091233")).parent == tmp_path / "link"


def test_what_is_mounted_there_stays(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("to mount takes root: run these tests as root")
    photos, folder = tmp_path / "photos", tmp_path / f"launch-a run-{TOKEN}"
    mounted = folder / "files" / "home"
    for path in (photos, mounted):
        path.mkdir(parents=True)
    (photos / "photo.jpg").touch()
    code = "import sys; from launcher.node.processes import workers; print(workers.remove_folder(sys.argv[1]))"
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$5"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", photos, mounted, sys.executable, code, folder]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (
        "files/home is mounted\n",
        f"can't remove {folder}: files/home is mounted\n",
    )
    assert (photos / "photo.jpg").exists()
    assert workers.remove_folder(str(folder)) is None
    assert not folder.exists()


def test_a_run_of_which_only_leftover_processes_live_is_over_with_them(place: Path, marked: str) -> None:
    path = str(make(place, marked, note_of(boot_id="another")))
    left = {"pid": 7, "name": "sleep", "mark": "marked.ab12.0", "is_owned": False}
    assert [folder for folder in run_folders.find_folders([left]) if folder["run"] == marked] == [
        {"path": path, "run": marked, "files": 0}
    ]
    # Two hosts of a run may be one machine.
    other = {**left, "mark": "marked.ab12.1", "is_owned": True}
    assert [folder for folder in run_folders.find_folders([left, other]) if folder["run"] == marked] == []


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
    pids = (lost.guardian.pid, lost.supervisor, read_parent(lost.pid_of(0)), lost.pid_of(0))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            send_signal(pid, number)  # one may have died with its parent
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
