"""launch wait: wait until a run has ended, and end like it."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.output.log_reader import LOOK_S
from launcher.runs.run_end import conclude, is_running
from launcher.runs.run_list import ListedRun


def wait(run: ListedRun, tell: Callable[[str], None]) -> int:
    """Wait until a run has ended, print how, and return its exit code."""
    while is_running(run):
        time.sleep(LOOK_S)
    return conclude(run, tell, prints=True)
