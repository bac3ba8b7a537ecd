"""`launch check`: run every check without a run, and return what was found as a table and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from launcher.errors import EXIT_PREFLIGHT, EXIT_UNREACHABLE
from launcher.hosts.ranges import fold_names
from launcher.hosts.unreachable import fold_failures
from launcher.job.job import Job
from launcher.preflight.findings import PROBLEM, WARNING
from launcher.preflight.summary import common_traits
from launcher.runs.inspection import Inspection, Inspector
from launcher.session.session import Session
from launcher.sync.contents import Contents
from launcher.wording import count, duration


async def check(
    job: Job, session: Session, pythons: Sequence[str], incidents: Mapping[str, str], contents: Contents | None = None
) -> Inspection:
    """Inspect all hosts and disconnect; at a signal, report which have failed so far and raise Interrupted.

    incidents: what went wrong with hosts in earlier runs; contents: of the job's tree, if it has one.
    """
    async with session.asking():
        inspector = Inspector(job, session, pythons, with_checks=True, incidents=incidents, contents=contents)
        return await inspector.ask()


def exit_code(inspection: Inspection) -> int:
    """Return the exit code; a host that can't be reached takes precedence over findings."""
    return EXIT_UNREACHABLE if inspection.failures else EXIT_PREFLIGHT if inspection.problems else 0


def table(job: Job, inspection: Inspection) -> list[str]:
    """Return what all hosts share, then each finding with its hosts and, below it, its remedy.

    Nothing is wrapped: users copy paths and commands, and the terminal wraps those better.
    """
    traits = common_traits(job, inspection.facts)
    rows = [("", "on all", ", ".join(traits), "")] if traits else []
    rows += [("!", fold_names(names), text, fix) for names, text, fix in fold_failures(inspection.failures)]
    rows += [
        ("!" if finding.severity is PROBLEM else "", fold_names(finding.hosts), finding.text, finding.fix)
        for finding in inspection.findings
    ]
    name_width = max((len(name) for _, name, _, _ in rows), default=0)
    lines = []
    for mark, name, text, fix in rows:
        start = f"{mark:1} {name:<{name_width}}  "
        lines += [start + text, *([f"{'':{len(start)}}fix: {fix}"] if fix else [])]
    answered, asked = len(inspection.hosts), len(inspection.hosts) + len(inspection.failures)
    heading = (
        f"{count(asked, 'host')} responded" if answered == asked else f"{answered} of {count(asked, 'host')} responded"
    )
    return [f"{heading} ({duration(inspection.seconds)})", *lines, _verdict(inspection)]


def _verdict(inspection: Inspection) -> str:
    broken = len(inspection.problems) + len(inspection.failures)
    warnings = len(inspection.of(WARNING))
    verdict = f"{count(broken, 'problem')} would break a run" if broken else "nothing would break a run"
    return verdict + (f", {count(warnings, 'warning')}" if warnings else "")


def as_record(job: Job, inspection: Inspection) -> dict[str, Any]:
    """Return the same as JSON values, with all facts of each host."""
    return {
        "exit_code": exit_code(inspection),
        "on_all": common_traits(job, inspection.facts),
        "findings": [finding.as_record() for finding in inspection.findings],
        "unreachable": [asdict(failure) for failure in inspection.failures],
        "hosts": {host.name: asdict(fact) for host, fact in zip(inspection.hosts, inspection.facts, strict=True)},
    }
