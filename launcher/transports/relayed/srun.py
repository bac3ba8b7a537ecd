"""--transport srun: the nodes of a Slurm allocation, through one srun with a relay on each (docs/decisions/0009)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.job.slurm_allocation import Allocation
from launcher.transports.base import TransportError
from launcher.transports.relayed.channel import RelayChannel
from launcher.transports.relayed.framing import RelayStarted
from launcher.transports.relayed.srun_step import SrunStep


class SrunTransport:
    """Reaches the nodes of the allocation that `launch` runs in, with all CPUs, GPUs and memory that it has there.

    The first `open` starts one step for all hosts. A host that is lost later, or held up by others, gets another one.
    """

    name = "srun"
    is_terse = False

    def __init__(
        self, hosts: Sequence[Host], allocation: Allocation, pythons: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        """Start nothing yet; srun and the ranks get `environ` as their environment."""
        self._hosts = [host.name for host in hosts]
        self._allocation = allocation
        self._pythons = pythons
        self._environ = environ
        self._steps: dict[str, SrunStep] = {}  # the last one of each host
        self._lock = threading.Lock()

    def open(self, host: Host, command: str, timeout_s: float) -> RelayChannel:
        try:
            step = self._find_step(host.name)
            while (channel := step.open(host.name, command, timeout_s)) is None:
                step = self._go_on_without_others(host.name, step)
        except OSError as error:
            fix = "load Slurm's module, or use --transport fabric"
            failure = HostFailure(host.name, HostFailureKind.SLURM, f"srun can't be started: {error.strerror}", fix)
            raise TransportError(failure) from None
        return channel

    def own_messages(self, host: Host) -> Sequence[str]:
        step = self._steps.get(host.name)
        return () if step is None else step.own_messages(host.name)

    def _find_step(self, host: str) -> SrunStep:
        """Return a usable step: the one for all hosts, or another for this host alone after that one has lost it."""
        with self._lock:
            step = self._steps.get(host)
            if step is None:
                self._start(self._hosts, {})
            elif not step.is_usable(host):
                self._start([host], step.present())
            return self._steps[host]

    def _go_on_without_others(self, host: str, step: SrunStep) -> SrunStep:
        """Return a step of the nodes whose relays have started; the first host to give up the old one starts it."""
        with self._lock:
            if self._steps[host] is step:
                step.abandon()
                present = step.present()
                self._start(list(present), present)
            return self._steps[host]

    def _start(self, hosts: Sequence[str], lost: Mapping[str, RelayStarted]) -> None:
        step = SrunStep(hosts, srun_options(self._allocation, hosts), self._pythons, self._environ, lost)
        self._steps.update(dict.fromkeys(hosts, step))


def srun_options(allocation: Allocation, hosts: Sequence[str]) -> list[str]:
    """Return the options that start one task on each host, with all that the job has on it."""
    # A step gets all GPUs of a job with --gres, but not of one with --gpus or --gpus-per-task (22.05 gives one less).
    gpus = [f"--gres=gpu:{allocation.gpus_per_node}"] if allocation.gpus_per_node else []
    return [
        f"--jobid={allocation.job_id}",
        f"--nodelist={','.join(hosts)}",
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        "--overlap",  # CPUs, memory and GPUs may be in use by the step that `launch` runs in (Slurm 20.11)
        "--mem=0",  # all that the job has
        *gpus,
        "--cpu-bind=none",
        "--mpi=none",
        # `launch` decides how a run ends, whatever the site's defaults are.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        "--input=all",
        "--chdir=/",  # the relay changes to the home directory, as a login does
        "--job-name=launch",
    ]
