"""`launch singlenode` from its command line to its last word: what the screen shows, and what logs/ keeps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S
from node_process import STAND_IN

LAUNCH = Path(sys.executable).with_name("launch")
PAGE = (Path(__file__).parents[1] / "unit" / "output" / "seen_exit_race.txt").read_text()

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run `launch` in a folder of its own, where its logs go."""

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(LAUNCH), *words], cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip

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
        "launch: 1 node x 1 process = 1 rank, run RUN, logs in logs/RUN",
        even(done.stderr)[1],  # what this machine is
        "launch: finished in N s, 1 rank ended well, 0 processes left on 1 node",
    ]
    assert [line.partition("]! ")[2] for line in log.splitlines() if "]! " in line] == PAGE.splitlines()
