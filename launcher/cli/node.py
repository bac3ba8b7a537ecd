"""launch node: this machine's share of a run that is started by hand, where no machine can log in to the others."""

from __future__ import annotations

import socket
from dataclasses import replace

import click

from launcher.cli.host_choice import open_this_machine
from launcher.cli.job_request import read_job
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.table import DRY_RUN, HANGS, JOB, MASTER_ADDR, NO_CHECK, OUTPUT, WORDS, Option
from launcher.cli.options.values import JobRequest, OutputOptions, gather
from launcher.errors import UsageError

DEFAULT_MASTER_PORT = 29500  # torchrun's own: every node must name the same


@click.command("node", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG,
    Option(
        ["--nnodes"], metavar="N", type=click.IntRange(min=1), required=True, help="Number of nodes of the run.",
        heading="Processes",
    ),
    Option(
        ["--node-rank"], metavar="R", type=click.IntRange(min=0), required=True,
        help="Number of this node, counted from 0.", heading="Processes",
    ),
    MASTER_ADDR.but(required=True, help="Address of node 0."),
    *JOB, *HANGS, DRY_RUN, NO_CHECK, *OUTPUT, WORDS,
])  # fmt: skip
@gather
def command(
    *, words: tuple[str, ...], nnodes: int, node_rank: int, master_addr: str, dry_run: bool, no_check: bool,
    request: JobRequest, output: OutputOptions,
) -> int:  # fmt: skip
    """Run this machine's share of a run that is started by hand on each node.

    Pass the same --nnodes, --gpus or --nproc, --master-addr and --master-port
    on every node. The default port is 29500.
    """
    from launcher.hosts.host import Host

    if not master_addr:
        raise UsageError("--master-addr needs an address, got ''")
    if node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank}: must be below --nnodes {nnodes}")
    host = Host(socket.gethostname().split(".")[0], source="this machine")
    job = read_job(request, words, [host])
    job = replace(job, master_port=job.master_port or DEFAULT_MASTER_PORT)
    if nnodes > 1:  # the others may have GPUs
        job = replace(job, may_use_cpus=False)
    share = (nnodes, node_rank)
    if dry_run:
        from launcher.cli.run import print_dry_run

        return print_dry_run(job, [host], output, share)
    open_transport = open_this_machine()
    from launcher.cli.runner import read_run_options, run_job

    run_options = replace(read_run_options(output, with_checks=not no_check), share=share)
    return run_job(job, [host], open_transport, output, run_options)
