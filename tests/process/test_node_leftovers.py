"""Processes that earlier runs left: found, told from those of runs that go on and of other users, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from machines.patience import DEADLINE_S
from machines.processes import is_alive, read_parent
from node_process import IGNORES, WAITS, Message, Node, Nodes, find_marked, shell, wait_until

from launcher.node import messages
from launcher.node.facts import leftovers

NOBODY = 65534
# Its child has no environment.
HARDY = "trap '' TERM; env -i sh -c 'echo ready pids $0 $$; exec sleep 300' $$ & wait"


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process that waits, with what a run sets in its environment; all end with the test."""
    with TemporaryDirectory() as path, ExitStack() as ends:
        base = Path(path)
        base.chmod(0o755)  # for other users

        def start(
            mark: str, argv: tuple[str, ...] = ("sleep", "300"), env: Mapping[str, str] | None = None, **how: Any
        ) -> subprocess.Popen[bytes]:
            folder = base / f"launch-{mark.partition('.')[0]}-ab12cd34"
            (folder / "files").mkdir(parents=True, exist_ok=True)
            os.chown(folder, how.get("user", os.geteuid()), -1)
            marks = {"LAUNCH_MARK": mark, "LAUNCH_SLURM_JOB": "", "LAUNCH_FILES": str(folder / "files")}
            process = subprocess.Popen(argv, env={"PATH": os.defpath, **marks, **(env or {})}, **how)
            ends.callback(process.wait)
            ends.callback(process.kill)
            environment = Path(f"/proc/{process.pid}/environ")  # it is empty during an exec, which Popen doesn't await
            wait_until(lambda: b"LAUNCH_MARK=" in environment.read_bytes())
            return process

        yield start


def found_by(nodes: Nodes, mark: str | None = None, of: str = "", **how: Any) -> tuple[Node, list[Message]]:
    """Ask a new node for left-overs; return it, and what it says of the run with this mark."""
    node = nodes.start(mark=mark, **how)
    node.prepare(facts=True, checks=True, pythons=[], gpus=False)
    runs = node.wait_for(messages.FACTS)["checks"]["runs"]
    return node, [run for run in runs if run["mark"] == of]


def in_background(argv: list[str]) -> list[str]:
    """Return a rank of which the kernel kills only the outermost process when its keepers die."""
    return shell('setsid "$@" & wait', *argv)


def kill_keepers(node: Node) -> None:
    """Kill guardian, supervisor and shim at once, so that none of them cleans up; their ranks die with them."""
    ranks = [node.pid_of(rank) for rank in range(2)]
    keepers = (node.guardian.pid, node.supervisor, read_parent(ranks[0]))
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them notices another one's death
        for pid in keepers:
            os.kill(pid, number)
    wait_until(lambda: not any(map(is_alive, [*keepers, *ranks])))


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""


def end_of(node: Node) -> None:
    """Remove what nobody is left to remove."""
    for path in [*node.folder.glob("*/*"), *node.folder.glob("*")]:
        path.rmdir() if path.is_dir() else path.unlink()
    node.folder.rmdir()


def test_what_dead_keepers_left_is_found_and_ended(nodes: Nodes, any_python: str) -> None:
    lost = nodes.start(python=any_python, mark="20261120-091233.ab12.0")
    lost.prepare()
    lost.start_ready(in_background(shell(IGNORES)), in_background(shell(HARDY)))
    rank, hardy, bare = lost.told_pids
    wait_until(lambda: any(name_of(pid) == "sleep" for pid in find_marked(lost.mark)))  # of the one that is ready
    kill_keepers(lost)
    try:
        cleaner, runs = found_by(nodes, of=lost.mark)
        (sleep,) = find_marked(lost.mark) - {rank, hardy}
        assert sorted((run["pid"], run["name"], run["is_owned"]) for run in runs) == sorted(
            [(rank, "sh", False), (hardy, "sh", False), (sleep, "sleep", False)]
        )
        cleaner.send(messages.ADOPT, marks=[lost.mark])
        assert cleaner.stop() == []
        wait_until(lambda: not any(map(is_alive, (rank, hardy, sleep, bare))))
    finally:
        for pid in {bare, *find_marked(lost.mark)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_of(lost)


def test_only_what_was_adopted_is_ended(nodes: Nodes, spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    live = nodes.start()
    live.prepare()
    live.start_ready(shell(WAITS))
    adopted, other, bare = spawn("old.1.0"), spawn("old.2.0"), spawn("")
    cleaner, _ = found_by(nodes)
    cleaner.send(messages.ADOPT, marks=["old.1.0"])
    assert cleaner.stop() == []
    assert adopted.wait(DEADLINE_S) == -signal.SIGKILL
    assert [is_alive(pid) for pid in (other.pid, bare.pid, *live.told_pids)] == [True, True, True]


@pytest.mark.parametrize(
    ("job", "env", "is_left"),
    [
        ("", {"SLURM_JOB_ID": "78"}, False),  # submitted from a host that is in no job
        ("77", {"SLURM_JOB_ID": "78"}, False),  # a job that submitted itself again
        ("77", {"SLURM_JOB_ID": "77"}, True),
    ],
)
def test_what_is_in_another_slurm_job_has_only_inherited_the_mark(
    nodes: Nodes, spawn: Callable[..., subprocess.Popen[bytes]], job: str, env: Mapping[str, str], is_left: bool
) -> None:
    """Though a left-over of that very run, with the same mark, is ended."""
    left = spawn("old.1.0", env={"LAUNCH_SLURM_JOB": job, "SLURM_JOB_ID": job} if job else {})
    other = spawn("old.1.0", env={"LAUNCH_SLURM_JOB": job, **env})
    cleaner, runs = found_by(nodes, of="old.1.0")
    assert {run["pid"] for run in runs} == {left.pid, other.pid} if is_left else {left.pid}
    cleaner.send(messages.ADOPT, marks=["old.1.0"])
    assert cleaner.stop() == []
    left.wait(DEADLINE_S)
    assert is_alive(other.pid) != is_left


@pytest.mark.parametrize("files", ["", "/nowhere/launch-old-ab12cd34/files", "{tmp}/files"])
def test_what_has_no_folder_of_its_run_here_has_only_inherited_the_mark(
    nodes: Nodes, spawn: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, files: str
) -> None:
    """As a job that at(1) starts when the run is over, or qsub on another machine."""
    other = spawn("old.1.0", env={"LAUNCH_FILES": files.format(tmp=tmp_path)})
    cleaner, runs = found_by(nodes, of="old.1.0")
    assert runs == []
    assert cleaner.stop() == []
    assert is_alive(other.pid)


def test_a_run_of_another_user_is_none_of_ours(nodes: Nodes, spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    if os.geteuid() != 0:
        pytest.skip("a process of another user takes root: run these tests as root")
    other = spawn("old.1.0", user=NOBODY)
    cleaner, runs = found_by(nodes, of="old.1.0")
    assert runs == []
    assert cleaner.stop() == []
    assert is_alive(other.pid)


@pytest.mark.parametrize(
    ("own", "mark", "is_other"),
    [
        ("20261120-091233.ab12.0", "20261120-091233.ab12.1", False),  # two hosts of the run that are one machine
        ("20261120-091233.ab12.0", "20261120-091233.cd34.0", True),
        ("20261120-091233.ab12.0", "", False),  # no mark of ours
        ("20261120-091233.ab12.0", ".ab12.0", False),
    ],
)
def test_another_node_of_the_same_run_is_no_other_run(
    spawn: Callable[..., subprocess.Popen[bytes]], own: str, mark: str, is_other: bool
) -> None:
    process = spawn(mark)
    wait_until(lambda: b"sleep" in leftovers.proc.read_command_line(process.pid))
    assert (process.pid in [run["pid"] for run in leftovers.find_runs(own)]) == is_other


def test_a_zombie_is_not_left_behind(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = spawn("old.1.0")
    process.kill()
    wait_until(lambda: not is_alive(process.pid))
    assert process.pid not in [run["pid"] for run in leftovers.find_runs("own.1.0")]


@pytest.mark.skipif(os.getuid() != 0, reason="a PID namespace needs root: run these tests as root")
def test_what_runs_in_a_container_is_not_of_this_machine(
    nodes: Nodes, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    mark = "20261120-091233.c0ffee.0"
    container = spawn(mark, ("unshare", "--pid", "--fork", "--kill-child", "sleep", "300"))
    inside = Path(f"/proc/{container.pid}/task/{container.pid}/children")
    wait_until(lambda: inside.read_text())
    _, runs = found_by(nodes, of=mark)
    assert [run["pid"] for run in runs] == [container.pid]  # unshare itself stays outside
