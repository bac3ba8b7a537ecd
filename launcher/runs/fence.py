"""How long a host that can't be asked may still have living ranks: no attempt begins before that. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.job.job import Job
from launcher.session.node_state import NodeState

FENCE_SLACK_S = 6.0  # for SIGKILL and the census, after a host has waited for a heartbeat and for its ranks to save


def find_fence(job: Job, states: Sequence[NodeState], now: float) -> float:
    """Return for how many seconds ranks may still be alive, and save, on nodes that could not be asked.

    now: wall-clock seconds. A node that is not known to be lost may have heard from this machine until now.
    """
    window_s = job.silence_s + job.stop_timeout_s + FENCE_SLACK_S
    unasked = [state.lost_at or now for state in states if state.may_run and state.census is None]
    return max((0.0, *(heard_at + window_s - now for heard_at in unasked)))
