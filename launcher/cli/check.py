"""launch check: run every check without starting a run."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from launcher.cli.host_choice import choose_opener, read_hosts
from launcher.cli.job_request import read_job
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import (
    AS_JSON,
    HOSTS,
    JOB,
    MASTER_ADDR,
    REACH,
    SYNC,
    WORDS,
    Request,
)
from launcher.cli.options.sources import gather
from launcher.cli.tree_request import add_tree

if TYPE_CHECKING:
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
    from launcher.cli.sessions import hold_session, make_settings
    from launcher.commands import check
    from launcher.job.activation import candidate_pythons
    from launcher.output.console import Console
    from launcher.output.output_streams import find_streams
    from launcher.runs import host_history
    from launcher.runs.run_list import RunList
    from launcher.session.settings import loader_pythons
    from launcher.sync.contents import Contents

    hosts = read_hosts(request)
    job = add_tree(read_job(request, hosts), request)
    open_transport = choose_opener(request.reach, hosts, python=job.python)
    console = Console(hosts, find_streams(os.environ), as_json=request.as_json, is_patient=True)

    async def ask(session: Session) -> Inspection:
        contents = Contents(job.tree, os.environ) if job.tree is not None else None
        runs = RunList.of_user(os.environ)
        incidents = host_history.describe(runs, [host.name for host in hosts], time.time())
        return await check.check(job, session, candidate_pythons(job, sys.executable), incidents, contents)

    def report(inspection: Inspection) -> int:
        if request.as_json:
            console.emit("check", **check.as_record(job, inspection))
        else:
            for line in check.table(job, inspection):
                console.show(line)
        return check.exit_code(inspection)

    return hold_session(
        hosts,
        open_transport,
        make_settings("check", job.timeouts, job.env, loader_pythons(job.python)),
        console,
        ask,
        report,
    )
