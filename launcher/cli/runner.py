"""Run a job on its hosts, shown on the console: what every command that starts ranks has in common."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import click

from launcher.cli.detachment import start_detached
from launcher.cli.host_choice import open_this_machine
from launcher.cli.options.command import is_chosen
from launcher.cli.options.file_owners import refuse_strange_folder
from launcher.cli.options.request import MOST_DAYS, Request
from launcher.cli.repetition import describe_origin, keep_origin, keep_version, name_continued
from launcher.clock import read_time, wall_clock
from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.job.job import Job
from launcher.job.plan import LaunchPlan, build_plan, placeholder_facts, refuse_unknown_ranks
from launcher.job.variables import refuse_rank
from launcher.output.console import Console, dated
from launcher.output.output_streams import find_streams
from launcher.output.run_folder import create_record
from launcher.runs import host_history
from launcher.runs.code_version import keep_code_version
from launcher.runs.execution import execute_job, listed
from launcher.runs.records import Result, describe_code, describe_plan
from launcher.runs.report import plan_lines
from launcher.runs.run_list import RunList
from launcher.runs.run_request import Opener, RunOptions, RunRequest
from launcher.sync.code_messages import plan_line


def run_job(
    job: Job, hosts: Sequence[Host], open_transport: Opener, request: Request, run_options: RunOptions,
    spares: Sequence[Host] = (), *, with_history: bool = False,
) -> int:  # fmt: skip
    """Run the job to its end and return the exit code; with_history: say what went wrong with its hosts in others."""
    result, _ = run_recorded(
        job, hosts, open_transport, request, run_options, spares, with_history=with_history, is_last=True
    )
    return result.exit_code


def run_recorded(
    job: Job, hosts: Sequence[Host], open_transport: Opener, request: Request, run_options: RunOptions,
    spares: Sequence[Host] = (), *, with_history: bool = False, is_last: bool = False,
) -> tuple[Result, Path]:  # fmt: skip
    """Run the job to its end; return how it ended, and its log directory.

    is_last: the command ends with it, so that Ctrl-C changes nothing any more once the result is known.
    """
    refuse_rank(os.environ)
    if not is_chosen("log_dir"):
        refuse_strange_folder(request.log_dir)
    if run_options.shown_ranks is not None:
        refuse_unknown_ranks(
            plan_unasked(job, hosts[: run_options.num_nodes], run_options.share), run_options.shown_ranks
        )
    spares = spares if run_options.restarts else ()
    detachment = start_detached(request)  # before the console starts its threads
    console = make_console([*hosts, *spares], request)
    try:
        runs, origin = RunList.of_user(os.environ), describe_origin(request)
        record = create_record(request.log_dir, datetime.now(), console.complain, origin, ids=runs)
        console.transcribe(record.transcript)
        leave = partial(detachment.leave, console, record) if detachment is not None else None
        is_needed = detachment is not None
        kept = partial(keep_version, runs, record.run_id)
        with (
            listed(runs, record, is_needed=is_needed) as entry,
            keep_origin(runs, record.run_id, job, (*hosts, *spares), request),
            keep_code_version(job, record, kept),
        ):
            names = [host.name for host in (*hosts, *spares)]
            run = RunRequest(
                name_continued(job), hosts, open_transport, record, console, run_options, spares=spares,
                incidents=host_history.describe(runs, names, time.time()) if with_history else {}, leave=leave,
            )  # fmt: skip
            end_process = os._exit if is_last else None
            running = execute_job(run, entry, variables=os.environ, notify=request.notify, end_process=end_process)
            result = asyncio.run(running)
        return result, record.folder
    finally:
        console.close()


def run_here(job: Job, hosts: Sequence[Host], request: Request, share: tuple[int, int] | None = None) -> int:
    """Run the job on this machine without SSH, or print the plan of --dry-run; return the exit code."""
    if request.dry_run:
        return print_dry_run(job, hosts, request, share)
    return run_job(job, hosts, open_this_machine(), request, replace(read_run_options(request), share=share))


def print_dry_run(job: Job, hosts: Sequence[Host], request: Request, share: tuple[int, int] | None = None) -> int:
    """Print each node's command, with named placeholders for values that only the nodes know."""
    plan = plan_unasked(job, hosts, share)
    refuse_unknown_ranks(plan, read_run_options(request).shown_ranks)
    if request.as_json:
        record = describe_plan(plan, is_dry=True, name=request.name, code=describe_code(job))
        click.echo(json.dumps(dated("plan", **record)))
        return 0
    if job.tree is not None:
        click.echo(f"# {plan_line(job.tree)}")
    for line in plan_lines(plan):
        click.echo(line)
    if job.may_use_cpus and not all(node.nproc for node in plan.nodes):
        click.echo("# without GPUs on the hosts: 1 process per host on CPUs, as with --nproc 1 --cpu")
    return 0


def read_run_options(request: Request) -> RunOptions:
    """Return the options of a run, as far as the request determines them."""
    if request.until is not None and request.for_s is not None:
        raise UsageError("--until and --for are both given", "pass only one of them")
    return RunOptions(
        is_dry=request.dry_run, is_verbose=request.verbose, with_checks=not request.no_check,
        shown_ranks=read_ranks(request.ranks),
        restarts=request.restarts, progress_dir=request.progress_dir or None, min_nodes=request.min_nodes,
        shares=request.share,
        queue_s=request.queue if request.queue != "" else math.inf,
        until_at=read_until(request.until), for_s=request.for_s,
    )  # fmt: skip


def read_until(text: str | None) -> float | None:
    """Return the time of --until in wall-clock seconds, which mean the same on every host."""
    if text is None:
        return None
    now = wall_clock()
    try:
        at = read_time(text, now)
    except (ValueError, OverflowError):
        said = f'--until: must be a time such as 18:00 or "2026-11-27 18:00", got {text!r}'
        raise UsageError(said, "for a duration, pass --for, such as --for 6h") from None
    if at <= now:
        said = f"--until {text}: that time has passed; it is {datetime.fromtimestamp(now):%Y-%m-%d %H:%M} now"
        raise UsageError(said, "pass a later one; 18:00 without a date is the next 18:00")
    if at > now + MOST_DAYS * 86400:
        raise UsageError(f"--until {text}: must be within {MOST_DAYS} days", "omit --until to run until the end")
    return at


def plan_unasked(job: Job, hosts: Sequence[Host], share: tuple[int, int] | None = None) -> LaunchPlan:
    """Return the plan as known before any host is contacted, with named placeholders for the rest."""
    return build_plan(job, hosts, [placeholder_facts(job, host) for host in hosts], share)


def make_console(hosts: Sequence[Host], request: Request) -> Console:
    """Return the console that the request describes."""
    streams = find_streams(os.environ)
    return Console(hosts, streams, is_quiet=request.quiet, as_json=request.as_json, ranks=read_ranks(request.ranks))


def read_ranks(text: str | None) -> frozenset[int] | None:
    """Return the ranks of --ranks."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--ranks: must be numbers separated by commas, got {text!r}", "write them as --ranks 0,8")
    return frozenset(map(int, words))
