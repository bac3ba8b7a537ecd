"""The mark that a run leaves in its directory: that the trainer writes there, and in which run.

It tells a later attempt of the same run: a torchrun that starts its ranks again is the same process, and a job that
Slurm puts back into the queue keeps its number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.distributed import Attempt
from launcher.trainer.config import TrainConfig

MARK = ".trainer.json"


def write_mark(path: Path, config: TrainConfig, attempt: Attempt) -> None:
    """Say in the directory that the trainer writes it, and in which run."""
    begun = {"begun_at": time.time(), "agent": attempt.agent, "job": attempt.job_id, "options": asdict(config)}
    temporary = path / f"{MARK}.tmp"
    temporary.write_text(json.dumps(begun))
    temporary.replace(path / MARK)


def read_mark(path: Path) -> dict[str, Any] | None:
    """Return what the mark in a directory says, or None where there is none of the trainer's."""
    try:
        mark = json.loads((path / MARK).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = isinstance(mark, dict) and {"begun_at", "agent", "job", "options"} <= mark.keys()
    return mark if is_whole and isinstance(mark["begun_at"], float) else None


def find_marked(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the trainer's directories in `parent`, with what their marks say."""
    for path in parent.iterdir() if parent.is_dir() else ():
        mark = read_mark(path)
        if mark is not None:
            yield path, mark


def is_same_run(mark: dict[str, Any], attempt: Attempt, options: dict[str, Any] | None = None) -> bool:
    """Tell whether an earlier attempt of this run left the mark.

    One job may start several runs. Where their directories don't tell them apart, their options do.
    """
    is_restarted = attempt.agent is not None and mark["agent"] == attempt.agent
    is_requeued = attempt.requeues > 0 and attempt.job_id is not None and mark["job"] == attempt.job_id
    return (is_restarted or is_requeued) and options in (None, mark["options"])
