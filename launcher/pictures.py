"""The matrix of `test-distributed` as a picture: what every two hosts have between them.

matplotlib is an extra of this package, and is imported when a picture is drawn.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.errors import UsageError

SUFFIXES = (".png", ".svg")
NUMBERS_UP_TO = 16  # hosts; in a larger picture colours must do
NAMES_UP_TO = 64
_CELL_INCHES = 0.62
_LEAST_INCHES, _MOST_INCHES = 3.2, 10.0
_GREY = "#dddddd"


def refuse_picture(path: Path) -> None:
    """Raise UsageError where this picture could not be drawn at the end of a run."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot: want a .png or .svg file, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {str(path.parent)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib", "pip install 'ssh-torch-launcher[plot]'")


def draw_pairs(results: Mapping[str, Any], path: Path) -> None:
    """Draw latency and bandwidth side by side; `results` is what rank 0 wrote into results.json."""
    from matplotlib.figure import Figure

    names = list(results["hosts"])
    side = min(max(_CELL_INCHES * len(names), _LEAST_INCHES), _MOST_INCHES)
    figure = Figure(figsize=(2 * side + 3, side + 1.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks, backend = results["ranks"], results["backend"]
    figure.suptitle(f"{len(names)} hosts, {ranks} ranks, {backend} on {results['device']}")
    latencies = fill_matrix(len(names), results["pairs"], "latency_s", 1e-6)
    _draw_matrix(left, names, latencies, title="Latency, one way", unit="µs", colours="viridis_r")
    bandwidths = fill_matrix(len(names), results["pairs"], "bandwidth", 1e9)
    _draw_matrix(right, names, bandwidths, title="Bandwidth, one direction", unit="GB/s", colours="viridis")
    figure.savefig(path, dpi=150)


def fill_matrix(count: int, pairs: list[Mapping[str, Any]], key: str, unit: float) -> list[list[float]]:
    """Return rows of values in `unit`, the same both ways; NaN where a host meets itself."""
    matrix = [[math.nan] * count for _ in range(count)]
    for pair in pairs:
        first, second = pair["first"], pair["second"]
        matrix[first][second] = matrix[second][first] = pair[key] / unit
    return matrix


def _draw_matrix(
    axes: Any, names: list[str], matrix: list[list[float]], *, title: str, unit: str, colours: str
) -> None:
    axes.set_facecolor(_GREY)  # shows through where there is no value
    image = axes.imshow(matrix, cmap=colours, vmin=0)
    axes.set_title(title)
    axes.set_xlabel("host")
    axes.set_ylabel("host")
    shown = names if len(names) <= NAMES_UP_TO else []
    size = 10 if len(names) <= NUMBERS_UP_TO else 6
    axes.set_xticks(range(len(shown)), shown, rotation=90 if max(map(len, names)) > 4 else 0, fontsize=size)
    axes.set_yticks(range(len(shown)), shown, fontsize=size)
    axes.figure.colorbar(image, ax=axes, label=unit, shrink=0.85)
    if len(names) > NUMBERS_UP_TO:
        return
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            if not math.isnan(value):
                colour = _readable(image.cmap(image.norm(value)))
                axes.text(column, row, _number(value), ha="center", va="center", color=colour, fontsize=9)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _readable(background: tuple[float, float, float, float]) -> str:
    """Black on light colours and white on dark ones, by the weights of ITU-R BT.601."""
    red, green, blue, _ = background
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
