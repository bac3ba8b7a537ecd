"""Every transport that --transport names: how it is opened, what it can't do, and which one is the default.

Two others have no name: LocalTransport, for ranks on this machine, and AgentTransport, of a controller on a host.
A new transport needs its module, an opener and a line of TRANSPORTS here, and an entry in WAYS and GAPS of
tests/faults/ways.py. `launch --help` imports this module, so a transport is imported only when it is opened: paramiko
alone takes a quarter of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.slurm_allocation import Allocation, srun_environment
from launcher.transports.base import Transport, TransportSettings

if TYPE_CHECKING:
    from launcher.transports.srun import SrunTransport


@dataclass(frozen=True, slots=True)
class TransportEntry:
    """One transport, and what the command line must know about it before it is opened."""

    name: str  # as --transport takes it
    open: Callable[[Sequence[Host], TransportSettings], Transport]  # raises UsageError
    uses_ssh: bool = True  # the options for SSH, and the users in host names, mean something to it
    needs_allocation: bool = False  # reaches the nodes of the Slurm job that `launch` runs in, and no other host


_srun: dict[tuple[str, ...], SrunTransport] = {}  # of this process: by the job and the Pythons there


def _open_srun(hosts: Sequence[Host], settings: TransportSettings) -> Transport:
    from launcher.transports.srun import SrunTransport

    assert settings.allocation is not None  # choose_transport has refused it otherwise
    allocation, environ = settings.allocation, srun_environment(settings.variables)
    # Its steps last as long as this process: the next attempt, or a search between two, continues with them.
    key = allocation.job_id, *settings.pythons
    transport = _srun.get(key)
    if transport is None or not transport.renew(hosts):
        transport = _srun[key] = SrunTransport(hosts, allocation, settings.pythons, environ, settings.silence_s)
    return transport


def _open_fabric(hosts: Sequence[Host], settings: TransportSettings) -> Transport:
    from launcher.transports.ssh.fabric import FabricTransport

    return FabricTransport(settings)


def _open_ssh(hosts: Sequence[Host], settings: TransportSettings) -> Transport:
    from launcher.transports.ssh.openssh import OpenSSHTransport

    return OpenSSHTransport(settings)


def _open_pdsh(hosts: Sequence[Host], settings: TransportSettings) -> Transport:
    from launcher.transports.ssh.pdsh import PdshTransport

    return PdshTransport(hosts, settings)


SRUN = TransportEntry("srun", _open_srun, uses_ssh=False, needs_allocation=True)
FABRIC = TransportEntry("fabric", _open_fabric)
TRANSPORTS: Mapping[str, TransportEntry] = {
    entry.name: entry
    for entry in (
        SRUN,
        FABRIC,
        TransportEntry("ssh", _open_ssh),
        TransportEntry("pdsh", _open_pdsh),
    )
}


def choose_transport(wanted: str | None, hosts: Sequence[Host], allocation: Allocation | None) -> TransportEntry:
    """Return the transport for these hosts: the wanted one, else srun if all are in the allocation, else fabric.

    Raise UsageError if the wanted one can't reach all of them.
    """
    if wanted is None:
        is_slurm = allocation is not None and all(host.source == allocation.name for host in hosts)
        return SRUN if is_slurm else FABRIC
    entry = TRANSPORTS[wanted]
    if entry.needs_allocation:
        _refuse_outside(entry.name, hosts, allocation)
    return entry


def _refuse_outside(name: str, hosts: Sequence[Host], allocation: Allocation | None) -> None:
    if allocation is None:
        raise UsageError(f"--transport {name}: not in a Slurm allocation", "start one with salloc or sbatch")
    outside = [host.name for host in hosts if host.name not in allocation.nodes]
    if outside:
        names = fold_names(outside)
        raise UsageError(
            f"--transport {name}: {names} {'is' if len(outside) == 1 else 'are'} not in {allocation.name}",
            f"name its nodes, {fold_names(allocation.nodes)}, or use --transport fabric",
        )
