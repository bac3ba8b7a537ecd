"""The mark that a run writes to its directory: it shows that the trainer uses the directory, and for which run.

A later attempt of the same run recognizes it: torchrun restarts its ranks from the same process, `launch` keeps the
run's id, and Slurm that of a job that it requeues.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.distributed import Attempt
from launcher.trainer.checkpoints.replacement import sync_folder, write_durable
from launcher.trainer.config import TrainConfig

MARK = ".trainer.json"


def write_mark(path: Path, config: TrainConfig, attempt: Attempt) -> None:
    """Mark the directory as the trainer's, with the run that uses it."""
    begun: dict[str, Any] = {"begun_at": time.time(), "agent": attempt.agent, "job": attempt.job_id}
    begun |= {"run": attempt.name, "options": asdict(config)}
    temporary = path / f"{MARK}.tmp"
    write_durable(temporary, json.dumps(begun).encode())
    temporary.replace(path / MARK)
    sync_folder(path)


def read_mark(path: Path) -> dict[str, Any] | None:
    """Return the content of the trainer's mark in a directory, or None without one."""
    try:
        mark = json.loads((path / MARK).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = isinstance(mark, dict) and {"begun_at", "agent", "job", "options"} <= mark.keys()
    return mark if is_whole and isinstance(mark["begun_at"], float) else None


def find_marked(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each of the trainer's directories in `parent`, with the content of its mark."""
    for path in parent.iterdir() if parent.is_dir() else ():
        mark = read_mark(path)
        if mark is not None:
            yield path, mark


def is_same_run(mark: dict[str, Any], attempt: Attempt, options: dict[str, Any] | None = None) -> bool:
    """Return whether an earlier attempt of this run wrote the mark.

    One job may start several runs. If their directories don't distinguish them, pass `options`, which must match then.
    """
    is_restarted = attempt.agent is not None and mark["agent"] == attempt.agent
    is_restarted = is_restarted or (attempt.restarts > 0 and mark.get("run") == attempt.name)
    is_requeued = attempt.requeues > 0 and attempt.job_id is not None and mark["job"] == attempt.job_id
    return (is_restarted or is_requeued) and options in (None, mark["options"])
