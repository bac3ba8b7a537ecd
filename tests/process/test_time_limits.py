"""--until and --for: a run that is stopped in time, and stays so."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from machines.launches import PROGRAM, run_launch
from machines.patience import DEADLINE_S, NEVER_S, slowed
from machines.processes import wait_until
from screen import Screen

from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind, Timeouts
from launcher.output.run_folder import create_record
from launcher.runs.records import Result
from launcher.runs.run import Run
from launcher.runs.run_request import RunOptions, RunRequest
from launcher.transports.process_channel import LocalTransport

RUN = ("singlenode", "--cpu", "--no-check", "--restarts", "3", "--no-python")
SAVES = "trap 'touch saved.$RANK; exit 0' TERM; while :; do sleep 0.05; done"


def launch(folder: Path, *words: str) -> tuple[int, str, Mapping[str, Any]]:
    done = run_launch(*RUN, *words, cwd=folder)
    return done.returncode, done.stderr, json.loads((folder / "logs/latest/run.json").read_text())


def test_ranks_save_and_no_restart_follows(tmp_path: Path) -> None:
    code, said, record = launch(tmp_path, "--for", "1", "--nproc", "2", "sh", "-c", SAVES)
    assert code == 143
    assert {path.name for path in tmp_path.glob("saved.*")} == {"saved.0", "saved.1"}
    lines = said.splitlines()[-3:]
    assert lines[0] == "launch: the run has reached its time limit (--for 1 s)"
    assert lines[1] == "launch: stopping the run on 1 host, up to 15 s to save (Ctrl-C again: kill now)"
    assert lines[2].startswith("launch: stopped by its time limit after ")
    results = [record["result"], *(attempt["result"] for attempt in record["attempts"])]
    assert [(each["interrupted_by"], each["time_limit"]) for each in results] == [(15, "for")] * 2


def test_restarts_and_pauses_prolong_nothing(tmp_path: Path) -> None:
    # Less than the pause, so that it comes within that, however late the second attempt fails before it.
    code, said, record = launch(tmp_path, "--for", "4", "--nproc", "1", "sh", "-c", "exit $((3 + LAUNCH_ATTEMPT))")
    assert code == 143, said
    assert "launch: stopped by its time limit after " in said
    assert len(record["attempts"]) == 2  # then a pause of 5 s
    assert record["result"]["time_limit"] == "for"


def test_ranks_that_are_being_stopped_keep_their_time_to_save(tmp_path: Path) -> None:
    saves = "trap 'until [ -e limit ]; do sleep 0.05; done; sleep 0.5; touch saved; exit' TERM; echo ready >ready"
    waits = f"if [ $RANK = 0 ]; then {saves}; while :; do sleep 0.05; done; fi; until [ -e ready ]; do :; done; exit 7"
    times = ("--for", f"{slowed(2.0):g}", "--stop-timeout", f"{NEVER_S:g}")
    words = [PROGRAM, *RUN[:-1], *times, "--nproc", "2", "--no-python", "sh", "-c", waits]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(words, cwd=tmp_path, stdout=said, stderr=said)
    try:
        assert wait_until(lambda: "has reached its time limit" in (tmp_path / "said").read_text())
        (tmp_path / "limit").touch()
        assert process.wait(DEADLINE_S) == 7, (tmp_path / "said").read_text()
    finally:
        process.kill()
    assert (tmp_path / "saved").exists()
    assert "restart" not in (tmp_path / "said").read_text().partition("rank 1 failed first")[2]


def test_a_time_that_is_over_lets_nothing_start(tmp_path: Path) -> None:
    screen, record = Screen(), create_record(tmp_path / "logs", datetime.now(), lambda path, error: None)
    program = Program(ProgramKind.COMMAND, "/bin/sh", ("-c", SAVES))
    job = Job(program, nproc=1, cpu=True, timeouts=Timeouts(DEADLINE_S), workdir=str(tmp_path))
    options = RunOptions(with_checks=False, restarts=3, until_at=time.time() - 1)

    async def execute() -> Result:
        request = RunRequest(job, [Host("n1")], lambda hosts, say: LocalTransport(), record, screen, options)
        return await asyncio.wait_for(Run(request).execute(), DEADLINE_S)

    result = asyncio.run(execute())
    assert (result.exit_code, screen.words[-1]) == (143, "launch: stopped by its time limit, nothing was started")
