"""`--dry-run --check` on this machine: the exact lines, no name of a run that is never made, and nothing left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.errors import EXIT_USAGE

Launch = Callable[..., subprocess.CompletedProcess[str]]
CHECKED = re.compile(r"^launch: checked in .*$", re.MULTILINE)
SIZE = ("--hosts", "localhost", "--nproc", "2", "--no-python", "--no-check")


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run `launch` with a folder of its own."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "launcher", *words]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(
            argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    return run


def test_the_whole_screen(launch: Launch, tmp_path: Path) -> None:
    done = launch(*SIZE, "--dry-run", "--check", "true")
    assert done.returncode == 0
    assert CHECKED.sub("launch: checked", done.stderr) == (
        "launch: localhost is this machine; not using SSH\n"
        "launch: dry run of 1 host x 2 processes = 2 ranks\n"
        "launch: checked\n"
    )
    comment, line = done.stdout.splitlines()
    assert (comment, line.startswith(f"cd {tmp_path} && ")) == ("# node 0: localhost, ranks 0 to 1", True)
    assert list(tmp_path.iterdir()) == []


def test_as_json(launch: Launch, tmp_path: Path) -> None:
    done = launch(*SIZE, "--dry-run", "--check", "--json", "true")
    (plan,) = map(json.loads, done.stdout.splitlines())
    assert (plan["event"], plan["world_size"]) == ("plan", 2)
    assert plan["nodes"][0]["command"].startswith(f"cd {tmp_path} && ")
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_the_run_has_not_are_refused_before_a_host_is_asked(launch: Launch, tmp_path: Path) -> None:
    done = launch(*SIZE, "--ranks", "7", "true")
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr == "launch: --ranks 7: the run has ranks 0 to 1\n  fix: omit --ranks to see all\n"
    assert list(tmp_path.iterdir()) == []
