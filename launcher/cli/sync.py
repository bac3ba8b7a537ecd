"""launch sync: send the code to all hosts without starting a run, or compare it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli.defaults import CONFIG, current_directory
from launcher.cli.help import Command
from launcher.cli.option_groups import HostChoice, SyncOptions, gather
from launcher.cli.options import AS_JSON, CHECK, ENV, HELPER_PYTHON, HOSTS, LIFE, LINKS, REACH, CodeFolder
from launcher.cli.selection import choose_opener, read_hosts
from launcher.job.job import Timeouts
from launcher.transports.settings import TransportSettings

if TYPE_CHECKING:
    from launcher.errors import HostFailure
    from launcher.hosts.host import Host
    from launcher.job.tree import Tree
    from launcher.output.console import Console
    from launcher.sync.delivery import Delivered


@click.command("sync", cls=Command, params=[
    CONFIG, *HOSTS, *REACH, *LINKS, *LIFE, HELPER_PYTHON,
    ENV.but(help="Set a variable for launch's helper: XDG_CACHE_HOME=DIR."),
    CHECK.but(help="Send nothing; compare what was sent last with what is here."),
    AS_JSON.but(help="Print the result as one JSON object."),
    click.Argument(["folder"], metavar="[DIR]", required=False),
])  # fmt: skip
@gather
def command(
    *, folder: str | None, check: bool, as_json: bool, python: str | None, env: tuple[str, ...], choice: HostChoice,
    transport: TransportSettings, timeouts: Timeouts, options: SyncOptions,
) -> int:  # fmt: skip
    """Send the code in DIR to every host, and prove that all have the same.

    Files that a host has already are not sent. DIR is the repository or directory that you are in by default. With
    --check, the exit code is 0 if every host has what is here.
    """
    from launcher.cli.sessions import make_session, read_settings
    from launcher.cli.tree_request import read_tree
    from launcher.commands.sync import exit_code, sync
    from launcher.errors import EXIT_SIGNAL_BASE
    from launcher.job.variables import parse_settings
    from launcher.output.console import Console
    from launcher.output.output_streams import find_streams
    from launcher.session.signals import Interrupted

    hosts = read_hosts(choice)
    folder = folder or CodeFolder().convert(click.get_current_context().lookup_default("sync"), None, None)
    options = replace(options, sync=folder or "")
    variables = parse_settings(env, os.environ)
    opener = choose_opener(transport, hosts, env=variables, python=python)
    console = Console(hosts, find_streams(os.environ), as_json=as_json, is_patient=True)
    failures: list[HostFailure] = []

    def read() -> Tree:
        return read_tree(options, None, current_directory(), Path("logs"), console.say)[0]

    async def execute() -> tuple[Tree, Delivered]:
        settings = replace(read_settings(timeouts, "sync", python), env=variables)
        session = make_session(settings, hosts, opener(hosts, console.say), console.outputs(hosts, None), console)
        try:
            return await sync(session, read, os.environ, is_check=check)
        finally:
            failures.extend(session.failures())

    try:
        tree, delivered = asyncio.run(execute())
        _report(console, tree, delivered, hosts, failures, is_check=check)
        return exit_code(delivered, failures)
    except Interrupted as interruption:
        console.say("launch: stopped by you; what was sent is kept")
        return EXIT_SIGNAL_BASE + interruption.number
    finally:
        console.close()


def _report(
    console: Console, tree: Tree, delivered: Delivered, hosts: Sequence[Host], failures: Sequence[HostFailure], *,
    is_check: bool,
) -> None:  # fmt: skip
    from launcher.commands.sync import as_record, exit_code
    from launcher.hosts.unreachable import failure_lines
    from launcher.output.style import Style
    from launcher.sync.code_messages import code_line, describe_tree, place_lines

    paths = {hosts[index].name: path for index, path in delivered.paths.items()}
    console.emit(
        "sync", exit_code=exit_code(delivered, failures), **as_record(tree, delivered), paths=paths,
        unreachable=[asdict(failure) for failure in failures],
    )  # fmt: skip
    line = describe_tree(tree) if is_check else code_line(tree, delivered.files, delivered.sent_bytes)
    console.say(f"launch: {line}", Style.TEXT)
    found = [line for finding in delivered.findings for line in str(finding).splitlines()]
    for line in [*place_lines(paths), *(f"  {line}" for line in found), *failure_lines(failures)]:
        console.say(line)
