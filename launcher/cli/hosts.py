"""launch hosts: show the hosts as launch reads them."""

from __future__ import annotations

import json
from typing import Any

import click

from launcher.cli.host_choice import read_hosts
from launcher.cli.options.command import Command, gather
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, ENTER, HOSTS, Request
from launcher.hosts.host import Host, part_spares
from launcher.wording import lay_out


@click.command("hosts", cls=Command, params=[
    CONFIG, *HOSTS, ENTER,
    AS_JSON.but(help="Print one JSON list to stdout."),
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Show the hosts in rank order, as launch reads them, without contacting them.

    In a Slurm job, its hosts are the default.
    """
    ranked, spares = part_spares(read_hosts(request), None)
    rows = [_describe_host(rank, host) for rank, host in enumerate(ranked)]
    rows += [_describe_host(None, host) for host in spares]
    if request.as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    # An empty cell is decided by ssh_config, or by the host itself.
    titles = {"node_rank": "node", "gpus": "GPUs", "source": "from"}
    shown = [name for name in rows[0] if name != "enter" or any(row["enter"] for row in rows)]
    cells = [[_show_cell(name, row[name]) for name in shown] for row in rows]
    click.echo("\n".join(lay_out([[titles.get(name, name) for name in shown], *cells])))
    return 0


def _describe_host(rank: int | None, host: Host) -> dict[str, Any]:
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


def _show_cell(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value) if value is not None else "spare" if name == "node_rank" else "-"
