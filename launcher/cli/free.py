"""launch free: which GPUs nobody uses, and who uses the others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from launcher.cli.host_choice import choose_opener, read_hosts
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, HELPER_PYTHON, HOSTS, LIFE, REACH, Request
from launcher.cli.options.sources import gather

if TYPE_CHECKING:
    from launcher.commands.free import Survey


@click.command("free", cls=Command, params=[
    CONFIG, *HOSTS, *REACH, *LIFE, HELPER_PYTHON, AS_JSON.but(help="Print the result as one JSON object."),
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Show which GPUs are free, and who has claimed the others or uses them.

    A run of `launch` claims its GPUs; a process that was started without it is shown once it uses a GPU's memory. The
    exit code is 69 if a host can't be reached. In a Slurm job, its hosts are the default.
    """
    from launcher.cli.sessions import find_pythons, hold_session, make_settings
    from launcher.commands import free
    from launcher.output.console import Console
    from launcher.output.output_streams import find_streams

    hosts = read_hosts(request)
    open_transport = choose_opener(request.reach, hosts, python=request.python)
    console = Console(hosts, find_streams(os.environ), as_json=request.as_json, is_patient=True)

    def report(found: Survey) -> int:
        console.emit("free", **free.as_record(found))
        for line in free.table(found):
            console.show(line)
        return found.exit_code

    settings = make_settings("free", request.timeouts, {}, find_pythons(request.python))
    return hold_session(hosts, open_transport, settings, console, free.survey, report)
