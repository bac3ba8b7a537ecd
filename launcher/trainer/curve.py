"""The loss curve of a run as a picture.

The trainer doesn't need matplotlib otherwise, so it is imported only if a picture is wanted.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.trainer.options import ConfigError
from launcher.trainer.trackers import read_metrics

SUFFIXES = (".png", ".svg")
TRAINING, VALIDATION = "loss", "validation_loss"
MARKED_UP_TO = 40  # points; with more of them the markers would hide the line
_GREY = "#dddddd"
# The dark and the middle color of viridis, as in the pictures that `launch` draws.
_COLORS = {TRAINING: "#3b528b", VALIDATION: "#21918c"}
_NAMES = {TRAINING: "training", VALIDATION: "validation"}

if TYPE_CHECKING:  # Python 3.8 has no such types
    Points = list[tuple[int, float]]


def check_picture(path: Path) -> None:
    """Raise ConfigError if this picture could not be drawn at the end of a run."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot must name a .png or .svg file, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot: there is no directory {str(path.parent)!r} on rank 0's host")
    if path.is_dir():
        raise ConfigError(f"--plot: {str(path)!r} is a directory")
    try:
        _import_matplotlib()
    except ImportError:
        raise ConfigError("--plot needs matplotlib on rank 0's host; fix: run pip install matplotlib") from None


def _import_matplotlib() -> None:
    """Import it without ./matplotlibrc, which could make versions before 3.10.8 run a program.

    No other thread may depend on the current directory meanwhile.
    """
    if sys.modules.get("matplotlib") is None:
        here = Path.cwd()
        os.chdir("/")
        try:
            importlib.import_module("matplotlib")
        finally:
            os.chdir(here)


def plot_losses(metrics: Path, picture: Path) -> None:
    """Draw the training and validation loss of a metrics.jsonl over its steps."""
    losses = read_losses(metrics)
    if not any(losses.values()):
        raise ConfigError(f"{metrics}: it contains no losses, so there is nothing to draw")
    _import_matplotlib()
    from matplotlib import rc_context, rcdefaults
    from matplotlib.figure import Figure

    with rc_context():
        rcdefaults()
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.subplots()
        for name, points in losses.items():
            if points:
                _draw_line(axes, name, points)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.grid(color=_GREY, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(picture, dpi=150)


def read_losses(metrics: Path) -> dict[str, Points]:
    """Return the (step, loss) points of each curve; a loss that was not finite is NaN, which leaves a gap.

    Where the step number goes back, a run was resumed, and it repeated what came after that step.
    """
    losses: dict[str, Points] = {TRAINING: [], VALIDATION: []}
    last_step = 0
    for line in read_metrics(metrics):
        step = line["step"]
        for name, points in losses.items():
            while points and points[-1][0] >= step and (step < last_step or name in line):
                points.pop()
            if name in line:
                value = line[name]
                points.append((step, value if isinstance(value, (int, float)) else math.nan))
        last_step = step
    return losses


def _draw_line(axes: Any, name: str, points: Points) -> None:
    values = [value for _, value in points]
    finite = [value for value in values if math.isfinite(value)]
    last = f", {finite[-1]:.3f} at the end" if finite else ""
    axes.plot(
        [step for step, _ in points],
        values,
        label=_NAMES[name] + last,
        color=_COLORS[name],
        linewidth=1.6,
        marker="o" if len(points) <= MARKED_UP_TO else None,
        markersize=3.5,
    )
