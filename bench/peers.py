"""python -m bench peers [OPTION...]: measure `launch` and other tools in the same way, on the same hosts.

It makes an environment for the peers in build/peers, and its hosts from network namespaces, so it needs root. It writes
build/peers.json and a table; with --write, bench/peers.json and docs/bench.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import environment, faults, measures
from bench.environment import NOT_MEASURED, PYTHON
from bench.lab import ROOT, lab
from bench.record import find_machine
from bench.tools import TOOLS, Tool

KEPT, PAGE = Path(__file__).with_name("peers.json"), ROOT / "docs" / "bench.md"
BEGIN, END = "<!-- bench peers: begin -->", "<!-- bench peers: end -->"
HOSTS = (2, 16, 64)
PARTS = ("connect", "start", "lines", "idle", "faults")

Result = dict[str, Any]


def main(words: Sequence[str]) -> int:
    """Measure, print the table, and keep it."""
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="of each measure; the table shows medians")
    parser.add_argument("--fault-repeats", type=int, help="of each fault that leaves nothing (default: --repeats)")
    parser.add_argument("--idle", type=float, default=600.0, metavar="SECONDS", help="of watching idle hosts, once")
    parser.add_argument("--cap", type=float, default=faults.CAP_S, metavar="SECONDS", help="of waiting after a fault")
    parser.add_argument("--tools", default=",".join(TOOLS), help="a comma between two, all by default")
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument(
        "--write", action="store_true", help=f"to {KEPT.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}"
    )
    options = parser.parse_args(words)
    names = options.tools.split(",")
    if unknown := [*({*names} - {*TOOLS}), *({*options.parts.split(",")} - {*PARTS})]:
        parser.error(f"there is no {unknown[0]!r}; fix: choose from {', '.join((*TOOLS, *PARTS))}")
    missing = environment.prepare()
    for name, reason in missing.items():
        print(f"bench: {name} is not measured: {reason}", file=sys.stderr)
    tools = [TOOLS[name] for name in names if name not in missing]
    target = KEPT if options.write else environment.PLACE.with_suffix(".json")
    result: Result = json.loads(target.read_text()) if target.exists() else {}
    result |= {
        "date": f"{datetime.date.today()}", "machine": find_machine(), "versions": environment.find_versions(),
        "cap_s": options.cap, "missing": missing,
    }  # fmt: skip
    for part in options.parts.split(","):
        repeats = options.fault_repeats if part == "faults" else 1 if part == "idle" else options.repeats
        result["turns"] = result.get("turns", {}) | {part: repeats or options.repeats}
        for found in _MEASURES[part](tools, options):
            result[part] = merge(result.get(part, {}), found)
            target.write_text(json.dumps(result, indent=1) + "\n")  # at once: the whole takes hours
    print("\n".join(describe(result)))
    if options.write:
        PAGE.write_text(update_page(PAGE.read_text(), result))
    return 0


def merge(old: Result, new: Result) -> Result:
    """Return the new values, and the old ones of tools that weren't measured again."""
    return old | {key: merge(old.get(key, {}), value) if _is_table(value) else value for key, value in new.items()}


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and "left" not in value


def measure_connect(tools: Sequence[Tool], options: argparse.Namespace) -> Iterator[Result]:
    """Yield the seconds for `true` on each number of hosts, by tool."""
    with lab(max(HOSTS), PYTHON) as hosts:
        for count in HOSTS:
            measure = partial(measures.connect, hosts, hosts=count)
            yield {str(count): _take_turns(f"connect {count}", tools, "execute", options.repeats, measure)}


def measure_start(tools: Sequence[Tool], options: argparse.Namespace) -> Iterator[Result]:
    """Yield the seconds until the first all-reduce, by tool."""
    with lab(2, PYTHON) as hosts:
        yield _take_turns("start", tools, "train", options.repeats, partial(measures.first_all_reduce, hosts))


def measure_lines(tools: Sequence[Tool], options: argparse.Namespace) -> Iterator[Result]:
    """Yield the seconds for 8 million lines, by tool."""
    with lab(measures.LINE_HOSTS, PYTHON) as hosts:
        yield _take_turns("lines", tools, "stream", options.repeats, partial(measures.show_lines, hosts))


def measure_idle(tools: Sequence[Tool], options: argparse.Namespace) -> Iterator[Result]:
    """Yield the share of a core and the memory of 64 idle hosts, by tool, watched once."""
    with lab(measures.IDLE_HOSTS, PYTHON) as hosts:
        for tool in tools:
            if tool.stream:
                measure = partial(measures.idle, hosts, tool, options.idle)
                yield {"seconds": options.idle, tool.name: _try(f"idle {tool.name}", measure)}


def measure_faults(tools: Sequence[Tool], options: argparse.Namespace) -> Iterator[Result]:
    """Yield the fate of each fault, by its name and by tool; something that stays is seen once."""
    repeats = options.fault_repeats or options.repeats
    outputs = environment.PLACE / "outputs"
    outputs.mkdir(exist_ok=True)
    with lab(2, PYTHON) as hosts:
        for fault in faults.FAULTS:
            for tool in (tool for tool in tools if tool.train):
                keep = outputs / f"{fault.name} {tool.name}.txt".replace(" ", "-")
                measure = partial(faults.cause, hosts, tool, fault, options.cap, keep)
                fates: list[faults.Fate] = []
                while len(fates) < repeats and not any(fate.left or fate.exit_code is None for fate in fates):
                    if isinstance(fate := _try(f"{fault.name}: {tool.name}", measure), str):
                        break
                    fates.append(fate)
                yield {fault.name: {tool.name: asdict(_middle(fates)) if fates else None}}


def _middle(fates: Sequence[faults.Fate]) -> faults.Fate:
    """Return the median time; the worst of the rest."""
    last, named = fates[-1], [fate.is_named for fate in fates]
    if last.left or last.seconds is None:
        return last
    seconds = statistics.median(fate.seconds for fate in fates if fate.seconds is not None)
    return replace(last, seconds=seconds, is_named=all(named) if named[0] is not None else None)


def _take_turns(
    what: str, tools: Sequence[Tool], ability: str, repeats: int, measure: Callable[[Tool], float]
) -> dict[str, list[float | None]]:
    """Return all values of each tool that has the ability; they run in turns, so that noise affects all equally.

    A turn that failed is None, and the tool's last one: it may have hung for minutes.
    """
    values: dict[str, list[float | None]] = {tool.name: [] for tool in tools if getattr(tool, ability)}
    for _ in range(repeats):
        for tool in (tool for tool in tools if tool.name in values and None not in values[tool.name]):
            value = _try(f"{what}: {tool.name}", partial(measure, tool))
            values[tool.name].append(None if isinstance(value, str) else value)
    return values


def _try(what: str, measure: Callable[[], Any]) -> Any:
    """Return what was measured, or the error's text: one tool that fails doesn't stop the others."""
    try:
        value = measure()
    except Exception as error:  # noqa: BLE001  # a tool that ended too early shows in many ways
        value = f"{type(error).__name__}: {error}"
    print(f"bench: {what}: {value}"[:300], file=sys.stderr, flush=True)
    return value


_MEASURES = {
    "connect": measure_connect, "start": measure_start, "lines": measure_lines, "idle": measure_idle,
    "faults": measure_faults,
}  # fmt: skip


# ---- the table ------------------------------------------------------------------------------------------------------


def update_page(page: str, result: Mapping[str, Any]) -> str:
    """Return the page with this result between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN, "", *describe(result), "", END]) + rest.partition(END)[2]


def describe(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of all tables, as Markdown."""
    turns = ", ".join(f"{part} {count}" for part, count in result["turns"].items())
    yield f"{result['date']}, {result['machine']}. Medians of these numbers of turns: {turns}."
    yield from ("", "### Speed", "", *_speed_table(result)) if "connect" in result or "start" in result else ()
    yield from ("", "### Faults", "", *_fault_table(result)) if "faults" in result else ()
    yield from ("", "### Versions and settings", "", "| tool | version | settings |", "|---|---|---|")
    versions = result["versions"]
    for tool in TOOLS.values():
        if tool.name in result["missing"]:
            yield f"| {tool.name} | not measured | {result['missing'][tool.name]} |"
        else:
            yield f"| {tool.name} | {versions.get(tool.name, versions['launch'])} | {tool.settings} |"
    yield f"\nPython {versions['Python']} and torch {versions['torch']} for all."
    yield "Not measured: " + "; ".join(f"{name} ({reason})" for name, reason in NOT_MEASURED.items()) + "."


def _speed_table(result: Mapping[str, Any]) -> Iterator[str]:
    rows: list[tuple[str, Mapping[str, Any], str]] = [
        *((f"`true` on {count} hosts", of_tool, "s") for count, of_tool in result.get("connect", {}).items()),
        ("first all-reduce, 2 hosts x 2 ranks", result.get("start", {}), "s"),
        ("8 million lines of 4 hosts", result.get("lines", {}), "s"),
    ]
    idle = result.get("idle", {})
    watched = {name: value for name, value in idle.items() if isinstance(value, list | tuple)}
    rows.append(("64 idle hosts, of a core", {name: [value[0]] for name, value in watched.items()}, "%"))
    rows.append(("64 idle hosts, memory", {name: [value[1]] for name, value in watched.items()}, "MiB"))
    shown = [name for name in TOOLS if any(name in of_tool for _, of_tool, _ in rows)]
    yield f"| | {' | '.join(shown)} |"
    yield f"|---|{'---|' * len(shown)}"
    for words, of_tool, unit in rows:
        if of_tool:
            yield f"| {words} | {' | '.join(_number(of_tool.get(name), unit) for name in shown)} |"


def _number(values: Any, unit: str) -> str:
    if values is None:
        return "-"
    known = [value for value in values if value is not None]
    if not known:
        return "failed"
    value = statistics.median(known)
    shown = f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return shown if len(known) == len(values) else f"{shown}, then failed"


def _fault_table(result: Mapping[str, Any]) -> Iterator[str]:
    shown = [name for name in TOOLS if any(name in of_tool for of_tool in result["faults"].values())]
    yield f"| | {' | '.join(shown)} |"
    yield f"|---|{'---|' * len(shown)}"
    for fault in (fault.name for fault in faults.FAULTS if fault.name in result["faults"]):
        yield f"| {fault} | {' | '.join(fates(result, fault, shown))} |"


def fates(result: Mapping[str, Any], fault: str, tools: Sequence[str]) -> list[str]:
    """Return the cells of a row: a dash for what wasn't measured."""
    of_tool = result["faults"][fault]
    return [_fate(of_tool[name], result["cap_s"]) if name in of_tool else "-" for name in tools]


def _fate(fate: Mapping[str, Any] | None, cap_s: float) -> str:
    """Return how soon nothing ran any more, or what is left; the exit code; whether the cause was named."""
    if fate is None:
        return "failed"
    if fate["left"]:
        seen = f"**{fate['left']} left**"
    elif fate["seconds"] is None:
        seen = f"over {cap_s:g} s"
    else:
        seen = f"{fate['seconds']:.1f} s"
    code = fate["exit_code"]
    code = "hangs" if code is None else f"exit {code if code >= 0 else 128 - code}"
    named = {None: "", True: ", named", False: ", not named"}[fate["is_named"]]
    return f"{seen}, {code}{named}"
