"""What identifies a run, and whether it has been started again."""

from __future__ import annotations

import os
from dataclasses import dataclass

from launcher.distributed import TORCHRUN_MARK


@dataclass(frozen=True)
class Attempt:
    """One start of a run."""

    name: str  # the run id in the logs of `launch`, else slurm-JOB, else torchrun's; or ""
    job_id: str  # Slurm's, or ""
    is_requeued: bool  # by Slurm
    is_again: bool  # or `launch` has started the run again, or torchrun its ranks


def find_attempt() -> Attempt:
    """Find out how this run is identified, and whether this is its first start."""
    environ = os.environ
    job_id = environ.get("SLURM_JOB_ID", "")
    # A job inherits the variables of the run that submitted it, but isn't part of that run.
    is_launched = not job_id or environ.get("LAUNCH_SLURM_JOB") == job_id
    run_id = environ.get("LAUNCH_MARK", "").partition(".")[0] if is_launched else ""
    elastic_id = environ.get(TORCHRUN_MARK, "none")  # the static rendezvous has none
    name = run_id or (job_id and f"slurm-{job_id}") or ("" if elastic_id == "none" else f"torchrun-{elastic_id[:8]}")
    is_requeued = bool(job_id) and environ.get("SLURM_RESTART_COUNT", "0") != "0"
    restarts = environ.get("LAUNCH_ATTEMPT" if run_id else "TORCHELASTIC_RESTART_COUNT", "0")
    is_again = bool(name) and (is_requeued or restarts != "0")
    return Attempt(name, job_id, is_requeued, is_again)
