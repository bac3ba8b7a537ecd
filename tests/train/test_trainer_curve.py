"""The loss curve, drawn by the real matplotlib."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.trainer.curve import check_picture, plot_losses, read_losses
from launcher.trainer.options import ConfigError

LINES = [{"step": step, "loss": 5.5 / step} for step in range(1, 31)]
LINES[29]["validation_loss"] = 1.25


def write_metrics(folder: Path, lines: list[dict[str, object]], rest: str = "") -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + rest)
    return path


def read_texts(svg: Path) -> list[str]:
    """matplotlib writes each text as a comment before its glyphs."""
    return re.findall(r"<!-- (.+?) -->", svg.read_text("utf-8"))


def test_both_curves_stand_in_the_picture(tmp_path: Path) -> None:
    plot_losses(write_metrics(tmp_path, LINES, rest='{"step": 31, "lo'), tmp_path / "p.svg")
    texts = read_texts(tmp_path / "p.svg")
    for text in ("step", "loss", "training, 0.183 at the end", "validation, 1.250 at the end"):
        assert texts.count(text) == 1, texts


def test_a_run_without_validation_has_one_curve_in_a_png(tmp_path: Path) -> None:
    plot_losses(write_metrics(tmp_path, LINES[:3]), tmp_path / "p.PNG")
    assert (tmp_path / "p.PNG").read_bytes().startswith(b"\x89PNG")
    plot_losses(write_metrics(tmp_path, LINES[:3]), tmp_path / "p.svg")
    assert not any("validation" in text for text in read_texts(tmp_path / "p.svg"))


def test_nothing_is_read_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("nonsense: 1\naxes.edgecolor: '#123456'\n")
    metrics = write_metrics(tmp_path, LINES)
    code = (
        "import pathlib; from launcher.trainer.curve import check_picture, plot_losses; path = pathlib.Path('p.svg')\n"
        f"check_picture(path); plot_losses(pathlib.Path({metrics.name!r}), path)"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert "#123456" not in (tmp_path / "p.svg").read_text("utf-8")


def test_a_loss_that_was_not_finite_is_a_gap(tmp_path: Path) -> None:
    path = write_metrics(
        tmp_path, [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}, {"step": 3, "validation_loss": 1}]
    )
    assert str(read_losses(path)) == "{'loss': [(1, 2.0), (2, nan)], 'validation_loss': [(3, 1)]}"
    plot_losses(path, tmp_path / "p.svg")
    assert "training, 2.000 at the end" in read_texts(tmp_path / "p.svg")


def test_steps_that_were_done_once_more_stand_once(tmp_path: Path) -> None:
    def line(step: int, loss: float, name: str = "loss") -> dict[str, object]:
        return {"step": step, name: loss}

    stopped = [line(20, 3.0), line(40, 2.0), line(40, 2.5, "validation_loss"), line(60, 1.5)]
    again = [line(40, 2.1), line(40, 2.6, "validation_loss"), line(60, 1.6), line(60, 1.7)]
    assert read_losses(write_metrics(tmp_path, stopped + again)) == {
        "loss": [(20, 3.0), (40, 2.1), (60, 1.7)],
        "validation_loss": [(40, 2.6)],
    }


def test_what_could_not_be_drawn_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_picture(tmp_path / "p.svg")
    with pytest.raises(ConfigError) as suffix:
        check_picture(Path("p.pdf"))
    assert str(suffix.value) == "--plot must name a .png or .svg file, got 'p.pdf'"
    with pytest.raises(ConfigError) as folder:
        check_picture(Path("no/such/p.png"))
    assert str(folder.value) == "--plot: there is no directory 'no/such' on rank 0's host"
    (tmp_path / "f.png").mkdir()
    with pytest.raises(ConfigError) as picture:
        check_picture(tmp_path / "f.png")
    assert str(picture.value) == f"--plot: '{tmp_path}/f.png' is a directory"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError) as library:
        check_picture(tmp_path / "p.png")
    assert str(library.value) == "--plot needs matplotlib on rank 0's host; fix: run pip install matplotlib"


@pytest.mark.parametrize("lines", [[], [{"step": 1, "tokens_per_s": 3}]])
def test_a_run_without_losses_has_no_picture(lines: list[dict[str, object]], tmp_path: Path) -> None:
    path = write_metrics(tmp_path, lines)
    with pytest.raises(ConfigError) as caught:
        plot_losses(path, tmp_path / "p.png")
    assert str(caught.value) == f"{path}: it contains no losses, so there is nothing to draw"
    assert not (tmp_path / "p.png").exists()
