"""`launch singlenode` from its command line to its last word: what the screen shows, and what logs/ keeps."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.launches import PROGRAM, run_launch
from machines.logs import without_stamps
from node_process import STAND_IN

from launcher.session.pool import FILES_PER_HOST, OWN_FILES

PAGE = (Path(__file__).parents[1] / "unit" / "output" / "seen_exit_race.txt").read_text()

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run `launch` in a folder of its own, where its logs go."""

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run_launch(*words, cwd=tmp_path, env={**os.environ, **env})

    return run


def even(text: str) -> list[str]:
    """Return lines without what differs from run to run."""
    text = re.sub(r"\d{8}-\d{6}(-\d+)?", "RUN", text)
    return re.sub(r"\b\d+(\.\d)? s\b", "N s", text).splitlines()


def test_torchruns_page_at_the_end_of_a_good_run_goes_to_the_log(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('step 1')")
    torchrun = ("--python", sys.executable, "--env", f"PYTHONPATH={STAND_IN}", "--env", f"STAND_IN_SAYS={PAGE}")
    done = launch("singlenode", "--nproc", "1", "--cpu", "--no-check", *torchrun, "train.py")
    name = os.uname().nodename.split(".")[0]
    assert (done.returncode, done.stdout) == (0, f"[{name}:0] step 1\n"), done.stderr
    log = (tmp_path / "logs" / "node_0.log").read_text()
    assert even(done.stderr) == [
        "launch: 1 host x 1 process = 1 rank, run RUN, logs in logs/RUN",
        even(done.stderr)[1],  # what this machine is
        "launch: finished in N s, 1 rank succeeded, 0 processes left on 1 host",
    ]
    assert [line.partition("]! ")[2] for line in log.splitlines() if "]! " in line] == PAGE.splitlines()


def test_without_a_script_and_without_gpus_the_trainer_runs_on_cpus(launch: Launch, tmp_path: Path) -> None:
    """tests/train shows that it can; for its help the stand-in for torch is enough."""
    words = ("--no-check", "--python", sys.executable, "--env", f"PYTHONPATH={STAND_IN}")
    done = launch("singlenode", *words, "-m", "launcher.trainer", "--help", PATH=str(tmp_path))  # no nvidia-smi
    assert (done.returncode, "--steps-per-epoch" in done.stdout) == (0, True), done.stderr
    said = even(done.stderr)
    assert said[:2] == [
        "launch: 1 host without GPUs, so the run uses CPUs: 1 process per host (--nproc N for more)",
        "launch: 1 host x 1 process = 1 rank, run RUN, logs in logs/RUN",
    ]


def test_a_run_with_a_name(launch: Launch, tmp_path: Path) -> None:
    """Its first line, its logs with their times, and what was typed, in which no secret is left."""
    words = ("--nproc", "1", "--cpu", "--no-check", "--name", "base-1", "--env", "MY_KEY=geheim")
    script = ("--no-python", "sh", "-c", "echo $MY_KEY | wc -c; echo oops >&2", "sh", "--api-key", "geheim")
    done = launch("singlenode", *words, *script, PATH=f"{PROGRAM.parent}:{os.environ['PATH']}")
    name = os.uname().nodename.split(".")[0]
    assert (done.returncode, done.stdout) == (0, f"[{name}:0] 7\n"), done.stderr
    assert even(done.stderr)[0] == "launch: 1 host x 1 process = 1 rank, run RUN (base-1), logs in logs/RUN"
    log = (tmp_path / "logs" / "node_0.log").read_bytes()
    assert sorted(without_stamps(log).decode().splitlines()) == [f"[{name}:0] 7", f"[{name}:0]! oops"]
    text = (tmp_path / "logs" / "latest" / "run.json").read_text()
    record = json.loads(text)
    assert "geheim" not in text
    assert {key: record[key] for key in ("name", "command", "directory", "user", "git")} == {
        "name": "base-1",
        "command": "launch singlenode --nproc 1 --cpu --no-check --name base-1 --env 'MY_KEY=***' "
        "--no-python sh -c 'echo $MY_KEY | wc -c; echo oops >&2' sh --api-key '***'",
        "directory": str(tmp_path),
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "git": None,
    }
    stamps = [record["started_at"], log.decode()[:23].replace(" ", "T") + record["utc_offset"], record["ended_at"]]
    assert stamps == sorted(stamps)


@pytest.mark.parametrize("allowed", [OWN_FILES + FILES_PER_HOST + step for step in (-1, 1)])
def test_as_many_files_may_be_open_as_the_hosts_need(tmp_path: Path, allowed: int) -> None:
    """A shell on macOS allows 256, and each host takes some; a rank here has the launcher's limit."""
    script = f"ulimit -Sn {allowed}; {PROGRAM} singlenode --nproc 1 --no-python sh -c 'ulimit -Sn'"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split()[1:] == [str(max(allowed, OWN_FILES + FILES_PER_HOST))]
