"""Choose the hosts and the transport: those named, also in launcher.toml, or else those of the Slurm allocation.

The password of --ask-password is asked for once for all hosts, before any is contacted.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from launcher.cli.options.command import is_chosen, is_on_command_line, name_source
from launcher.cli.options.request import HERE, Request
from launcher.errors import UsageError
from launcher.hosts.host import Host, part_spares, select_hosts
from launcher.hosts.hostfiles import parse_hosts, read_hostfile
from launcher.hosts.ranges import fold_names, name_key
from launcher.job.job import Job
from launcher.job.slurm_allocation import read_allocation, refuse_tasks
from launcher.job.variables import refuse_rank
from launcher.output.output_streams import tell
from launcher.transports.base import TransportSettings
from launcher.transports.registry import FABRIC, TransportEntry, choose_transport
from launcher.wording import count

if TYPE_CHECKING:
    from launcher.runs.run_request import Opener
    from launcher.transports.base import Transport


def read_hosts(request: Request) -> tuple[Host, ...]:
    """Return the named hosts or those of the Slurm job, filtered; raise UsageError if there are none."""
    refuse_tasks(os.environ)
    refuse_rank(os.environ)
    hosts, hostfile = request.hosts, request.hostfile
    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile are both given", "pass only one of them")
    if hosts is not None:
        found = parse_hosts(hosts, name_source("hosts"))
    elif hostfile is not None:
        found = read_hostfile(hostfile)
    else:
        found = _read_allocated()
    if request.enter is not None:
        is_typed = is_on_command_line("enter")
        found = tuple(replace(host, enter=request.enter if is_typed else host.enter or request.enter) for host in found)
    return select_hosts(found, request.include, request.exclude, request.num_nodes)


def _read_allocated() -> tuple[Host, ...]:
    allocation = read_allocation(os.environ)
    if allocation is None:
        name, fix = click.get_current_context().command.name, "pass --hosts a,b or --hostfile FILE"
        if name == "run":
            fix += "; to use this machine only, run launch singlenode"
        raise UsageError("no run is active, and no hosts are given" if name == "top" else "no hosts given", fix)
    click.echo(f"launch: hosts of {allocation.describe()}", err=True)
    return allocation.hosts()


def read_lineup(request: Request) -> tuple[tuple[Host, ...], tuple[Host, ...]]:
    """Return the hosts of a run and its spares; raise UsageError if there are none.

    With --queue, return all hosts, of which the run uses --num-nodes that are free.
    In a Slurm job the nodes beyond --num-nodes are spares, first of all those that failed in earlier runs.
    """
    if request.queue is not None:
        hosts, spares = part_spares(read_hosts(replace(request, num_nodes=None)), request.spares)
        select_hosts(hosts, None, None, request.num_nodes)  # raises UsageError for more than there are
        return hosts, spares
    is_left_open = request.hosts is None and request.hostfile is None and request.num_nodes is not None
    if not (is_left_open and request.restarts) or request.master_addr is not None or request.spares == 0:
        return part_spares(read_hosts(request), request.spares)
    found = read_hosts(replace(request, num_nodes=None))
    from launcher.runs import host_history
    from launcher.runs.run_list import RunList

    failed = host_history.describe(RunList.of_user(os.environ), [host.name for host in found], time.time())
    ordered = sorted(found, key=lambda host: host.name in failed)
    hosts = select_hosts(ordered, None, None, request.num_nodes)
    beyond = ordered[len(hosts) :][: request.spares]
    return hosts, tuple(replace(host, is_spare=True) for host in beyond)


def refuse_spares(job: Job, hosts: Sequence[Host], spares: Sequence[Host], request: Request) -> None:
    """Raise UsageError for spares and other options of restarts that can have no effect; say which are not used."""
    if not request.restarts:
        if spares:
            names = fold_names(host.name for host in spares)
            tell(f"launch: {names}: marked spare, and used only with --restarts")
        return
    if request.min_nodes is not None and request.min_nodes > len(hosts):
        raise UsageError(f"--min-nodes {request.min_nodes}: the run has only {count(len(hosts), 'host')}", "lower it")
    if spares and job.master_addr is not None:
        text = "--master-addr can't be given with spares: one of them may become node 0, and has another address"
        raise UsageError(text, "set addr= in a hostfile instead")


def choose_way(settings: TransportSettings, hosts: Sequence[Host]) -> tuple[TransportEntry, TransportSettings]:
    """Return the transport, and the settings with the Slurm job that this process is in.

    Raise UsageError if no transport reaches the hosts.
    """
    allocation = read_allocation(os.environ)
    chosen = choose_transport(settings.transport, hosts, allocation)
    if settings.ask_password and chosen.uses_ssh and chosen is not FABRIC:
        raise UsageError("--ask-password works only with --transport fabric", f"{chosen.name} takes a key")
    return chosen, replace(settings, allocation=allocation)


def choose_controller(request: Request, hosts: Sequence[Host], spares: Sequence[Host]) -> Host | None:
    """Return the host that is to control the run: by default the last spare, or else node 0; None: this machine."""
    if not request.detach or request.controller == HERE or "SLURM_JOB_ID" in os.environ:  # nothing outlives the job
        return None
    if request.controller is None:
        return (*hosts, *spares)[-1] if spares else hosts[0]
    named = parse_hosts(request.controller, "--controller", are_logins=True)
    if len(named) != 1:
        raise UsageError(f"--controller names {len(named)} hosts", "name one of them")
    known = {name_key(host.name): host for host in (*hosts, *spares)}
    return known.get(name_key(named[0].name), named[0])


def choose_opener(settings: TransportSettings, hosts: Sequence[Host], *, python: str | None) -> Opener:
    """Return what opens the transport to the hosts; raise UsageError, before contacting any, if there is none.

    `python`, if given, runs the supervisors.
    """
    chosen, settings = choose_way(settings, hosts)
    return make_opener(chosen, settings, python=python)


def make_opener(chosen: TransportEntry, settings: TransportSettings, *, python: str | None) -> Opener:
    """Return what opens the chosen transport, as choose_opener does; ask for the password of --ask-password."""
    settings = replace(
        settings,
        may_boot=is_chosen("connect_timeout"),
        password=_ask_password() if settings.ask_password and chosen is FABRIC else None,
        variables=os.environ,
    )

    def open_transport(hosts: Sequence[Host], say: Callable[[str], None]) -> Transport:
        from launcher.session.settings import loader_pythons

        pythons = loader_pythons(python)
        return chosen.open(hosts, replace(settings, pythons=pythons, say=lambda text: say(f"launch: {text}")))

    return open_transport


def _ask_password() -> str:
    if not sys.stdin.isatty():
        raise UsageError("--ask-password needs a terminal", "without a terminal, log in with a key")
    try:
        return getpass.getpass("launch: password for all hosts: ")
    except EOFError:
        return ""


def name_this_machine() -> Host:
    """Return this machine as the host of ranks that are started without SSH."""
    return Host(socket.gethostname().split(".")[0], source="this machine")


def open_this_machine() -> Opener:
    """Return what starts the ranks on this machine, without SSH; raise UsageError on a Mac: they need Linux."""
    from launcher.transports.process_channel import LocalTransport

    if sys.platform != "linux":
        system = "macOS" if sys.platform == "darwin" else sys.platform
        fix = "name Linux hosts: launch --hosts a,b"
        raise UsageError(f"this machine runs {system}, and ranks need Linux", fix)
    return lambda hosts, say: LocalTransport()
