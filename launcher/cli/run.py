"""launch [OPTIONS] [SCRIPT [ARGS]...]: the default command."""

from __future__ import annotations

from dataclasses import replace

import click

from launcher.cli.host_choice import (
    choose_controller,
    choose_way,
    make_opener,
    read_lineup,
    refuse_spares,
)
from launcher.cli.job_request import read_job
from launcher.cli.options.command import Command, gather
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import (
    CHECK,
    CLAIMS,
    CONTROLLER,
    DETACH,
    DRY_RUN,
    HANGS,
    HOSTS,
    JOB,
    MASTER_ADDR,
    NO_CHECK,
    NOTIFY,
    OUTPUT,
    REACH,
    RESTARTS,
    SPARES,
    SYNC,
    WORDS,
    Request,
)
from launcher.cli.repetition import tell_changes
from launcher.cli.tree_request import add_tree
from launcher.errors import UsageError
from launcher.hosts.ranges import fold_names


@click.command("run", cls=Command, context_settings={"allow_interspersed_args": False}, params=[
    CONFIG, *HOSTS, *REACH, *SYNC, MASTER_ADDR, *JOB, *HANGS, *RESTARTS, *SPARES,
    DRY_RUN.but(help="Print each host's command; contact no host."), CHECK, NO_CHECK, *CLAIMS, *OUTPUT, DETACH,
    CONTROLLER, NOTIFY, WORDS,
])  # fmt: skip
@gather
def command(*, request: Request) -> int:
    """Run SCRIPT on every host under torchrun, one process per GPU.

    Everything after SCRIPT is passed to it unchanged. Without SCRIPT, the built-in trainer runs. In a Slurm job, its
    hosts are the default.
    """
    hosts, spares = read_lineup(request)
    job = add_tree(read_job(request, (*hosts, *spares)), request)
    refuse_spares(job, hosts[: request.num_nodes], spares, request)
    if job.master_addr is not None and len(hosts) > len(hosts[: request.num_nodes]):
        text = "--master-addr can't be given with --queue and --num-nodes: another host may become node 0"
        raise UsageError(text, "set addr= in a hostfile instead")
    tell_changes((*hosts, *spares), job)
    chosen, settings = choose_way(request.reach, (*hosts, *spares))
    if request.queue is not None and chosen.name == "srun":
        raise UsageError("--queue works only outside of Slurm jobs, whose GPUs nobody else has", "omit it")
    if request.dry_run and not request.check:
        from launcher.cli.runner import print_dry_run

        code = print_dry_run(job, hosts[: request.num_nodes], request)
        if spares and not request.as_json:
            click.echo(f"# {'spare' if len(spares) == 1 else 'spares'}: {fold_names(host.name for host in spares)}")
        return code
    if request.check and not request.dry_run:
        raise UsageError("--check works only with --dry-run", "add --dry-run, or run launch check to compare the hosts")
    open_transport = make_opener(chosen, settings, python=job.python)  # connects during the imports
    from launcher.cli.runner import read_run_options, run_job

    run_options = replace(read_run_options(request), num_nodes=request.num_nodes)
    controller = choose_controller(request, hosts, spares)
    if controller is not None and not request.dry_run:
        from launcher.cli.remote_detachment import run_planted

        return run_planted(job, hosts, spares, controller, open_transport, request, run_options, settings)
    return run_job(job, hosts, open_transport, request, run_options, spares, with_history=True)
