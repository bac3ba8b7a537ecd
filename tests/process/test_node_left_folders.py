"""Directories of runs that nobody was left to remove: found, told from those of runs that go on, and removed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines.lost_runs import lose_run
from machines.processes import is_alive, read_parent, send_signal
from node_process import WAITS, Node, Nodes, shell, wait_until

from launcher.node import messages
from launcher.node.processes import proc, run_folders, workers

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


def found_in(place: Path) -> list[str]:
    """Return the runs whose directories are found there."""
    return sorted(
        folder["run"] for folder in run_folders.find_folders([]) if Path(folder["path"]).parent == place.resolve()
    )


def find_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("at", ["TMPDIR", "HOME"])
def test_which_directories_are_of_runs_that_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: str, at: str
) -> None:
    lost = lose_run(tmp_path, "20261120-091233")
    name, token = lost.name, lost.name.rpartition("-")[2]
    alive = os.open(lose_run(tmp_path, "alive"), os.O_RDONLY)
    fcntl.flock(alive, fcntl.LOCK_EX)
    (tmp_path / "machine-id").write_text("another")
    others = [
        lose_run(tmp_path, "elsewhere", str(tmp_path / "machine-id")),  # on a disk that both have
        lose_run(tmp_path, marked),
        tmp_path / "launch-results-20241224",  # a date has eight hexadecimal digits as well
        tmp_path / f"{name}.old",
        tmp_path / "backup" / name,  # `cp -r` made it
        tmp_path / f"launch-open-{token}",
        tmp_path / f"launch-of-nobody-{token}",
    ]
    for path in others:
        (path / "files").mkdir(parents=True, exist_ok=True)
        path.chmod(0o777 if "open" in path.name else 0o700)
        (path / "files" / "photo.jpg").touch()
    (tmp_path / f"launch-new-{token}").mkdir(0o700)  # it is not locked yet
    (tmp_path / f"launch-link-{token}").symlink_to(lost)
    if os.geteuid() == 0:
        os.chown(others[-1], NOBODY, -1)
    else:
        others[-1].chmod(0o777)
    monkeypatch.setenv(at, str(tmp_path))
    monkeypatch.setenv("TMPDIR" if at == "HOME" else "HOME", str(tmp_path / "backup"))
    assert (found_in(tmp_path), found_in(tmp_path / "backup")) == (["20261120-091233"], [])
    # What is told to be removed is looked at again.
    gone = tmp_path / f"launch-gone-{token}"
    paths = [str(path) for path in (*tmp_path.iterdir(), gone, *others)]
    kept = run_folders.remove_folders(paths)
    assert {path for path in paths if not os.path.lexists(path)} == {str(lost), str(gone)}
    assert {reason for path, reason in kept if "/launch-alive-" in path} == {"its run is still active"}
    assert [path for path in others if not (path / "files" / "photo.jpg").exists()] == []
    os.close(alive)
    assert found_in(tmp_path) == ["alive"], "its supervisor has died meanwhile"


def test_where_there_are_no_locks_no_directory_is_known_to_be_over(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_run(place, "20261120-091233")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    run_folders.make_folder("20261120-101233")  # which is no error
    assert found_in(place) == []


@pytest.mark.parametrize("open_level", ["", "a", "a/b"])
def test_no_run_has_its_directory_where_others_could_replace_it(
    tmp_path: Path, open_level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a/b")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "link"))
    own = Path(run_folders.make_folder("20261120-091233"))
    assert own.parent == tmp_path / "link"
    (tmp_path / open_level).chmod(0o777)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", lambda path, mode: tried.append(path))
        tried: list[str] = []
        run_folders.make_folder("20261120-091233")
    assert [Path(path).parent for path in tried] == [Path("/tmp")]
    (tmp_path / open_level).chmod(0o1777)
    assert Path(run_folders.make_folder("20261120-091233")).parent == tmp_path / "link"


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
    path = str(lose_run(place, marked))
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
