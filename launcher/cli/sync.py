"""launch sync: send the code to all hosts without starting a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from launcher.cli.host_choice import choose_opener, read_hosts
from launcher.cli.options.completion import complete_files
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import (
    AS_JSON,
    ENV,
    HELPER_PYTHON,
    HOSTS,
    LIFE,
    LINKS,
    REACH,
    CodeFolder,
    Request,
)
from launcher.cli.options.sources import gather
from launcher.cli.options.toml_files import current_directory

if TYPE_CHECKING:
    from launcher.errors import HostFailure
    from launcher.hosts.host import Host
    from launcher.job.tree import Tree
    from launcher.output.console import Console
    from launcher.session.session import Session
    from launcher.sync.delivery import Delivered


@click.command("sync", cls=Command, params=[
    CONFIG, *HOSTS, *REACH, *LINKS, *LIFE, HELPER_PYTHON,
    ENV.but(help="Set XDG_CACHE_HOME=DIR, to keep the code below DIR on the hosts."),
    AS_JSON.but(help="Print the result as one JSON object."),
    click.Argument(["folder"], metavar="[DIR]", required=False, shell_complete=complete_files),
])  # fmt: skip
@gather
def command(*, folder: str | None, request: Request) -> int:
    """Send the code in DIR to every host, and verify that all hosts have the same.

    Only files that a host lacks are sent. By default, DIR is the repository that you are in, or else the current
    directory.
    """
    from launcher.cli.sessions import find_pythons, hold_session, make_settings
    from launcher.cli.tree_request import read_tree
    from launcher.commands.sync import sync
    from launcher.job.variables import parse_settings
    from launcher.output.console import Console
    from launcher.output.output_streams import find_streams

    hosts = read_hosts(request)
    folder = folder or CodeFolder().convert(click.get_current_context().lookup_default("sync"), None, None)
    request = replace(request, sync=folder or "")
    variables = parse_settings(request.env, os.environ)
    opener = choose_opener(request.reach, hosts, python=request.python)
    console = Console(hosts, find_streams(os.environ), as_json=request.as_json, is_patient=True)

    def read() -> Tree:
        return read_tree(request, None, current_directory(), console.say)[0]

    async def execute(session: Session) -> tuple[Tree, Delivered, Sequence[HostFailure]]:
        return *await sync(session, read, os.environ), session.failures()

    def report(done: tuple[Tree, Delivered, Sequence[HostFailure]]) -> int:
        return _report(console, hosts, *done)

    settings = make_settings("sync", request.timeouts, variables, find_pythons(request.python))
    farewell = "launch: stopped by you; what was sent is kept"
    return hold_session(hosts, opener, settings, console, execute, report, farewell=farewell)


def _report(
    console: Console, hosts: Sequence[Host], tree: Tree, delivered: Delivered, failures: Sequence[HostFailure]
) -> int:  # fmt: skip
    from launcher.commands.sync import SyncResult, exit_code
    from launcher.hosts.unreachable import failure_lines
    from launcher.sync.code_messages import code_line, place_lines

    code = exit_code(delivered, failures)
    paths = {hosts[index].name: path for index, path in delivered.paths.items()}
    result = SyncResult(
        code, tree.hash, tree.files, tree.bytes_in_all, tree.left_out, delivered.files, delivered.sent_bytes, paths
    )
    findings, unreachable = [each.as_record() for each in delivered.findings], [*map(asdict, failures)]
    console.emit("sync", **asdict(result), findings=findings, unreachable=unreachable)
    console.say(f"launch: {code_line(tree, delivered.files, delivered.sent_bytes)}")
    found = [line for finding in delivered.findings for line in str(finding).splitlines()]
    for line in [*place_lines(paths), *(f"  {line}" for line in found), *failure_lines(failures)]:
        console.say(line)
    return code
