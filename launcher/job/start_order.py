"""What the supervisor of a node is told to start, as the fields of a START message. Pure."""

from __future__ import annotations

from typing import Any

from launcher.job.plan import TORCHRUN, NodePlan


def start_fields(node: NodePlan, attempt: int = 0) -> dict[str, Any]:
    """Return what a supervisor is told to start; attempt: how many came before this one."""
    own = {"LAUNCH_ATTEMPT": str(attempt)}
    return {
        "torchrun_args": node.argv[1 + len(TORCHRUN) :],
        "env": {**node.env, **own},
        "cwd": node.cwd,
        "python_path": node.python_path,
        "local_ranks": list(range(node.nproc)),
        "processes": [
            {"rank": process.local_rank, "argv": process.argv,
             "env": {**process.env, **own, "TORCHELASTIC_RESTART_COUNT": str(attempt)}}
            for process in node.processes
        ],
    }  # fmt: skip
