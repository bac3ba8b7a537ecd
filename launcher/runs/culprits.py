"""Find the hosts that make runs fail: short tests of groups of them, as `bisection` requests them.

Each test is a run of its own, with its own connections and logs. Nothing of it is shown but how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from launcher.diagnosis.cause import Cause
from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.job import COLLECTIVES_MODULE, Job, Program, ProgramKind
from launcher.output.run_folder import create_record
from launcher.output.screen import MuteScreen, Screen
from launcher.runs.bisection import Group, Verdict, search_culprits
from launcher.runs.run import Opener, Run
from launcher.runs.run_options import RunOptions
from launcher.session.signals import Interrupted

SIDE_BY_SIDE = 32  # concurrent runs; each has its own connections
# By now torch is in every host's memory, so healthy hosts are quick.
SHORT = ("--checks-only", "--timeout", "10")
RENDEZVOUS_S = 15
SEARCH_S = 600.0  # between two attempts: a run is to go on

RunGroup = Callable[[Group], Awaitable[str]]
OnTested = Callable[[str, str], object]


async def find_culprits(
    make_job: Callable[[Group], Job], hosts: Sequence[Host], open_transport: Opener, folder: Path, on_tested: OnTested
) -> Verdict:
    """Run on ever fewer hosts; raise Interrupted for a signal, once all these runs have ended.

    on_tested: gets, for each run, which hosts it had and why it failed; empty if it passed.
    """
    by_name = {host.name: host for host in hosts}

    async def run_group(group: Group) -> str:
        """Return why the group fails; empty if it passes."""
        members = [by_name[name] for name in group]
        job = replace(make_job(group), rendezvous_timeout_s=RENDEZVOUS_S)
        try:
            record = create_record(folder, datetime.now(), lambda path, error: None)
            result = await Run(job, members, open_transport, record, MuteScreen(), RunOptions()).execute()
        except LauncherError as error:
            return error.message.partition("\n")[0]
        if result.interrupted_by is not None:
            raise Interrupted(result.interrupted_by)
        return describe_cause(result.cause) if result.cause else ""

    return await search(list(by_name), run_group, on_tested)


async def search(hosts: Sequence[str], run_group: RunGroup, on_tested: OnTested) -> Verdict:
    """Make the runs that the search requests, those of a batch concurrently."""
    places = asyncio.Semaphore(SIDE_BY_SIDE)
    stops: list[Interrupted] = []

    async def test(group: Group) -> bool:
        async with places:
            if stops:
                return False
            try:
                reason = await run_group(group)
            except Interrupted as stop:
                stops.append(stop)
                return False
        on_tested(f"{fold_names(group)} alone" if len(group) == 1 else fold_names(group), reason)
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


async def find_between_attempts(
    job: Job, open_transport: Opener, folder: Path, screen: Screen, hosts: Sequence[Host]
) -> Verdict | None:
    """Search the hosts that make this job fail, with collectives in place of its program, and say what was found.

    Return None if that takes too long; raise Interrupted for a signal.
    """

    def make_job(group: Group) -> Job:
        program = Program(ProgramKind.BUILTIN, COLLECTIVES_MODULE, ("--names", ",".join(group), *SHORT))
        return replace(job, program=program, workdir=None, master_addr=None, master_port=None)

    def say_failure(what: str, reason: str) -> None:
        if reason:
            screen.say(f"  {what}: FAILED ({reason})")

    screen.say(f"launch: nothing says which host is to blame: testing groups of them, logs in {folder}")
    searching = find_culprits(make_job, hosts, open_transport, folder, say_failure)
    try:
        verdict = await asyncio.wait_for(searching, SEARCH_S)
    except asyncio.TimeoutError:
        screen.say(f"launch: not found in {SEARCH_S / 60:g} min")
        return None
    for line in verdict.lines():
        screen.say(f"launch: {line}")
    return verdict


def describe_cause(cause: Cause) -> str:
    """Return the failure in one line: which process, how it ended, and the last line that it printed."""
    said = cause.traceback[-1:] or cause.last_lines[-1:]
    return ": ".join([f"{cause.failure.subject}, {cause.failure.ending}", *(line.strip() for line in said)])
