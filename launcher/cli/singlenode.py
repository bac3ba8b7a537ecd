"""launch singlenode: this machine only, no SSH."""

from __future__ import annotations

import socket

import click

from launcher.cli.host_choice import open_this_machine
from launcher.cli.job_request import read_job
from launcher.cli.options.help import Command
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
from launcher.cli.options.sources import gather
from launcher.cli.repetition import tell_changes


@click.command("singlenode", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *JOB, *HANGS, *RESTARTS, DRY_RUN, NO_CHECK, *CLAIMS, *OUTPUT, DETACH, NOTIFY, WORDS,
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Run SCRIPT on this machine only, without SSH.

    Logs, exit codes and the way to stop it are the same as on several hosts. Without SCRIPT, the built-in trainer runs.
    """
    from launcher.cli.run import print_dry_run
    from launcher.hosts.host import Host

    hosts = [Host(socket.gethostname().split(".")[0], source="this machine")]
    job = read_job(request, hosts)
    tell_changes(hosts, job)
    if request.dry_run:
        return print_dry_run(job, hosts, request)
    open_transport = open_this_machine()
    from launcher.cli.runner import read_run_options, run_job

    return run_job(job, hosts, open_transport, request, read_run_options(request))
