"""launch node: this machine's share of a run that is started by hand on each host, without SSH."""

from __future__ import annotations

from dataclasses import replace

import click

from launcher.cli.host_choice import name_this_machine
from launcher.cli.job_request import read_job
from launcher.cli.options.command import Command, gather
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import (
    CLAIMS,
    DRY_RUN,
    HANGS,
    HOSTS_OF_RUN,
    JOB,
    MASTER_ADDR,
    NO_CHECK,
    OUTPUT,
    WORDS,
    Option,
    Request,
)
from launcher.errors import UsageError

DEFAULT_MASTER_PORT = 29500  # torchrun's own: every node must name the same
_PORT_HELP = f"Port of node 0, the same on every host.  [default: {DEFAULT_MASTER_PORT}]"


@click.command("node", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG,
    Option(
        ["--nnodes"], metavar="N", type=HOSTS_OF_RUN, required=True, help="Number of hosts of the run.",
        heading="Processes",
    ),
    Option(
        ["--node-rank"], metavar="R", type=click.IntRange(min=0), required=True,
        help="Number of this host, counted from 0.", heading="Processes",
    ),
    MASTER_ADDR.but(required=True, help="Address of node 0."),
    *(each.but(help=_PORT_HELP) if each.name == "master_port" else each for each in JOB),
    *HANGS, DRY_RUN, NO_CHECK, *CLAIMS, *OUTPUT, WORDS,
])  # fmt: skip
@gather
def command(*, nnodes: int, node_rank: int, request: Request) -> int:
    """Run this machine's share of a run that is started by hand on each host.

    Pass the same --nnodes, --master-addr and --master-port on every host, and the same --gpus or --nproc.
    """
    from launcher.cli.runner import run_here  # which a Tab and --help can do without

    if not request.master_addr:
        raise UsageError("--master-addr needs an address, got ''")
    if node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank}: must be below --nnodes {nnodes}")
    hosts = [name_this_machine()]
    job = read_job(request, hosts)
    job = replace(job, master_port=job.master_port or DEFAULT_MASTER_PORT)
    if nnodes > 1:  # the others may have GPUs
        job = replace(job, may_use_cpus=False)
    return run_here(job, hosts, request, (nnodes, node_rank))
