"""Draw the matrix of `test-distributed`: latency and bandwidth between each pair of hosts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from launcher.commands.drawing import render
from launcher.errors import LauncherError, UsageError
from launcher.forms import load_json

_NUMBERS_UP_TO = 16  # hosts; a larger picture has colors alone
_MOST_ROWS = 64  # of a matrix; of more hosts, some share a row
_SIDE, _LEAST_CELL, _MOST_CELL = 480, 8, 48  # of a matrix and a square of it
_LETTER = 6.5  # how wide one is
_MOST_LETTERS = 255  # of a name in DNS

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """What was measured between two hosts, which are given by their positions in the list."""

    first: int
    second: int
    latency_s: float
    bandwidth: float  # bytes per second, in one direction


@dataclass(frozen=True, slots=True)
class PairResults:
    """The measurements that a picture shows."""

    hosts: tuple[str, ...]
    ranks: int
    backend: str
    device: str
    pairs: tuple[MeasuredPair, ...]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A square; share: of its value in the largest one; text: in it; words: about it."""

    row: int
    column: int
    share: float
    text: str
    words: str


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A heat map as the template draws it."""

    kind: str
    title: str
    most: str
    cells: Sequence[_Cell]


def refuse_picture(path: Path) -> None:
    """Raise UsageError if this picture could not be drawn at the end of a run."""
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--plot: must be an .svg file, got {str(path)!r}", "name one; a browser shows and prints it")
    if not path.parent.is_dir():
        raise UsageError(f"--plot: there is no directory {str(path.parent)!r}")


def read_pairs(path: Path, most_hosts: int) -> PairResults:
    """Read rank 0's results.json, which a node has sent; raise LauncherError if it is malformed.

    The picture is a square of hosts: more hosts than the run has could fill this machine's memory.
    """
    try:
        content = load_json(path.read_bytes())
        hosts = _names(content["hosts"], most_hosts)
        return PairResults(
            hosts,
            _typed(content["ranks"], int),
            _name(content["backend"]),
            _name(content["device"]),
            tuple(
                MeasuredPair(
                    _place(pair["first"], len(hosts)),
                    _place(pair["second"], len(hosts)),
                    _measured(pair["latency_s"]),
                    _measured(pair["bandwidth"]),
                )
                for pair in content["pairs"]
            ),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LauncherError(f"{path}: can't be read: {error!r}") from None


def draw_pairs(results: PairResults, path: Path) -> None:
    """Draw the matrices of latency and bandwidth side by side into a file."""
    size = -(-len(results.hosts) // _MOST_ROWS)
    names = results.hosts[::size]
    cell = min(max(_SIDE / len(names), _LEAST_CELL), _MOST_CELL)
    label = max(map(len, names)) * _LETTER + 8
    latencies = {(pair.first, pair.second): pair.latency_s / 1e-6 for pair in results.pairs}
    bandwidths = {(pair.first, pair.second): pair.bandwidth / 1e9 for pair in results.pairs}
    matrices = [
        _lay_out("latency", "Latency, one way", "µs", fold_matrix(latencies, size, max), names),
        _lay_out("bandwidth", "Bandwidth, one direction", "GB/s", fold_matrix(bandwidths, size, min), names),
    ]
    shown = render("pairs.svg", results=results, size=size, names=names, cell=cell, label=label, matrices=matrices)
    path.write_text(shown, "utf-8")


def fold_matrix(
    values: Mapping[tuple[int, int], float], size: int, choose: Callable[[float, float], float]
) -> dict[tuple[int, int], float]:
    """Return both halves of a matrix, with squares of `size` hosts folded into one; choose: which value stays."""
    folded: dict[tuple[int, int], float] = {}
    for (first, second), value in values.items():
        for place in {(first // size, second // size), (second // size, first // size)}:
            folded[place] = choose(folded.get(place, value), value)
    return folded


def _lay_out(
    kind: str, title: str, unit: str, values: Mapping[tuple[int, int], float], names: Sequence[str]
) -> _Matrix:
    most = max(values.values(), default=0.0)
    cells = [
        _Cell(row, column, value / most if most else 0.0, _number(value) if len(names) <= _NUMBERS_UP_TO else "",
              f"{names[row]} and {names[column]}: {_number(value)} {unit}")
        for (row, column), value in sorted(values.items())
    ]  # fmt: skip
    return _Matrix(kind, f"{title} ({unit})", _number(most), cells)


def _typed(value: object, kind: type[_Value]) -> _Value:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"no {kind.__name__}: {value!r:.60}")
    return value


def _names(values: Iterable[object], most: int) -> tuple[str, ...]:
    names = tuple(map(_name, values))
    if not 1 <= len(names) <= most:
        raise ValueError(f"{len(names)} hosts")
    return names


def _name(value: object) -> str:
    name = _typed(value, str)
    if not name.isprintable() or len(name) > _MOST_LETTERS:
        raise ValueError(f"no name: {name!r:.60}")
    return name


def _place(value: object, count: int) -> int:
    place = _typed(value, int)
    if place not in range(count):
        raise ValueError(f"no place among {count} hosts: {place}")
    return place


def _measured(value: object) -> float:
    number = float(value) if isinstance(value, int) else _typed(value, float)
    if not 0 <= number < math.inf:
        raise ValueError(f"no measurement: {number}")
    return number


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
