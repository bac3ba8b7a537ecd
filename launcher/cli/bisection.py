"""After `test-distributed` failed on several hosts: find the hosts that fail, with runs on fewer hosts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from launcher.cli.error_lines import tell
from launcher.diagnosis.failure import FailureKind
from launcher.errors import EXIT_SIGNAL_BASE
from launcher.hosts.host import Host
from launcher.job.job import Job
from launcher.output.console import dated
from launcher.runs.bisection import Group
from launcher.runs.culprits import SHORT, CulpritSearch, NoVerdictError
from launcher.runs.result import Result
from launcher.runs.run_request import Opener
from launcher.session.signals import Interrupted


def is_to_bisect(result: Result) -> bool:
    """Tell whether ranks failed for a reason that names no host: a lost host is known, and Ctrl-C ends the search."""
    if result.interrupted_by is not None or result.cause is None:
        return False
    return result.cause.failure.kind in (FailureKind.RANK, FailureKind.TORCHRUN)


def print_culprits(
    make_job: Callable[..., Job],
    hosts: Sequence[Host],
    open_transport: Opener,
    folder: Path,
    *,
    as_json: bool,
) -> None:
    """Run on ever fewer hosts, print how each run ended and then the verdict; exit at a signal."""
    tell(f"test-distributed: looking for the failing hosts; logs in {folder}")

    def make_short(group: Group) -> Job:
        return make_job(group, *SHORT)

    try:
        verdict = asyncio.run(CulpritSearch(make_short, hosts, open_transport, folder, _tell_test).find())
    except Interrupted as stop:
        tell("test-distributed: stopped, no verdict")
        raise click.exceptions.Exit(EXIT_SIGNAL_BASE + stop.number) from None
    except NoVerdictError as error:
        tell(f"test-distributed: no verdict: {error}")
        return
    if as_json:
        click.echo(json.dumps(dated("verdict", **asdict(verdict))))
        return
    for line in verdict.lines():
        click.echo(f"verdict: {line}")


def _tell_test(what: str, reason: str) -> None:
    tell(f"testing {what}: " + (f"FAILED ({reason})" if reason else "ok"))
