"""launch check: run every check without a run, and print what was found as a table or as JSON."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.host_choice import read_hosts
from launcher.cli.host_session import act_on_hosts
from launcher.cli.job_request import read_job
from launcher.cli.options.command import Command, gather
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, HOSTS, JOB, MASTER_ADDR, REACH, SYNC, WORDS, Request
from launcher.cli.tree_request import add_tree
from launcher.errors import EXIT_PREFLIGHT, EXIT_UNREACHABLE
from launcher.hosts.ranges import fold_names
from launcher.hosts.unreachable import fold_failures
from launcher.job.activation import candidate_pythons
from launcher.job.job import Job
from launcher.preflight.findings import PROBLEM, WARNING
from launcher.preflight.summary import common_traits
from launcher.wording import count, duration

if TYPE_CHECKING:
    from launcher.output.console import Console
    from launcher.runs.inspection import Inspection
    from launcher.session.session import Session

_SENDS = "Send the code in DIR and check it there.  [default DIR: the repository]"


@click.command("check", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *HOSTS, *REACH, SYNC[0].but(help=_SENDS), *SYNC[1:], MASTER_ADDR, *JOB,
    AS_JSON.but(help="Print all facts and findings as one JSON object."),
    WORDS,
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Compare the hosts and show problems and differences, without starting a run.

    With SCRIPT, compare the script on all hosts too. The exit code is 0 if nothing would break a run. In a Slurm job,
    its hosts are the default.
    """
    from launcher.runs import host_history  # a Tab and --help can do without what drives a run
    from launcher.runs.inspection import Inspector
    from launcher.runs.run_list import RunList
    from launcher.session.settings import loader_pythons
    from launcher.sync.contents import Contents

    hosts = read_hosts(request)
    job = add_tree(read_job(request, hosts), request)

    async def check(session: Session, console: Console) -> int:
        incidents = host_history.describe(RunList.of_user(os.environ), [host.name for host in hosts], time.time())
        async with session.asking():
            inspector = Inspector(
                job, session, candidate_pythons(job, sys.executable), with_checks=True, incidents=incidents,
                contents=Contents(job.tree, os.environ) if job.tree is not None else None,
            )  # fmt: skip
            inspection = await inspector.ask()
        console.emit("check", **as_record(job, inspection))
        for line in table(job, inspection):
            console.show(line)
        return exit_code(inspection)

    return act_on_hosts("check", request, check, hosts=hosts, env=job.env, pythons=loader_pythons(job.python))


def exit_code(inspection: Inspection) -> int:
    """Return the exit code; a host that can't be reached takes precedence over findings."""
    return EXIT_UNREACHABLE if inspection.failures else EXIT_PREFLIGHT if inspection.of(PROBLEM) else 0


def table(job: Job, inspection: Inspection) -> list[str]:
    """Return what all hosts share, then each finding with its hosts and, below it, its remedy.

    Nothing is wrapped: users copy paths and commands, and the terminal wraps those better.
    """
    traits = common_traits(job, inspection.facts)
    rows = [("", "on all", ", ".join(traits), "")] if traits else []
    rows += [("!", fold_names(names), text, fix) for names, text, fix in fold_failures(inspection.failures)]
    rows += [
        ("!" if finding.severity is PROBLEM else "", fold_names(finding.hosts), finding.text, finding.fix)
        for finding in inspection.findings
    ]
    name_width = max((len(name) for _, name, _, _ in rows), default=0)
    lines = []
    for mark, name, text, fix in rows:
        start = f"{mark:1} {name:<{name_width}}  "
        lines += [start + text, *([f"{'':{len(start)}}fix: {fix}"] if fix else [])]
    answered, asked = len(inspection.hosts), len(inspection.hosts) + len(inspection.failures)
    heading = (
        f"{count(asked, 'host')} responded" if answered == asked else f"{answered} of {count(asked, 'host')} responded"
    )
    return [f"{heading} ({duration(inspection.seconds)})", *lines, _verdict(inspection)]


def _verdict(inspection: Inspection) -> str:
    broken = len(inspection.of(PROBLEM)) + len(inspection.failures)
    warnings = len(inspection.of(WARNING))
    verdict = f"{count(broken, 'problem')} would break a run" if broken else "nothing would break a run"
    return verdict + (f", {count(warnings, 'warning')}" if warnings else "")


def as_record(job: Job, inspection: Inspection) -> dict[str, Any]:
    """Return the same as JSON values, with all facts of each host."""
    return {
        "exit_code": exit_code(inspection),
        "on_all": common_traits(job, inspection.facts),
        "findings": [finding.as_record() for finding in inspection.findings],
        "unreachable": [asdict(failure) for failure in inspection.failures],
        "hosts": {host.name: asdict(fact) for host, fact in zip(inspection.hosts, inspection.facts, strict=True)},
    }
