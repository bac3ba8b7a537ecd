"""After `test-distributed` failed on several hosts: find the hosts that fail, with runs on fewer hosts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import click

from launcher.cli.console import Console, dated
from launcher.cli.error_lines import tell
from launcher.cli.runner import execute_recorded
from launcher.commands.bisection import Group, Verdict, search_culprits
from launcher.diagnosis.cause import Cause
from launcher.diagnosis.failure import FailureKind
from launcher.errors import EXIT_SIGNAL_BASE, LauncherError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.job import Job
from launcher.output.run_folder import create_record
from launcher.runs.result import Result
from launcher.runs.run import Opener
from launcher.runs.run_options import RunOptions

SIDE_BY_SIDE = 32  # concurrent runs; each has its own connections
# By now torch is in every host's memory, so healthy hosts are quick.
SHORT = ("--checks-only", "--timeout", "10")
RENDEZVOUS_S = 15

RunGroup = Callable[[Group], Awaitable[str]]


class StoppedError(Exception):
    """A signal stopped a run, which also stops the search."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def is_to_bisect(result: Result) -> bool:
    """Tell whether ranks failed for a reason that names no host: a lost host is known, and Ctrl-C ends the search."""
    if result.interrupted_by is not None or result.cause is None:
        return False
    return result.cause.failure.kind in (FailureKind.RANK, FailureKind.TORCHRUN)


def find_culprits(
    make_job: Callable[..., Job],
    hosts: Sequence[Host],
    open_transport: Opener,
    folder: Path,
    *,
    as_json: bool,
) -> None:
    """Run on ever fewer hosts, print how each run ended and then the verdict; exit at a signal."""
    by_name = {host.name: host for host in hosts}
    tell(f"test-distributed: looking for the failing hosts; logs in {folder}")

    async def run_group(group: Group) -> str:
        """Return why the group fails; empty if it passes."""
        members = [by_name[name] for name in group]
        job = replace(make_job(group, *SHORT), rendezvous_timeout_s=RENDEZVOUS_S)
        console = Console(members, is_mute=True)
        try:
            record = create_record(folder, datetime.now(), console.complain)
            result = await execute_recorded(job, members, open_transport, record, console, RunOptions())
        except LauncherError as error:
            return error.message.partition("\n")[0]
        finally:
            console.close()
        if result.interrupted_by is not None:
            raise StoppedError(result.interrupted_by)
        return describe_cause(result.cause) if result.cause else ""

    try:
        verdict = asyncio.run(search(list(by_name), run_group))
    except StoppedError as stop:
        tell("test-distributed: stopped, no verdict")
        raise click.exceptions.Exit(EXIT_SIGNAL_BASE + stop.number) from None
    if as_json:
        click.echo(json.dumps(dated("verdict", **asdict(verdict))))
        return
    for line in verdict.lines():
        click.echo(f"verdict: {line}")


async def search(hosts: Sequence[str], run_group: RunGroup) -> Verdict:
    """Make the runs that the search requests, those of a batch concurrently."""
    places = asyncio.Semaphore(SIDE_BY_SIDE)
    stops: list[StoppedError] = []

    async def test(group: Group) -> bool:
        async with places:
            if stops:
                return False
            try:
                reason = await run_group(group)
            except StoppedError as stop:
                stops.append(stop)
                return False
        what = f"{fold_names(group)} alone" if len(group) == 1 else fold_names(group)
        tell(f"testing {what}: " + (f"FAILED ({reason})" if reason else "ok"))
        return not reason

    searching = search_culprits(hosts)
    batch = next(searching)
    while True:
        passed = await asyncio.gather(*map(test, batch))
        if stops:  # the whole batch has ended by now
            raise stops[0]
        try:
            batch = searching.send(list(passed))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict


def describe_cause(cause: Cause) -> str:
    """Return the failure in one line: which process, how it ended, and the last line that it printed."""
    said = cause.traceback[-1:] or cause.last_lines[-1:]
    return ": ".join([f"{cause.failure.subject}, {cause.failure.ending}", *(line.strip() for line in said)])
