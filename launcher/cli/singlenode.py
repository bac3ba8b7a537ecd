"""launch singlenode: ranks on this machine only, without SSH."""

from __future__ import annotations

import click

from launcher.cli.host_choice import name_this_machine
from launcher.cli.job_request import read_job
from launcher.cli.options.command import Command, gather
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import (
    CLAIMS,
    DETACH,
    DRY_RUN,
    HANGS,
    JOB,
    NO_CHECK,
    NOTIFY,
    OUTPUT,
    RESTARTS,
    WORDS,
    Request,
)
from launcher.cli.repetition import tell_changes


@click.command("singlenode", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *JOB, *HANGS, *RESTARTS, DRY_RUN, NO_CHECK, *CLAIMS, *OUTPUT, DETACH, NOTIFY, WORDS,
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Run SCRIPT on this machine only, without SSH.

    Logs, exit codes and the way to stop it are the same as on several hosts. Without SCRIPT, the built-in trainer runs.
    """
    from launcher.cli.runner import run_here  # which a Tab and --help can do without

    hosts = [name_this_machine()]
    job = read_job(request, hosts)
    tell_changes(hosts, job)
    return run_here(job, hosts, request)
