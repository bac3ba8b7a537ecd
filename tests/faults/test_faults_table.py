"""Which promise is tested over which transport: all are, except for what GAPS names."""

from __future__ import annotations

import importlib
from pathlib import Path

from ways import GAPS, TRIED, WAYS, Promise

from launcher.transports.registry import TRANSPORTS

GUIDE = Path(__file__).parents[2] / "docs" / "faults.md"


def test_every_promise_is_tried_over_every_way_that_keeps_it() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(path.stem)
    for promise in Promise:
        assert TRIED[promise] == {way.name for way in WAYS if promise not in GAPS.get(way.name, {})}, promise


def test_every_transport_is_tried() -> None:
    assert set(TRANSPORTS) == {way.name for way in WAYS} - {"enter", "local", "detached"}


def test_the_document_has_the_same_table() -> None:
    assert make_table() in GUIDE.read_text(), f"docs/faults.md should say\n{make_table()}"


def make_table() -> str:
    """Return, for each promise and transport, `yes` or why not."""
    names = [way.name for way in WAYS]
    rows = [[promise.value, *(GAPS.get(name, {}).get(promise, "yes") for name in names)] for promise in Promise]
    head = ["event and response", *(f"`{name}`" for name in names)]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(cells)}|\n" if cells[0] == "---" else f"| {' | '.join(cells)} |\n" for cells in lines)
