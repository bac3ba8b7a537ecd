"""Find the hosts that make runs fail: short tests of groups of them, as `bisection` requests them.

Each test is a run of its own, with its own connections and logs. Nothing of it is shown but how it ended.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from launcher.concurrency import call_in_thread
from launcher.errors import ChecksFailed, HostsUnreachable, LauncherError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.job.job import Job
from launcher.output.console import Console
from launcher.output.run_folder import create_record
from launcher.runs.bisection import Group, Verdict, search_culprits
from launcher.runs.run import Run, ignore
from launcher.runs.run_request import Opener, RunOptions, RunRequest
from launcher.session.session import SIGNALS
from launcher.session.signals import Action, Interrupted, catch_signals
from launcher.wording import span

SIDE_BY_SIDE = 32  # concurrent runs; each has its own connections
# By now torch is in every host's memory, so healthy hosts are quick.
SHORT = ("--only-checks", "--timeout", "10")
RENDEZVOUS_S = 15
STOP_S = 2.0  # a test has nothing to save
SEARCH_S = 600.0  # between two attempts: a run is to go on
DISK_S = 10.0

RunGroup = Callable[[Group], Awaitable[str]]
OnTested = Callable[[str, str], object]


class NoVerdictError(Exception):
    """The search has ended without a result, for a reason that no host is to blame for."""


async def find_culprits(
    make_job: Callable[[Group], Job], hosts: Sequence[Host], open_transport: Opener, folder: Path,
    on_tested: OnTested, *, with_checks: bool = True, shares: bool = False, limit_s: float = math.inf,
) -> Verdict:  # fmt: skip
    """Search with runs on ever fewer hosts; raise Interrupted for a signal, and NoVerdictError.

    on_tested: gets, for each run, which hosts it had and why it failed; empty if it passed. Signals end the search once
    the runs that have begun are over. shares: GPUs that another run, for which this one searches, has claimed; limit_s:
    after it no run begins.
    """
    by_name = {host.name: host for host in hosts}
    options = RunOptions(with_checks=with_checks, shares=shares)

    async def run_group(group: Group) -> str:
        """Return why the group fails; empty if it passes."""
        job = replace(make_job(group), rendezvous_timeout_s=RENDEZVOUS_S)  # whose ranks wait for others that long
        job = replace(job, timeouts=replace(job.timeouts, stop_timeout_s=STOP_S))
        try:
            create = partial(create_record, folder, datetime.now(), lambda path, error: None)
            record = await call_in_thread(create, DISK_S)
            members = [by_name[name] for name in group]
            request = RunRequest(job, members, open_transport, record, Console((), None), options)
            result = await Run(request).execute()
        except (HostsUnreachable, ChecksFailed) as error:
            return error.message.partition("\n")[0]
        except asyncio.TimeoutError:
            raise NoVerdictError(f"the disk of {folder} does not respond") from None
        except (LauncherError, OSError, RuntimeError) as error:  # of this machine, such as no more threads
            raise NoVerdictError(str(error).partition("\n")[0]) from None
        if result.interrupted_by is not None:
            raise Interrupted(result.interrupted_by)
        if result.is_network:
            raise NoVerdictError("the network of this machine failed")
        return result.describe().reason

    return await search(list(by_name), run_group, on_tested, time.monotonic() + limit_s)


async def search(hosts: Sequence[str], run_group: RunGroup, on_tested: OnTested, deadline: float = math.inf) -> Verdict:
    """Make the runs that the search requests, those of a batch concurrently; deadline: by time.monotonic()."""
    places = asyncio.Semaphore(SIDE_BY_SIDE)
    ends: list[Exception] = []  # why no further run begins
    failed: list[Group] = []

    def interrupt(number: int) -> None:
        ends.append(Interrupted(number))

    async def test(group: Group) -> bool:
        async with places:
            if not ends and time.monotonic() > deadline:
                ends.append(TimeoutError())
            if ends:
                return False
            try:
                reason = await run_group(group)
            except (Interrupted, NoVerdictError) as end:
                ends.append(end)
            if ends:  # it may have failed for the same reason
                return False
        failed.extend([group] if reason else [])
        on_tested(f"{fold_names(group)} alone" if len(group) == 1 else fold_names(group), reason)
        return not reason

    # Between two runs nobody else would hear them, and these two would suspend or end this process.
    actions: dict[int, Action] = dict.fromkeys((signal.SIGTSTP, signal.SIGQUIT), ignore)
    actions |= {number: partial(interrupt, number) for number in SIGNALS}
    with catch_signals(actions):
        searching = search_culprits(hosts)
        batch = next(searching)
        while True:
            passed = await asyncio.gather(*map(test, batch))
            for end in ends:  # the whole batch has ended by now
                if isinstance(end, TimeoutError):
                    return Verdict(tuple(group[0] for group in failed if len(group) == 1), is_complete=False)
                raise end
            try:
                batch = searching.send(list(passed))
            except StopIteration as end:
                verdict: Verdict = end.value
                return verdict


async def find_between_attempts(request: RunRequest, hosts: Sequence[Host]) -> Verdict | None:
    """Search those of a run's hosts that make it fail, with collectives for its program, and say what was found.

    Return None if nothing was; raise Interrupted for a signal.
    """

    def make_job(group: Group) -> Job:
        return replace(request.job.testing(group, *SHORT), master_addr=None, master_port=None)

    def say_failure(what: str, reason: str) -> None:
        if reason:
            console.say(f"  {what}: FAILED ({reason})")

    console, folder = request.console, request.record.folder / "bisection"
    where = f"logs in {request.record.show(folder)}"
    console.say(f"launch: searching for the host to blame: tests of groups, up to {span(SEARCH_S)}, {where}")
    with_checks = request.options.with_checks
    searching = find_culprits(
        make_job, hosts, request.open_transport, folder, say_failure, with_checks=with_checks, shares=True,
        limit_s=SEARCH_S,
    )  # fmt: skip
    say_stop = partial(console.say, "launch: stopping the tests")
    try:
        with catch_signals(dict.fromkeys(SIGNALS, say_stop)):
            verdict = await searching
    except NoVerdictError as error:
        console.say(f"launch: the search has found nothing: {error}")
        return None
    for line in verdict.lines():
        console.say(f"launch: {line}")
    return verdict
