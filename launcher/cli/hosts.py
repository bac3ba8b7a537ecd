"""launch hosts: the hosts as `launch` reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.host_choice import read_hosts
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, ENTER, HOSTS, Request
from launcher.cli.options.sources import gather
from launcher.hosts.host import part_spares
from launcher.wording import lay_out

if TYPE_CHECKING:
    from launcher.hosts.host import Host


@click.command("hosts", cls=Command, params=[
    CONFIG, *HOSTS, ENTER,
    AS_JSON.but(help="Print one JSON list to stdout."),
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Show the hosts in rank order, as launch reads them, without contacting them.

    In a Slurm job, its hosts are the default.
    """
    hosts = read_hosts(request)
    if request.as_json:
        rows = [_row(rank, host) for rank, host in _ranked(hosts)]
        click.echo(json.dumps(rows, indent=2))
    else:
        _print_table(hosts)
    return 0


def _ranked(hosts: Sequence[Host]) -> list[tuple[int | None, Host]]:
    """Return each host with its node rank; spares have none, and come last."""
    ranked, spares = part_spares(hosts, None)
    return [*enumerate(ranked), *((None, host) for host in spares)]


def _row(rank: int | None, host: Host) -> dict[str, Any]:
    return {
        "node_rank": rank,
        "host": host.name,
        "slots": host.slots,
        "gpus": list(host.gpus) if host.gpus is not None else None,
        "user": host.user,
        "port": host.port,
        "addr": host.address,
        "enter": host.enter,
        "source": host.source,
    }


def _print_table(hosts: Sequence[Host]) -> None:
    # An empty cell is decided by ssh_config, or by the host itself.
    titles = {"node_rank": "node", "gpus": "GPUs", "source": "from"}
    rows = [{**_row(rank, host), "node_rank": "spare" if rank is None else rank} for rank, host in _ranked(hosts)]
    shown = [name for name in rows[0] if name != "enter" or any(host.enter for host in hosts)]
    cells = [[titles.get(name, name) for name in shown], *([_cell(row[name]) for name in shown] for row in rows)]
    click.echo("\n".join(lay_out(cells)))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value is None else str(value)
