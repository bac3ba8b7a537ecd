"""The page of a run as HTML: one file without scripts, which needs nothing else and loads nothing.

The template escapes all texts of hosts and ranks, and cleans them of control characters; beyond that, the page's
content security policy forbids everything but its own style sheet. Where something goes in a plot is decided here.
"""

from __future__ import annotations

import base64
import hashlib
import math
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from importlib import resources
from itertools import pairwise
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from launcher import __version__
from launcher.cli.report_page.contents import Contents
from launcher.cli.report_page.plots import Bin, Plot, Point, TimeRange
from launcher.escapes import without_controls
from launcher.hosts.ranges import fold_names
from launcher.runs.run_json import RunJson, UsedHost
from launcher.wording import count, duration

_ENDS = {  # how the card of the result looks, and what it says without a cause
    "finished": ("good", "The run has succeeded."), "failed": ("bad", "The run has failed."),
    "killed": ("bad", "The launch that controlled the run was killed, so how it ended isn't known."),
    "stopped": ("warn", "The run was stopped."), "running": ("", "The run hasn't ended."),
    "starting": ("", "The run hasn't started yet."),
    "unknown": ("", "Only the machine that controls the run knows how it is."),
}  # fmt: skip
_HOST_FACTS = {
    "gpus": "GPUs", "gpu_model": "model", "driver": "driver", "python_version": "Python", "torch_version": "torch",
    "cuda_version": "CUDA", "nccl_version": "NCCL", "cpu_count": "CPUs", "interface": "data over", "python": "path",
}  # fmt: skip
_MOST_ATTEMPTS = 200  # in the table, the last ones
_MOST_LETTERS = 20_000  # of one text

WIDTH, HEIGHT = 380, 160  # of a plot, in its own units
RIGHT, BOTTOM = WIDTH - 12, HEIGHT - 20  # of its axes
_TOP = 8
_LETTER = 5.6  # how wide one is
_MOST_X_TICKS, _MOST_Y_TICKS = 5, 4
# Between two ticks: seconds, and what is shown of the time.
_STEPS = (
    *((seconds, "%H:%M:%S") for seconds in (1, 2, 5, 10, 15, 30)),
    *((60 * minutes, "%H:%M") for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720)),
    *((86400 * days, "%b %d") for days in (1, 2, 5, 10, 30, 60, 180, 360)),
)

_Tick = tuple[float, str]
_Point = TypeVar("_Point", Point, Bin)


def write_page(contents: Contents) -> str:
    """Return the whole page; raise ValueError or OverflowError for a time in run.json that is none."""
    record, state = contents.record, contents.state
    offset = datetime.fromisoformat(f"2000-01-01T00:00:00{record.utc_offset}").utcoffset()
    zone = timezone(offset or timedelta())  # of the times in the logs
    spans = [(_read_time(each.began_at), _read_time(each.ended_at)) for each in record.attempts]
    spans += [(contents.runs_since, contents.made_at)] if contents.runs_since is not None else []
    gaps = [(before[1], after[0]) for before, after in pairwise(spans)]
    css = resources.files("launcher.cli.report_page").joinpath("templates/style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    kind, words = _ENDS.get(state, ("", contents.doing))
    plots = {"Numbers of rank 0": contents.numbers, "GPUs and hosts": contents.samples}
    environment = Environment(
        loader=PackageLoader("launcher.cli.report_page"), autoescape=True, finalize=_clean, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["count"] = count
    return environment.get_template("page.html").render(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        style=Markup(css),  # it comes from this package
        run=contents.run,
        name=contents.name,
        state=state,
        kind=state if state in _ENDS else "",
        facts=[*_find_facts(contents, zone)],
        cause=record.cause,
        words=(record.result and record.result.error) or words,
        result_kind="bad" if record.cause else kind,
        left=[*_find_left(record)],
        findings=[f"{_show_time(at, zone)} {text}" for at, text in contents.findings],
        attempts=[*_describe_attempts(record, spans, zone)],
        first_attempt=max(0, len(spans) - _MOST_ATTEMPTS),
        sections=[
            (heading, [draw_plot(plot, contents.times, gaps, zone) for plot in each if plot.bins])
            for heading, each in plots.items() if each
        ],
        width=WIDTH, height=HEIGHT, right=RIGHT, bottom=BOTTOM,
        hosts=_compare_hosts(record.hosts),
        warnings=record.warnings,
        code=[(name, value) for name, value in _find_code(record) if value],
        version=__version__,
        made_at=_show_time(contents.made_at, zone),
    )  # fmt: skip


def _clean(value: object) -> object:
    """Return what is written of a value: text without control characters, and not without end."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return without_controls(value if len(value) <= _MOST_LETTERS else f"{value[:_MOST_LETTERS]}...")


def _read_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _show_time(at: float, zone: tzinfo) -> str:
    """Return a time as the logs have it, to the second."""
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S}"


# ---- what is told in words -------------------------------------------------------------------------------------------


def _find_facts(contents: Contents, zone: tzinfo) -> Iterator[tuple[str, str]]:
    record, times = contents.record, contents.times
    if nodes := record.plan.nodes:
        yield "ranks", f"{sum(len(node.ranks) for node in nodes)} on {count(len(nodes), 'host')}"
    yield "began", _show_time(times.begin, zone)
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


def _describe_attempts(
    record: RunJson, spans: Sequence[tuple[float, float]], zone: tzinfo
) -> Iterator[tuple[str, str, str, str, int, str]]:
    """Yield when each attempt began, what it took, how it ended, what followed, its hosts, and if it got further."""
    for (began_at, ended_at), each in zip(spans, record.attempts, strict=False):
        why = each.result.reason
        ended = f"{each.outcome}: {why}" if why else each.outcome
        took, further = duration(ended_at - began_at), "yes" if each.progress else ""
        yield _show_time(began_at, zone), took, ended, each.then or "", len(each.hosts), further
    for began_at, now in spans[len(record.attempts) :]:
        yield _show_time(began_at, zone), duration(now - began_at), "not yet", "", len(record.plan.nodes), ""


def _compare_hosts(
    hosts: Sequence[UsedHost],
) -> tuple[Sequence[str], Sequence[tuple[str, Sequence[tuple[str, bool]]]]]:
    """Return heads and rows of the hosts, equal ones in one row; a cell has its text, and whether most hosts differ."""
    names: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        values = tuple("" if (value := getattr(host, field)) is None else str(value) for field in _HOST_FACTS)
        names.setdefault(values, []).append(host.host)
    each_host = [values for values, group in names.items() for _ in group]
    usual = [Counter(column).most_common(1)[0][0] for column in zip(*each_host, strict=True)]
    told = [place for place in range(len(_HOST_FACTS)) if any(values[place] for values in names)]
    heads = [*_HOST_FACTS.values()]
    return (
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


# ---- plots -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot as its template draws it."""

    plot: Plot
    title: str  # for whoever can't see it
    last: str
    left: float
    shapes: Sequence[tuple[str, str]]  # class and points of each: `band`, its line `line s0`, and those over it
    gaps: Sequence[tuple[float, float]]  # left and width
    x_ticks: Sequence[_Tick]
    y_ticks: Sequence[_Tick]


def draw_plot(plot: Plot, x: TimeRange, gaps: Sequence[tuple[float, float]], zone: tzinfo) -> Chart:
    """Return a plot laid out, its lines interrupted by gaps; x: all of the axis."""
    values = [value for _, *each in plot.bins for value in each]
    values += [value for line in plot.lines for _, value in line.points]
    low, high = _find_range(min(values), max(values))
    y_steps = find_steps(low, high, _MOST_Y_TICKS)
    left = max(len(show_number(value)) for value in y_steps) * _LETTER + 8
    x_scale = (RIGHT - left) / max(x.end - x.begin, 1.0)
    y_scale = (BOTTOM - _TOP) / (high - low)

    def place(at: float) -> float:
        return left + (at - x.begin) * x_scale

    def join(points: Iterable[Point]) -> str:
        return " ".join(f"{place(at):.1f},{_TOP + (high - value) * y_scale:.1f}" for at, value in points)

    def draw_line(series: int, points: Sequence[Point]) -> tuple[str, str]:
        # The round ends of a line that goes nowhere are a dot.
        return f"line s{series}", join([*points, *points] if len(points) == 1 else points)

    shapes = []
    for part in _split(plot.bins, gaps):
        if any(lowest != highest for _, lowest, _, highest in part):
            around = [*((at, highest) for at, _, _, highest in part), *((at, lowest) for at, lowest, *_ in part[::-1])]
            shapes.append(("band", join(around)))
        shapes.append(draw_line(0, [(at, middle) for at, _, middle, _ in part]))
    for series, line in enumerate(plot.lines, 1):
        shapes += [draw_line(series, part) for part in _split(line.points, gaps)]
    first, last = (show_number(plot.bins[place][2]) for place in (0, -1))
    return Chart(
        plot, f"{plot.title}: {count(len(plot.bins), 'point')} from {first} to {last}", last, left, shapes,
        [(place(begin), (end - begin) * x_scale) for begin, end in gaps],
        [(place(at), text) for at, text in find_times(x, zone)],
        [(_TOP + (high - value) * y_scale, show_number(value)) for value in y_steps],
    )  # fmt: skip


def show_number(value: float) -> str:
    """Return a value as `12,034`, `0.0821` or `3e-05`."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _find_range(low: float, high: float) -> tuple[float, float]:
    """Return what an axis shows: a little more than its values, from 0 if they come near it."""
    if low == high:
        around = abs(low) / 10 or 1.0
        return low - around, high + around
    margin = (high - low) * 0.05
    return 0.0 if 0 <= low < 0.4 * high else low - margin, high + margin


def find_steps(low: float, high: float, most: int) -> list[float]:
    """Return round numbers between two others, in equal steps."""
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if span <= power * factor * most)
    first = math.ceil(low / step)
    return [number * step for number in range(first, first + most + 1) if low <= number * step <= high]


def find_times(times: TimeRange, zone: tzinfo) -> list[_Tick]:
    """Return round times of a zone in this range, each with its text."""
    span = times.end - times.begin
    step, form = next(((step, form) for step, form in _STEPS if span / step <= _MOST_X_TICKS), _STEPS[-1])
    offset = datetime.fromtimestamp(times.begin, zone).utcoffset()
    ahead_s = offset.total_seconds() if offset is not None else 0.0
    first = -(-(times.begin + ahead_s) // step) * step - ahead_s
    found = [first + number * step for number in range(_MOST_X_TICKS + 1) if first + number * step <= times.end]
    return [(at, f"{datetime.fromtimestamp(at, zone):{form}}") for at in found]


def _split(points: Iterable[_Point], gaps: Sequence[tuple[float, float]]) -> Collection[Sequence[_Point]]:
    """Return the points before, between and after the gaps: nothing was measured from one part to the next."""
    ends = [end for _, end in gaps]
    parts: dict[int, list[_Point]] = {}
    for point in points:
        parts.setdefault(bisect(ends, point[0]), []).append(point)
    return parts.values()
