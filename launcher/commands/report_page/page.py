"""The page of a run as HTML: one file without scripts, which needs nothing else and loads nothing.

All texts of hosts and ranks pass through `markup.element`, which escapes them; beyond that, the page's content security
policy forbids everything but its own style sheet.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from importlib import resources
from typing import Any

from launcher import __version__
from launcher.commands.plots import can_draw
from launcher.commands.report_page.contents import Contents
from launcher.commands.report_page.drawing import COLORS, draw
from launcher.commands.report_page.markup import Html, draw_swatch, element, page, style, table
from launcher.commands.report_page.plot import Bin, Plot, TimeRange, show_number
from launcher.commands.report_page.timeline import Attempt, name_culprit, read_attempts, show_time, write_attempts
from launcher.hosts.ranges import fold_names
from launcher.wording import count, duration

_MOST_ROWS = 24  # of the numbers of a plot
_MOST_LINES_TO_PASTE = 64
_SHORT_LINES = 2  # to paste, that are shown at once
_HEADLINES = {
    "finished": "The run has succeeded.", "stopped": "The run was stopped.", "running": "The run hasn't ended.",
    "starting": "The run hasn't started yet.", "unknown": "Only the machine that controls the run knows how it is.",
    "killed": "The launch that controlled the run was killed, so how it ended isn't known.",
    "failed": "The run has failed.",
}  # fmt: skip
_HOST_FACTS = {
    "gpus": "GPUs", "gpu_model": "model", "driver": "driver", "python_version": "Python", "torch_version": "torch",
    "cuda_version": "CUDA", "nccl_version": "NCCL", "cpu_count": "CPUs", "interface": "data over", "python": "path",
}  # fmt: skip


def write_page(contents: Contents) -> str:
    """Return the whole page; raise TypeError, KeyError, ValueError or AttributeError if run.json has another form."""
    record = contents.record
    view = _View(_find_zone(record), contents.times, read_attempts(record, contents.runs_since, contents.made_at))
    title = f"{contents.run} ({contents.name})" if contents.name else contents.run
    css = resources.files(__package__).joinpath("style.css").read_text("utf-8")
    return page(
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_write_policy(css)),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("link", rel="icon", href="data:,"),
            element("title", f"{contents.state}: {title}"),
            style(css),
        ),
        element(
            "body",
            [*_write_header(contents, view)],
            [*_write_cause(contents)],
            [*_write_findings(contents, view)],
            [*write_attempts(view.attempts, view.times, view.zone)],
            [*_write_plots("Numbers of rank 0", contents.numbers, view)],
            [*_write_plots("GPUs and hosts", contents.samples, view)],
            [*_write_hosts(record)],
            [*_write_warnings(record)],
            [*_write_code(record)],
            [*_write_lines_to_paste(record)],
            element("footer", f"launch report {contents.run}, version {__version__}, {view.show(contents.made_at)}"),
        ),
    )  # fmt: skip


def _write_policy(css: str) -> str:
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _find_zone(record: Mapping[str, Any]) -> tzinfo:
    """Return the time zone of the times in the logs."""
    offset = datetime.fromisoformat(f"2000-01-01T00:00:00{record.get('utc_offset') or '+00:00'}").utcoffset()
    return timezone(offset or timedelta())


@dataclass(frozen=True, slots=True)
class _View:
    """What all parts of the page share."""

    zone: tzinfo
    times: TimeRange
    attempts: Sequence[Attempt]

    def show(self, at: float) -> str:
        """Return a time as the logs have it, to the second."""
        return show_time(at, self.zone)


# ---- how it ended ----------------------------------------------------------------------------------------------------


def _write_header(contents: Contents, view: _View) -> Iterator[Html]:
    record, plan = contents.record, contents.record.get("plan") or {}
    name = element("small", f" {contents.name}") if contents.name else None
    nodes = plan.get("nodes") or []
    ranks = f"{count(sum(node['nproc'] for node in nodes), 'rank')} on {count(len(nodes), 'host')}" if nodes else ""
    result = record.get("result") or {}
    ended_at = record.get("ended_at")
    took = f"took {duration(view.times.end - view.times.begin)}" if ended_at else f"{contents.doing}"
    code = f"exit code {result['exit_code']}" if "exit_code" in result else ""
    who = f"by {record.get('user')} on {record.get('launch_host')}" if record.get("user") else ""
    yield element("span", contents.state, class_=f"state {contents.state if contents.state in _HEADLINES else ''}")
    yield element("h1", f"Run {contents.run}", name)
    yield element("p", " · ".join(filter(None, [ranks, f"began {view.show(view.times.begin)}", took, code, who])),
                  class_="soft")  # fmt: skip


def _write_cause(contents: Contents) -> Iterator[Html]:
    """Yield the result and its cause."""
    result = contents.record.get("result") or {}
    cause = result.get("cause")
    left = [f"{host}: pid {pid} ({name}) is still running" for host, found in (result.get("left") or {}).items()
            for pid, name, _ in found]  # fmt: skip
    left += [f"{host} could not be reached at the end" for host in result.get("unreachable") or {}]
    tail = element("ul", [element("li", line) for line in left]) if left else None
    if not cause:
        words = result.get("error") or _HEADLINES.get(contents.state, contents.doing)
        kind = {"finished": " good", "failed": " bad", "killed": " bad", "stopped": " warn"}.get(contents.state, "")
        yield element("section", element("strong", str(words)), tail, class_=f"card{kind}")
        return
    known = cause.get("explanation")
    traceback = [str(line) for line in cause.get("traceback") or []]
    last_lines = contents.last_lines or [str(line) for line in cause.get("last_lines") or []]
    yield element(
        "section",
        element("strong", f"{name_culprit(cause)}: {cause.get('text')}"),
        element("pre", "\n".join(traceback)) if traceback else None,
        element("p", element("b", "why: "), str(known["cause"])) if known else None,
        element("p", element("b", "fix: "), str(known["fix"])) if known else None,
        tail,
        element("details", element("summary", f"Last {count(len(last_lines), 'line')} of {name_culprit(cause)}"),
                element("pre", "\n".join(last_lines)), open_=None if traceback else "") if last_lines else None,
        class_="card bad",
    )  # fmt: skip


def _write_findings(contents: Contents, view: _View) -> Iterator[Html]:
    if contents.findings:
        lines = [f"{view.show(each.at)} {each.place}: {each.text}" for each in contents.findings]
        items = element("ul", [element("li", line) for line in lines])
        yield element("section", element("strong", "What stood out"), items, class_="card warn")


# ---- plots -----------------------------------------------------------------------------------------------------------


def _write_plots(heading: str, plots: Sequence[Plot], view: _View) -> Iterator[Html]:
    if not plots:
        return
    yield element("h2", heading)
    can = can_draw()
    if not can:
        yield element(
            "p", "matplotlib isn't installed where this page was made, so its plots are tables. For plots, run ",
            element("code", "pip install 'ssh-torch-launcher[plot]'"), " and make it again.", class_="soft",
        )  # fmt: skip
    marks = [attempt.began_at for attempt in view.attempts[1:]]
    yield element("div", [_write_figure(plot, view, marks, can=can) for plot in plots if plot.bins], class_="plots")


def _write_figure(plot: Plot, view: _View, marks: Sequence[float], *, can: bool) -> Html:
    legend = [
        element("li", draw_swatch(None, color), line.name)
        for line, color in zip(plot.lines, COLORS[1:], strict=False)
    ]  # fmt: skip
    return element(
        "figure",
        element(
            "figcaption",
            element("b", plot.title),
            element("span", f"last {show_number(plot.bins[-1][2])}", class_="soft"),
        ),
        draw(plot, view.times, marks, view.zone) if can else None,
        _write_steps(plot) if can and plot.by_step else None,
        element("ul", element("li", plot.note) if plot.note else None, legend, class_="legend"),
        element("details", element("summary", "Numbers"), _write_numbers(plot, view), open_=None if can else ""),
    )


def _write_steps(plot: Plot) -> Html:
    """Return the same numbers by step, to be opened."""
    steps = TimeRange(plot.by_step[0][0], plot.by_step[-1][0])
    return element(
        "details", element("summary", "By step"), draw(Plot(plot.title, plot.by_step), steps, (), None),
    )  # fmt: skip


def _write_numbers(plot: Plot, view: _View) -> Html:
    """Return some of the numbers of a plot, from the first to the last."""
    last = len(plot.bins) - 1
    rows = min(len(plot.bins), _MOST_ROWS)
    chosen = [plot.bins[round(row * last / max(1, rows - 1))] for row in range(rows)]
    head = ("time", "lowest", "middle", "highest", *(line.name for line in plot.lines))
    return table(head, [_write_row(bin_, plot, view) for bin_ in chosen])


def _write_row(bin_: Bin, plot: Plot, view: _View) -> list[Html]:
    at, *values = bin_
    values += [value for line in plot.lines for value in _find_value(line.points, at)]
    return [element("td", text) for text in (view.show(at), *map(show_number, values))]


def _find_value(points: Sequence[tuple[float, float]], at: float) -> list[float]:
    """Return the last of these values until a time."""
    place = bisect([each for each, _ in points], at)
    return [points[max(0, place - 1)][1]] if points else []


# ---- hosts, code, commands -------------------------------------------------------------------------------------------


def _write_hosts(record: Mapping[str, Any]) -> Iterator[Html]:
    """Yield the hosts of the last attempt, equal ones in one row, with what differs marked."""
    hosts = record.get("hosts") or []
    names: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        values = tuple("" if host.get(field) is None else str(host[field]) for field in _HOST_FACTS)
        names.setdefault(values, []).append(str(host["host"]))
    if not names:
        return
    yield element("h2", "Hosts")
    each_host = [values for values, group in names.items() for _ in group]
    usual = [Counter(column).most_common(1)[0][0] for column in zip(*each_host, strict=True)]
    told = [place for place in range(len(_HOST_FACTS)) if any(values[place] for values in names)]
    heads = [*_HOST_FACTS.values()]
    rows = [
        [element("td", fold_names(group), class_="hosts"),
         *(element("td", values[place], class_="differs" if values[place] != usual[place] else None) for place in told)]
        for values, group in names.items()
    ]  # fmt: skip
    if len(names) > 1:
        yield element("p", "Marked values differ from those of most hosts.", class_="soft")
    yield table(["host" if len(hosts) == 1 else "hosts", *(heads[place] for place in told)], rows)


def _write_warnings(record: Mapping[str, Any]) -> Iterator[Html]:
    warnings = record.get("warnings") or []
    if warnings:
        yield element("h2", count(len(warnings), "warning").capitalize())
        yield element("ul", [element("li", str(each)) for each in warnings])


def _write_code(record: Mapping[str, Any]) -> Iterator[Html]:
    git, code = record.get("git") or {}, record.get("code") or {}
    changed = f", {count(git['changed_files'] or 0, 'changed file')}" if git.get("dirty") else ""
    sent = f"{code['hash']} ({count(code['files'], 'file')} from {code['root']})" if code else None
    told = {
        "command": element("code", str(record["command"])) if record.get("command") else None,
        "directory": record.get("directory"),
        "commit": f"{git['commit']}{changed}" if git.get("commit") else None,
        "code sent": sent,
        "left out": code.get("left_out") or None,
        "repeats": record.get("again_of"),
    }
    if any(told.values()):
        yield element("h2", "Code and command")
        yield element(
            "dl", [[element("dt", name), element("dd", value if isinstance(value, Html) else str(value))]
                   for name, value in told.items() if value],
        )  # fmt: skip


def _write_lines_to_paste(record: Mapping[str, Any]) -> Iterator[Html]:
    lines = [f"# {each['host']}\n{each['command']}" for each in record.get("by_hand") or []]
    if lines:
        yield element("h2", "The same by hand")
        more = "" if len(lines) <= _MOST_LINES_TO_PASTE else f" Those of all {len(lines)} hosts are in run.json."
        words = f"A line for each host; set the variables that it takes from your shell.{more}"
        yield element("p", words, class_="soft")
        yield element("pre", "\n".join(lines[:_SHORT_LINES]))
        if rest := lines[_SHORT_LINES:_MOST_LINES_TO_PASTE]:
            summary = element("summary", count(len(rest), "more host"))
            yield element("details", summary, element("pre", "\n".join(rest)))
