"""Draw the matrix of `test-distributed`: latency and bandwidth between each pair of hosts.

matplotlib is an optional dependency, imported when a picture is wanted.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from launcher.errors import LauncherError, UsageError
from launcher.forms import load_json

SUFFIXES = (".png", ".svg")
NUMBERS_UP_TO = 16  # hosts; a larger picture has colors alone
NAMES_UP_TO = 64
_CELL_INCHES = 0.62
_LEAST_INCHES, _MOST_INCHES = 3.2, 10.0
_MOST_LETTERS = 255  # of a name in DNS
_GREY = "#dddddd"

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


def refuse_picture(path: Path) -> None:
    """Raise UsageError if this picture could not be drawn at the end of a run."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot: must be a .png or .svg file, got {str(path)!r}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot: there is no directory {str(path.parent)!r}")
    if not can_draw():
        raise UsageError("--plot needs matplotlib", "run pip install matplotlib")


def can_draw() -> bool:
    """Import matplotlib, and tell whether it is there; no other thread may depend on the current directory.

    It obeys a matplotlibrc in the current directory, and versions before 3.10.8 could be made to run a program by one.
    """
    if sys.modules.get("matplotlib") is None:
        here = Path.cwd()
        os.chdir("/")
        try:
            importlib.import_module("matplotlib")
        except ImportError:
            return False
        finally:
            os.chdir(here)
    return True


@contextlib.contextmanager
def own_style(settings: Any) -> Iterator[None]:
    """Draw while the block runs with these settings of matplotlib, and otherwise its defaults."""
    can_draw()
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()
        rcParams.update(settings)
        yield


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
    names = results.hosts
    side = min(max(_CELL_INCHES * len(names), _LEAST_INCHES), _MOST_INCHES)
    with own_style({"text.parse_math": False}):  # a dollar sign in a name begins no formula
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2 * side + 3, side + 1.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        figure.suptitle(f"{len(names)} hosts, {results.ranks} ranks, {results.backend} on {results.device}")
        latencies = fill_matrix(len(names), [(pair, pair.latency_s / 1e-6) for pair in results.pairs])
        _draw_matrix(left, names, latencies, title="Latency, one way", unit="µs", colors="viridis_r")
        bandwidths = fill_matrix(len(names), [(pair, pair.bandwidth / 1e9) for pair in results.pairs])
        _draw_matrix(right, names, bandwidths, title="Bandwidth, one direction", unit="GB/s", colors="viridis")
        figure.savefig(path, dpi=150)


def fill_matrix(count: int, values: Sequence[tuple[MeasuredPair, float]]) -> list[list[float]]:
    """Return a symmetric matrix of values, as rows; NaN on the diagonal."""
    matrix = [[math.nan] * count for _ in range(count)]
    for pair, value in values:
        matrix[pair.first][pair.second] = matrix[pair.second][pair.first] = value
    return matrix


def _draw_matrix(
    axes: Any, names: Sequence[str], matrix: list[list[float]], *, title: str, unit: str, colors: str
) -> None:
    axes.set_facecolor(_GREY)  # shows through where there is no value
    image = axes.imshow(matrix, cmap=colors, vmin=0)
    axes.set_title(title)
    axes.set_xlabel("host")
    axes.set_ylabel("host")
    shown = names if len(names) <= NAMES_UP_TO else ()
    size = 10 if len(names) <= NUMBERS_UP_TO else 6
    axes.set_xticks(range(len(shown)), shown, rotation=90 if max(map(len, names)) > 4 else 0, fontsize=size)
    axes.set_yticks(range(len(shown)), shown, fontsize=size)
    axes.figure.colorbar(image, ax=axes, label=unit, shrink=0.85)
    if len(names) > NUMBERS_UP_TO:
        return
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            if not math.isnan(value):
                color = _readable(image.cmap(image.norm(value)))
                axes.text(column, row, _number(value), ha="center", va="center", color=color, fontsize=9)


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


def _readable(background: tuple[float, float, float, float]) -> str:
    """Return black for light backgrounds and white for dark ones, by the weights of ITU-R BT.601."""
    red, green, blue, _ = background
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
