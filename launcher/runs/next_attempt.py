"""What stands before the next attempt: ranks on hosts that nobody could ask, and GPU memory that is still in use.

The driver frees memory some time after a process ended. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.errors import EXIT_PREFLIGHT, LauncherError
from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts
from launcher.job.job import Job
from launcher.job.plan import used_gpus
from launcher.preflight.gpus import gigabytes
from launcher.session.node_state import NodeState
from launcher.wording import listed

LOST_HOST_SLACK_S = 6.0  # for SIGKILL and the census, after a host has waited for a heartbeat and for its ranks to save


def find_lost_host_wait(job: Job, states: Sequence[NodeState], now: float) -> float:
    """Return for how many seconds ranks may still be alive, and save, on nodes that could not be asked.

    now: wall-clock seconds. A node that is not known to be lost may have heard from this machine until now.
    """
    window_s = job.timeouts.silence_s + job.timeouts.stop_timeout_s + LOST_HOST_SLACK_S
    unasked = [state.lost_at or now for state in states if state.may_run and state.census is None]
    return max((0.0, *(heard_at + window_s - now for heard_at in unasked)))


FREED_S = 50.0  # the longest that the GPUs are waited for, as NVIDIA's ft_launcher does
LOOK_AGAIN_S = 2.0
_SLACK_MIB = 512  # what a driver may keep for itself

Use = Mapping[str, Mapping[int, int]]  # host -> GPU -> MiB


class GpusInUseError(LauncherError):
    """GPUs still have memory in use that was free before the first attempt."""

    exit_code = EXIT_PREFLIGHT

    def __init__(self, hosts: Sequence[str], text: str) -> None:
        super().__init__(text)
        self.hosts = tuple(hosts)


def measure_use(job: Job, hosts: Sequence[Host], facts: Sequence[NodeFacts]) -> dict[str, dict[int, int]]:
    """Return how much memory of each GPU that the job would use is taken, where its tool says so."""
    return {
        host.name: {
            gpu.index: gpu.memory_mib - gpu.free_mib
            for gpu in used_gpus(job, host, fact)
            if gpu.memory_mib is not None and gpu.free_mib is not None
        }
        for host, fact in zip(hosts, facts, strict=True)
    }


def refuse_unfreed(before: Use, use: Use, users: Mapping[str, str]) -> None:
    """Raise GpusInUseError for GPUs with more memory in use than before, except for what a driver may keep.

    users: whose process uses most of a GPU, by host; empty if that is not known.
    """
    texts = {}
    for host in before.keys() & use.keys():
        more = [
            gpu
            for gpu in sorted(before[host].keys() & use[host].keys())
            if use[host][gpu] > before[host][gpu] + _SLACK_MIB
        ]
        if more:
            size = sum(use[host][gpu] - before[host][gpu] for gpu in more)
            texts[host] = f"{host}: GPU {listed(more)} still {'has' if len(more) == 1 else 'have'} "
            texts[host] += f"{gigabytes(size)} more in use than before the first attempt"
            texts[host] += f", by {users[host]}" if users.get(host) else ""
    if texts:
        hosts = sorted(texts)
        raise GpusInUseError(hosts, "\n".join(texts[host] for host in hosts))
