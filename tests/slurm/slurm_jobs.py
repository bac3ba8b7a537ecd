"""What tests ask about a job, and how one that was requeued is spared its wait."""

from __future__ import annotations

import re
import time
from pathlib import Path

from machines.processes import wait_until
from machines.slurm import ASK_POLL_S, Slurm


def read_log(folder: Path, job_id: str, end: str) -> str:
    """Return what Slurm has written to logs/slurm-JOB.out or .err so far."""
    return read_output(folder / "logs", job_id, end)


def read_output(folder: Path, job_id: str, end: str) -> str:
    """Return what Slurm has written to slurm-JOB.out or .err so far."""
    path = folder / f"slurm-{job_id}.{end}"
    return path.read_text() if path.exists() else ""


def shown(slurm: Slurm, job_id: str, key: str) -> str:
    """Return what Slurm says of a job."""
    found = re.search(rf"\b{key}=(\S*)", slurm.run("scontrol", "show", "job", job_id).stdout)
    assert found is not None
    return found[1]


def wait_until_requeued(slurm: Slurm, job_id: str) -> None:
    """Wait until a job is back in the queue, and spare it the two minutes that Slurm lets it wait there.

    But for the first two seconds: a credential that is made in the second of the old one's end is refused as well.
    """
    assert wait_until(lambda: shown(slurm, job_id, "JobState") == "PENDING", poll_s=ASK_POLL_S)
    assert shown(slurm, job_id, "Restarts") == "1"
    ended_s = time.time()
    wait_until(lambda: time.time() > ended_s + 2)
    slurm.run("scontrol", "update", f"jobid={job_id}", "starttime=now")
