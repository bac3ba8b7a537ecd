"""launch rejoin: let hosts that a run misses, as after a reboot, rejoin it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click

from launcher.cli.find_run import ask_value, controller_options, find_run, unreadable
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.help import Command
from launcher.cli.options.sources import gather
from launcher.concurrency import start_thread
from launcher.errors import EXIT_UNREACHABLE, HostFailure, LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names, shown
from launcher.hosts.unreachable import failure_lines
from launcher.runs.run_list import ListedRun, RemoteRun, Way

Outcome = tuple[str, HostFailure | None]  # of a host: its name, and why it has not rejoined the run


@click.command("rejoin", cls=Command)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_runs)
@controller_options
@gather
def command(*, run: str | None, controller: str | None, ssh_config: Path | None) -> int:
    """Let hosts that RUN has lost rejoin it, such as after a reboot.  [default: the newest run]

    RUN must have been started with --detach and --restarts. launch logs in to each host that RUN misses, and starts
    its helper there. RUN continues by itself once it has its hosts. If its controller host has rebooted, RUN has ended:
    launch again RUN runs it again.
    """
    from launcher.cli.error_lines import tell

    found = find_run(run, controller, ssh_config)
    outcomes = rejoin(found)
    back = [name for name, failure in outcomes if failure is None]
    failures = [failure for _, failure in outcomes if failure is not None]
    if not outcomes:
        tell(f"launch: no host of run {found.id} is missing")
    if back:
        tell(f"launch: {fold_names(back)} rejoined run {found.id}")
    for line in failure_lines(failures):
        tell(line)
    return EXIT_UNREACHABLE if failures else 0


def rejoin(found: ListedRun | RemoteRun) -> list[Outcome]:
    """Start the agent of each host that a run misses, and return what became of that, host by host.

    Raise LauncherError if the run has no controller that lives, or can't have a host back.
    """
    from launcher.cli.host_choice import choose_opener
    from launcher.controller.agent_start import start_again
    from launcher.session.settings import loader_pythons
    from launcher.transports.base import TransportSettings

    answer = _ask(found)
    if answer["exit_code"] is not None:
        raise UsageError(f"run {found.id} has ended", "see launch ps for those that run")
    if not answer["is_alive"]:
        text = f"run {found.id} has ended: its launch was killed, or its controller host has rebooted"
        raise UsageError(text, f"run it again with launch again {found.id}")
    if answer["missing"] and not answer["orders"]:
        text = f"run {found.id} was started without --detach and --restarts, and can't have a lost host back"
        raise UsageError(text, f"launch stop {found.id}")
    if not answer["orders"]:
        return []
    starts = choose_logins(found, answer["orders"])
    way = found.way if isinstance(found, RemoteRun) else Way(found.controller.host)
    config = Path(way.ssh_config) if way.ssh_config else None
    settings = TransportSettings(way.transport, config, silence_s=0.0)
    opener = choose_opener(settings, [*starts], python=way.python)
    transport = opener([*starts], lambda text: None)
    start = partial(start_again, transport, pythons=loader_pythons(way.python), controller=way.name)
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    for host, order in starts.items():
        start_thread(partial(_start, start, host, order, outcomes), f"rejoin {host.name}", lambda error: None)
    return sorted(outcomes.get() for _ in starts)


def _read_order(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return an order whose addresses are such: they may be shown."""
    return {**order, "addresses": [[str(address), int(port)] for address, port in order["addresses"]]}


def _ask(found: ListedRun | RemoteRun) -> dict[str, Any]:
    """Return what is known of the agents of a run; raise LauncherError if that can't be had."""
    answer = ask_value(found, "agents")
    if isinstance(answer, dict) and answer.keys() == {"is_alive", "exit_code", "missing", "orders"}:
        return answer
    raise unreadable(found.way.name if isinstance(found, RemoteRun) else found.controller.host)


def choose_logins(found: ListedRun | RemoteRun, orders: Sequence[Mapping[str, Any]]) -> dict[Host, Mapping[str, Any]]:
    """Return where to log in, and the order of the agent there; raise LauncherError if that isn't known here.

    Of a run that another machine controls, only this machine's own record says where: whoever controls that machine
    could otherwise let this one start an agent wherever the user can log in.
    """
    if isinstance(found, ListedRun):
        return {
            Host(
                each["name"], user=each["user"], port=each["port"], enter=each.get("enter", ""), source="launch rejoin"
            ): each["order"]
            for each in orders
        }  # fmt: skip
    name = found.way.name
    if not found.logins:
        text = f"only the machine that started run {found.id} knows how to log in to its hosts"
        raise UsageError(text, f"use launch rejoin {found.id} there, without --controller, or on {name}")
    known = {host.name: host for host in found.logins}
    try:
        wanted = {str(each["name"]): _read_order(each["order"]) for each in orders}
    except (TypeError, KeyError, ValueError, OverflowError):
        raise unreadable(name) from None
    if strange := [host for host in wanted if host not in known]:
        text = f"{name} says that run {found.id} misses {shown(strange[0])}, which is no host of the run"
        raise LauncherError(text, f"see who controls {name}; nothing was started")
    return {known[host]: order for host, order in wanted.items()}


def _start(start: Callable[..., object], host: Host, order: Mapping[str, Any], outcomes: SimpleQueue[Outcome]) -> None:
    """Start one agent; whoever waits gets something."""
    from launcher.transports.base import failure_of

    try:
        start(host=host, order=order)
        failure = None
    except Exception as error:  # noqa: BLE001 - it becomes a value, whatever it is
        failure = failure_of(host.name, error)
    outcomes.put((host.name, failure))
