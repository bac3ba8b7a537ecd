"""What `launch` lists of runs that hosts control, if these hosts know nothing of them or can't be reached."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest
from launching import Done, Launch

from launcher.runs.run_list import RemoteRun, RunList, Way

ROW = {
    "run": "20261120-091233", "name": "base", "state": "failed", "exit_code": 7, "attempts": 1, "restarts": None,
    "age_s": 1.0, "nodes": [1], "launch_host": "here", "controller": "node1", "pid": None, "logs": "/logs",
    "last_line": "node1 rank 0: no data",
}  # fmt: skip
FORGET = "remove it from the list with launch ps --forget 20261120-091233"
SAYS = (
    "launch: node1 knows nothing of run 20261120-091233, which was started 3 days ago: node1 was reinstalled, or its "
    "list of runs was removed"
)


@pytest.fixture
def runs(launch: Launch) -> RunList:
    """Return the list, with a run of which node1 knows nothing."""
    runs = RunList(Path(os.environ["XDG_STATE_HOME"]) / "launch" / "runs")
    add(runs, launch, 33, "base")
    return runs


def add(runs: RunList, launch: Launch, second: int, name: str | None) -> None:
    run_id = runs.take_id(datetime(2026, 11, 20, 9, 12, second), "token")
    began_at = datetime.now().timestamp() - 3 * 86400
    runs.add(RemoteRun(run_id, Way("node1", ssh_config=str(launch.ssh_config)), name, began_at))


def call(launch: Launch, *words: str, code: int) -> list[str]:
    done: Done = launch.run_command(*words)
    assert done.exit_code == code, str(done)
    return done.stderr.splitlines()


def test_the_host_of_a_controller_was_reinstalled(launch: Launch, runs: RunList) -> None:
    """Commands know the id that `launch ps` lists, and say what is known."""
    fix = f"  fix: stop what is left of it with launch clean --hosts LIST; {FORGET}"
    for command in ("stop", "attach", "fetch"):
        assert call(launch, command, "base", code=2) == [SAYS, fix]
    (launch.folder / "logs" / "20261120-091233").mkdir(parents=True)
    assert call(launch, "logs", code=2) == [f"{SAYS}; a copy of its logs is in logs/20261120-091233", fix]
    add(runs, launch, 34, None)
    assert call(launch, "stop", code=2)[0] == ("launch: 2 runs may be running: 20261120-091234, 20261120-091233 (base)")
    assert call(launch, "ps", "--forget", "20261120-091234", code=0) == [
        "launch: run 20261120-091234 is listed no more; its logs stay where they are"
    ]
    assert [run.id for run in runs.read_all()] == ["20261120-091233"]


def test_a_run_whose_end_was_seen_before_its_host_was_reinstalled(launch: Launch, runs: RunList) -> None:
    (run,) = runs.read_all()
    assert isinstance(run, RemoteRun)
    runs.note_end(run, ROW)
    says = f"{SAYS}; what launch ps saw last: failed, node1 rank 0: no data"
    assert call(launch, "wait", "base", code=7) == [says]
    assert call(launch, "logs", "base", code=2) == [says, f"  fix: {FORGET}"]


def test_hosts_that_can_t_be_asked_for_their_runs(launch: Launch) -> None:
    """Nobody knows then whether they control one."""
    words = ("ps", "--ssh-config", str(launch.ssh_config), "--hosts")
    assert call(launch, *words, "node1,gone.invalid", code=69)[:2] == [
        "launch: 1 host can't be used:",
        "  gone.invalid: the name gone.invalid is not known",
    ]
    assert call(launch, *words, "node1", code=0) == ["launch: no run was controlled by node1 yet"]
