"""Find slow GPUs before a run: put all devices of its hosts under load at once, and compare what they do.

The ranks of test-distributed do that, in a run of its own that claims its GPUs as any other; nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from launcher.errors import ChecksFailed, HostFailure, HostsUnreachable, LauncherError
from launcher.forms import FormError, load_json, reader_of
from launcher.hosts.host import Host
from launcher.job.job import Job
from launcher.output.console import MuteConsole
from launcher.output.run_folder import create_record
from launcher.preflight import load
from launcher.preflight.findings import PROBLEM, WARNING, CheckedHost, Finding
from launcher.preflight.load import MeasuredLoad
from launcher.runs.inspection import Inspection
from launcher.runs.report import describe_cause
from launcher.runs.run import Run
from launcher.runs.run_request import Opener, RunOptions, RunRequest
from launcher.session.signals import Interrupted
from launcher.wording import count, span

NAME = "gpus-under-load"  # of the run, as those see it who ask for claims meanwhile
STOP_S = 2.0  # it has nothing to save
RESULTS = Path("files", "node_0", "results.json")  # in the directory of a run's logs


async def add_load_test(
    inspection: Inspection, job: Job, hosts: Sequence[Host], open_transport: Opener, load_s: float,
    say: Callable[[str], object],
) -> Inspection:  # fmt: skip
    """Return the inspection of these hosts with what they did under load; raise Interrupted for a signal.

    Nothing is started if something else would break a run, or if others use the GPUs: they would disturb each other.
    """
    nodes = [CheckedHost(job, host, fact) for host, fact in zip(inspection.hosts, inspection.facts, strict=True)]
    broken = len(inspection.problems) + len(inspection.failures)
    obstacles = load.find_users(nodes)
    if broken:
        text = f"not tested under load: {count(broken, 'problem')} would break a run"
        obstacles = [Finding(tuple(host.name for host in hosts), text, "", WARNING)]
    if obstacles:
        return _add(inspection, obstacles)
    say(f"launch: testing all hosts under load for {span(load_s)}")
    failures: list[HostFailure] = []
    loads: tuple[MeasuredLoad, ...] = ()
    try:
        loads = await _run(job, hosts, open_transport, load_s)
        findings = load.check(loads, [host.name for host in hosts])
    except HostsUnreachable as error:
        findings, failures = [], error.failures
    except LauncherError as error:
        names = error.hosts if isinstance(error, ChecksFailed) else ()
        findings = [
            Finding(names or tuple(host.name for host in hosts), f"under load: {error.message}", error.fix, PROBLEM)
        ]
    return replace(_add(inspection, findings), failures=(*inspection.failures, *failures), loads=loads)


def _add(inspection: Inspection, findings: Sequence[Finding]) -> Inspection:
    found = sorted([*inspection.findings, *findings], key=lambda finding: finding.severity.rank)
    return replace(inspection, findings=tuple(found))


async def _run(job: Job, hosts: Sequence[Host], open_transport: Opener, load_s: float) -> tuple[MeasuredLoad, ...]:
    names = [host.name for host in hosts]
    job = job.testing(names, "--only", "load", "--load", f"{load_s:g}")
    job = replace(job, timeouts=replace(job.timeouts, stop_timeout_s=STOP_S))
    with TemporaryDirectory(prefix=f"{NAME}-") as folder:
        record = create_record(Path(folder), datetime.now(), lambda path, error: None, {"name": NAME})
        request = RunRequest(job, hosts, open_transport, record, MuteConsole(), RunOptions(with_checks=False))
        result = await Run(request).execute()
        if result.interrupted_by is not None:
            raise Interrupted(result.interrupted_by)
        if (cause := result.cause) is not None:
            fix = cause.explanation.fix if cause.explanation is not None else ""
            raise ChecksFailed(describe_cause(cause), fix, hosts=(cause.failure.host,))
        return read_loads(record.folder, len(hosts))


def read_loads(folder: Path, hosts: int) -> tuple[MeasuredLoad, ...]:
    """Return what rank 0 of a run on so many hosts has sent to its logs; raise LauncherError if it is malformed."""
    path = folder / RESULTS
    try:
        loads: tuple[MeasuredLoad, ...] = reader_of(tuple[MeasuredLoad, ...])(load_json(path.read_bytes())["loads"])
        if any(each.node >= hosts for each in loads):
            raise FormError(f"more than {count(hosts, 'host')}")
        return loads
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise LauncherError(f"{path}: can't be read: {error!r}") from None
