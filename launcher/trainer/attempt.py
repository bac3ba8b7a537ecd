"""One start of a run, and what stays the same when it is started again."""

from __future__ import annotations

import os
from dataclasses import dataclass

from launcher.distributed import TORCHRUN_MARK


@dataclass(frozen=True)
class Attempt:
    """One start of a run, and what identifies a later start of the same run."""

    name: str | None = None  # the run id in the logs of `launch`, else slurm-JOB
    command: str = ""  # the `launch` command line that started the built-in trainer
    job_id: str | None = None
    requeues: int = 0  # how often Slurm has put the job back into its queue
    restarts: int = 0  # how often `launch` has started the run again, or torchrun its ranks


def find_attempt() -> Attempt:
    """Find out how this run is identified, and what stays the same when it is started again."""
    environ = os.environ
    job_id = environ.get("SLURM_JOB_ID") or None
    # A job inherits the variables of the run that submitted it, but isn't part of that run.
    is_launched = job_id is None or environ.get("LAUNCH_SLURM_JOB") == job_id
    run_id = environ.get("LAUNCH_MARK", "").partition(".")[0] if is_launched else ""
    # torchrun gives each of its runs an id, but for the static rendezvous.
    elastic_id = environ.get(TORCHRUN_MARK, "none")
    by_hand = None if elastic_id == "none" else f"torchrun-{elastic_id[:8]}"
    requeues = environ.get("SLURM_RESTART_COUNT", "")
    restarts = environ.get("LAUNCH_ATTEMPT" if run_id else "TORCHELASTIC_RESTART_COUNT", "")
    return Attempt(
        name=run_id or (f"slurm-{job_id}" if job_id else by_hand),
        command=environ.get("LAUNCH_COMMAND", "") if is_launched else "",
        job_id=job_id,
        requeues=int(requeues) if job_id and requeues.isdecimal() else 0,
        restarts=int(restarts) if restarts.isdecimal() else 0,
    )
