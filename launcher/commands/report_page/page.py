"""The page of a run as HTML: one file without scripts, which needs nothing else and loads nothing.

The template escapes all texts of hosts and ranks; beyond that, the page's content security policy forbids everything
but its own style sheet.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from importlib import resources
from itertools import pairwise

from markupsafe import Markup

from launcher import __version__
from launcher.commands.drawing import Chart, draw_plot, render
from launcher.commands.report_page.attempts import read_attempts, show_time, tabulate
from launcher.commands.report_page.contents import Contents
from launcher.commands.report_page.plot import Plot, show_number
from launcher.hosts.ranges import fold_names
from launcher.runs.run_json import RunJson, UsedHost
from launcher.wording import count, duration

_HEADLINES = {
    "finished": "The run has succeeded.", "stopped": "The run was stopped.", "running": "The run hasn't ended.",
    "starting": "The run hasn't started yet.", "unknown": "Only the machine that controls the run knows how it is.",
    "killed": "The launch that controlled the run was killed, so how it ended isn't known.",
    "failed": "The run has failed.",
}  # fmt: skip
_KINDS = {"finished": "good", "failed": "bad", "killed": "bad", "stopped": "warn"}
_HOST_FACTS = {
    "gpus": "GPUs", "gpu_model": "model", "driver": "driver", "python_version": "Python", "torch_version": "torch",
    "cuda_version": "CUDA", "nccl_version": "NCCL", "cpu_count": "CPUs", "interface": "data over", "python": "path",
}  # fmt: skip


def write_page(contents: Contents) -> str:
    """Return the whole page; raise ValueError or OverflowError for a time in run.json that is none."""
    record = contents.record
    zone = _find_zone(record)
    attempts = read_attempts(record, contents.runs_since, contents.made_at)
    gaps = [(before.ended_at, after.began_at) for before, after in pairwise(attempts)]
    css = resources.files("launcher.commands").joinpath("templates/style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    sections = {"Numbers of rank 0": contents.numbers, "GPUs and hosts": contents.samples}
    return render(
        "page.html",
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        style=Markup(css),  # it comes from this package
        run=contents.run,
        name=contents.name,
        state=contents.state,
        kind=contents.state if contents.state in _HEADLINES else "",
        facts=[*_find_facts(contents, zone)],
        cause=record.cause,
        words=(record.result and record.result.error) or _HEADLINES.get(contents.state, contents.doing),
        result_kind="bad" if record.cause else _KINDS.get(contents.state, ""),
        left=[*_find_left(record)],
        findings=[f"{show_time(each.at, zone)} {each.place}: {each.text}" for each in contents.findings],
        attempts=tabulate(attempts, zone),
        sections=[
            _Section(heading, [
                _Figure(plot, show_number(plot.bins[-1][2]), draw_plot(plot, contents.times, gaps, zone))
                for plot in plots if plot.bins
            ])
            for heading, plots in sections.items() if plots
        ],
        hosts=_compare_hosts(record.hosts),
        warnings=record.warnings,
        code=[(name, value) for name, value in _find_code(record) if value],
        version=__version__,
        made_at=show_time(contents.made_at, zone),
    )  # fmt: skip


def _find_zone(record: RunJson) -> tzinfo:
    """Return the time zone of the times in the logs."""
    offset = datetime.fromisoformat(f"2000-01-01T00:00:00{record.utc_offset}").utcoffset()
    return timezone(offset or timedelta())


# ---- how it ended ----------------------------------------------------------------------------------------------------


def _find_facts(contents: Contents, zone: tzinfo) -> Iterator[tuple[str, str]]:
    record, times = contents.record, contents.times
    if nodes := record.plan.nodes:
        yield "ranks", f"{sum(len(node.ranks) for node in nodes)} on {count(len(nodes), 'host')}"
    yield "began", show_time(times.begin, zone)
    yield ("took", duration(times.end - times.begin)) if record.ended_at else ("now", contents.doing)
    if record.result is not None:
        yield "exit code", str(record.result.exit_code)
    if record.user:
        yield "by", f"{record.user} on {record.launch_host}"


def _find_left(record: RunJson) -> Iterator[str]:
    """Yield what was still there when the run had ended."""
    if record.result is not None:
        for host, found in record.result.left.items():
            yield from (f"{host}: pid {pid} ({name}) is still running" for pid, name, _ in found)
        yield from (f"{host} could not be reached at the end" for host in record.result.unreachable)


# ---- plots -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Figure:
    plot: Plot
    last: str
    chart: Chart


@dataclass(frozen=True, slots=True)
class _Section:
    heading: str
    figures: Sequence[_Figure]


# ---- hosts, code -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hosts:
    """The hosts of the last attempt, equal ones in one row; a cell has its text, and whether most hosts differ."""

    heads: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, bool]]]]


def _compare_hosts(hosts: Sequence[UsedHost]) -> _Hosts | None:
    names: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        values = tuple("" if (value := getattr(host, field)) is None else str(value) for field in _HOST_FACTS)
        names.setdefault(values, []).append(host.host)
    if not names:
        return None
    each_host = [values for values, group in names.items() for _ in group]
    usual = [Counter(column).most_common(1)[0][0] for column in zip(*each_host, strict=True)]
    told = [place for place in range(len(_HOST_FACTS)) if any(values[place] for values in names)]
    heads = [*_HOST_FACTS.values()]
    return _Hosts(
        ["host" if len(hosts) == 1 else "hosts", *(heads[place] for place in told)],
        [(fold_names(group), [(values[place], values[place] != usual[place]) for place in told])
         for values, group in names.items()],
    )  # fmt: skip


def _find_code(record: RunJson) -> Iterator[tuple[str, str | None]]:
    git, code = record.git, record.code
    yield "command", record.command
    yield "directory", record.directory
    if git is not None:
        yield "commit", git.commit + (f", {count(git.changed_files or 0, 'changed file')}" if git.dirty else "")
    if code is not None:
        yield "code sent", f"{code.hash} ({count(code.files, 'file')} from {code.root})"
        yield "left out", code.left_out
    yield "repeats", record.again_of
