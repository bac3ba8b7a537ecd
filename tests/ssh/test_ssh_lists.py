"""What `launch` lists of runs that hosts control, if these hosts know nothing of them or can't be reached."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from launching import Launch
from machines.patience import slowed
from machines.runs import Done, shell

from launcher.cli import find_run
from launcher.cli import main as cli
from launcher.controller import remote_launcher
from launcher.runs.run_list import RemoteRun, RunList, Way
from launcher.runs.run_rows import RunRow

ROW = RunRow(
    run="20261120-091233", name="base", state="failed", exit_code=7, attempts=1, age_s=1.0, nodes=(1,),
    launch_host="here", controller="node1", logs="/logs", last_line="node1 rank 0: no data",
)  # fmt: skip
NOW = datetime(2026, 11, 20, 9, 12, 33)
FORGET = "remove it from the list with launch ps --forget 20261120-091233"
SAYS = "launch: node1 knows nothing of run 20261120-091233: node1 was reinstalled, or its list of runs was removed"


@pytest.fixture
def runs(launch: Launch) -> RunList:
    """Return the list, with a run of which node1 knows nothing."""
    runs = RunList(Path(os.environ["XDG_STATE_HOME"]) / "launch" / "runs")
    add(runs, launch, 33, "base")
    return runs


def add(runs: RunList, launch: Launch, second: int, name: str | None, controller: str = "node1") -> None:
    run_id = runs.take_id(datetime(2026, 11, 20, 9, 12, second), "token")
    began_at = datetime.now().timestamp() - 3 * 86400
    way = Way(controller, ssh_config=str(launch.ssh_config))
    runs.add(RemoteRun(run_id, way, name, began_at))


def call(launch: Launch, *words: str, code: int) -> list[str]:
    done: Done = launch.run_command(*words)
    assert done.exit_code == code, str(done)
    return done.stderr.splitlines()


def test_what_a_host_controls_is_named_before_one_is_stopped(launch: Launch) -> None:
    """As `launch stop` without --controller names the runs of this machine."""
    there = ("--controller", "node1", "--ssh-config", str(launch.ssh_config))
    none = ["launch: no run is running on node1", "  fix: see launch ps --hosts node1"]
    assert call(launch, "stop", *there, code=2) == none
    assert call(launch, "logs", *there, code=2) == [
        "launch: node1 controls no run", "  fix: launch ps, where the run was started, names its controller",
    ]  # fmt: skip
    list_there = RunList(launch.hosts.hosts[0].folder / "home" / ".local" / "state" / "launch" / "runs")
    entries = [
        list_there.begin(f"20261120-09123{number}", name, launch.folder) for number, name in ((3, None), (4, "b"))
    ]
    try:
        named = "20261120-091234 (b), 20261120-091233"
        said = [f"launch: 2 runs may be running: {named}", "  fix: name one of them"]
        assert call(launch, "stop", *there, code=2) == said
    finally:
        for entry in entries:
            entry.close(is_kept=False)


def test_the_host_of_a_controller_was_reinstalled(launch: Launch, runs: RunList) -> None:
    """Commands know the id that `launch ps` lists, and say what is known."""
    fix = f"  fix: stop what is left of it with launch clean --hosts LIST; {FORGET}"
    for command in ("stop", "attach", "fetch"):
        assert call(launch, command, "base", code=2) == [SAYS, fix]
    for command in ("wait", "logs", "report"):
        assert call(launch, command, code=2) == [SAYS, fix]
    add(runs, launch, 34, None)
    assert call(launch, "stop", code=2)[0] == ("launch: 2 runs may be running: 20261120-091234, 20261120-091233 (base)")
    assert call(launch, "ps", "--forget", "20261120-091234", code=0) == [
        "launch: run 20261120-091234 is listed no more; its logs stay where they are"
    ]
    assert [run.id for run in runs.read_all()] == ["20261120-091233"]


def test_a_run_that_may_live_is_not_forgotten(launch: Launch, runs: RunList) -> None:
    """Its host doesn't answer, or it is another machine's with the same home directory."""
    add(runs, launch, 34, None, "gone.invalid")
    said = call(launch, "ps", "--forget", "20261120-091234", code=69)
    assert "launch: only gone.invalid knows whether run 20261120-091234 continues; it was started 3 days ago" in said
    runs.begin("20261120-091235", None, launch.folder).close(is_kept=True)
    path = runs.base / "20261120-091235" / "controller.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "gpu1", "machine_id": "m", "boot_id": "b"}))
    assert call(launch, "ps", "--forget", "20261120-091235", code=2) == [
        "launch: only gpu1 knows whether run 20261120-091235 has ended",
        "  fix: on gpu1, use launch ps --forget 20261120-091235",
    ]
    assert [run.id for run in runs.read_all()][:2] == ["20261120-091235", "20261120-091234"]


def test_a_sick_host_is_named_while_it_is_waited_for(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The login works, and nothing comes after the marker."""
    monkeypatch.setattr(find_run, "_AT_ONCE_S", 0.0)
    monkeypatch.setattr(find_run, "CONNECT_TIMEOUT_S", slowed(1.0))
    monkeypatch.setattr(remote_launcher, "MARKER_TIMEOUT_S", 0.0)
    monkeypatch.setattr(remote_launcher, "CODE_S", 0.0)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nbegin=${4#?}; echo "${begin%%\\"*} missing 3.11"; exec cat >/dev/null\n')
    python.chmod(0o755)
    runs = RunList.of_user(os.environ)
    runs.begin("20261120-091235", "local", launch.folder).close(is_kept=True)
    way = Way("node2", ssh_config=str(launch.ssh_config), python=str(python))
    runs.add(RemoteRun(runs.take_id(NOW, "token"), way, "sick", time.time() - 60))
    with pytest.raises(SystemExit):
        cli.main(["ps"])
    said = capfd.readouterr()
    assert [line.split()[:3] for line in said.out.splitlines()] == [
        ["run", "name", "state"],
        ["20261120-091235", "local", "killed"],
        ["20261120-091233", "sick", "unknown"],
    ]
    assert said.err == (
        "launch: waiting for node2\n"
        "launch: 1 host can't be used:\n"
        "  node2: launch doesn't respond there any more\n"
        "    fix: log in there, and see whether it is overloaded or a file system doesn't respond\n"
    )
    with pytest.raises(SystemExit):
        cli.main(["ps", "--json"])
    assert [row["name"] for row in json.loads(capfd.readouterr().out)] == ["local", "sick"]


def test_a_run_whose_end_was_seen_before_its_host_was_reinstalled(launch: Launch, runs: RunList) -> None:
    (run,) = runs.read_all()
    assert isinstance(run, RemoteRun)
    runs.note_seen(run, ROW)
    says = f"{SAYS}; what launch ps saw last: failed, node1 rank 0: no data"
    assert call(launch, "wait", "base", code=7) == [says]
    assert call(launch, "logs", "base", code=2) == [says, f"  fix: {FORGET}"]


def test_hosts_that_can_t_be_asked_for_their_runs(launch: Launch) -> None:
    """Nobody knows then whether they control one."""
    words = ("ps", "--ssh-config", str(launch.ssh_config), "--hosts")
    said = call(launch, *words, "node1,gone.invalid", code=69)
    assert [line for line in said if not line.startswith("launch: waiting for ")][:2] == [  # on a slow machine
        "launch: 1 host can't be used:",
        "  gone.invalid: the name gone.invalid is not known",
    ]
    assert call(launch, *words, "node1", code=0) == ["launch: no run was controlled by node1 yet"]


def test_a_host_that_was_lost_is_named_before_the_next_run(launch: Launch, tmp_path: Path) -> None:
    """And by `launch check`, until its record is removed."""
    runs = RunList(Path(os.environ["XDG_STATE_HOME"]) / "launch" / "runs")
    logs, ended_at = tmp_path / "earlier", datetime.now(timezone.utc) - timedelta(days=3)
    logs.mkdir()
    attempt = {"hosts": ["node1", "node2"], "ended_at": ended_at.isoformat(), "blamed": {"node2": "lost"}}
    (logs / "run.json").write_text(json.dumps({"attempts": [attempt]}))
    runs.begin("20261120-091233", None, logs).close(is_kept=True)
    (run,) = runs.read()
    fix = "test it, or remove that run with launch ps --forget RUN"
    done = launch.run(*shell("true"))
    warning = "  node2: lost 3 days ago, in run RUN"
    assert (done.exit_code, done.words.count(f"{warning}; fix: {fix}")) == (0, 1), str(done)
    done = launch.run_command("check", *launch.hosts_words, "--start=plain", "--nproc", "1", "--cpu")
    text = f"node2 lost 3 days ago, in run 20261120-091233 fix: {fix}"
    assert text in " ".join(done.stdout.split()), str(done)
    runs.forget(run)
    assert "days ago" not in launch.run(*shell("true")).stderr
