"""Write the fields of the records into the tables of docs/json.md: .venv/bin/python docs/json_fields.py.

A field's type is that of the record's class, and its meaning is the comment there: at the end of the field's line, or
right above it. The rows of values that have no class are written by hand.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from launcher.api import values
from launcher.cli.exec import ExecResult
from launcher.cli.free import FreeHost
from launcher.errors import HostFailure
from launcher.job.facts import GpuSample, HostSample, Moment, NodeFacts
from launcher.preflight.findings import Finding
from launcher.preflight.load import MeasuredLoad
from launcher.runs.bisection import Verdict
from launcher.runs.odd_gpus import Oddity
from launcher.runs.run_json import Plan, Result, RunJson, SentCode
from launcher.runs.run_rows import RunRow

PAGE = Path(__file__).parent / "json.md"
# The heading of a table -> where in it the fields of which record are.
RECORDS: Mapping[str, Mapping[str, type]] = {
    "## run.json": {"": RunJson},
    "### code": {"": SentCode},
    "### plan": {"": Plan},
    "### line": {"": values.Line},
    "### odd": {"": Oddity},
    "### result": {"": Result},
    "### verdict": {"": Verdict},
    "### load": {"findings[].": Finding, "loads[].": MeasuredLoad},
    "## launch ps --json": {"": RunRow},
    "## launch exec --json": {"": ExecResult},
    "## launch check --json": {"findings[].": Finding, "unreachable[].": HostFailure},
    "### The facts of a host": {"": NodeFacts},
    "## launch top --json": {"": HostSample, "gpus[].": GpuSample},
    "## launch free --json": {"hosts[].": FreeHost},
    "## launch hosts --json": {"": values.Host},
}
_OWN_TABLE = [records[""] for records in RECORDS.values() if "" in records]
_TABLE = re.compile(r"^\| field \|.*\n\|[-|]*\|\n((?:\|.*\n)*)", re.MULTILINE)
_HEAD = "| field | type | meaning |\n|---|---|---|\n"
_NAMES = {str: "string", int: "number", float: "number", bool: "boolean", Any: "any"}


def update(text: str) -> str:
    """Return the page's text with the rows of all records as they are now."""
    for heading, records in RECORDS.items():
        before, found, rest = text.partition(f"\n{heading}\n")
        table = _TABLE.search(rest)
        if not found or table is None:
            raise ValueError(f"{PAGE.name} has no table below {heading}")
        rows = dict(re.findall(r"^\| `(.+?)` \|(.*)\n", table[1], re.MULTILINE))
        text = f"{before}{found}{rest[: table.start()]}{_HEAD}{_merge(rows, records)}{rest[table.end() :]}"
    return text


def _merge(rows: Mapping[str, str], records: Mapping[str, type]) -> str:
    """Return the rows of a table: those of a record take the place of its first one, and others stay."""
    made = {prefix: dict(describe(kind, prefix)) for prefix, kind in records.items()}
    place = {path: prefix for prefix, described in made.items() for path in described}
    merged: dict[str, str] = {}
    for path, row in rows.items():
        merged |= made[place[path]] if path in place else {path: row}
    for described in made.values():
        merged |= described
    return "".join(f"| `{path}` |{row}\n" for path, row in merged.items())


def describe(kind: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each field of a record, by its path, with the rest of its row."""
    comments = read_comments(kind)
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if kind is values.Line and name == "time":  # which every event has
            continue
        inner, is_list, shown = _name_type(hint)
        meaning = comments.get(name, "")
        if not meaning and inner is None:
            raise ValueError(f"{kind.__module__}.{kind.__name__}: {name} has no comment")
        if meaning:
            yield f"{prefix}{name}", f" {shown} | {meaning} |".replace("\\|", "|")
        if inner is not None and inner not in _OWN_TABLE:
            yield from describe(inner, f"{prefix}{name}{'[].' if is_list else '.'}")


def _name_type(hint: Any) -> tuple[type | None, bool, str]:
    """Return the record that a field holds, whether it holds a list of them, and the words for its type."""
    origin, args = get_origin(hint), get_args(hint)
    if hint == Moment:
        return None, False, "string"
    if origin is Annotated:
        is_row = "as a row" in args
        inner, is_list, shown = _name_type(args[0])
        return (None, False, "list") if is_row else (inner, is_list, shown)
    if origin in (Union, UnionType):
        inner, is_list, shown = _name_type(args[0])
        return inner, is_list, f"{shown} or `null`"
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        return None, False, "string"
    if origin is tuple or getattr(origin, "__name__", "") in ("Sequence", "tuple"):
        inner, _, shown = _name_type(args[0])
        of = f"list of {shown}s" if shown in ("string", "number") and args[1:] in ((), (...,)) else "list"
        return inner, True, of
    if getattr(origin, "__name__", "") == "Mapping":
        return None, False, "object"
    return (hint, False, "object") if is_dataclass(hint) else (None, False, _NAMES[hint])


def read_comments(kind: type) -> dict[str, str]:
    """Return the comment of each field of a class: at the end of its line, or the lines right above it."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    (tree,) = ast.parse("\n".join(lines)).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno is not None:
            _, _, behind = lines[node.end_lineno - 1][node.end_col_offset :].partition("# ")
            above: list[str] = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("# "):
                    break
                above.insert(0, line.strip()[2:])
            found[node.target.id] = behind or " ".join(above)
    return found


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text("utf-8")), "utf-8")
