"""The picture of the pairs: what is refused before a run, and what is drawn after it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.cli.test_distributed import draw
from launcher.commands.plots import MeasuredPair, PairResults, draw_pairs, fill_matrix, read_pairs, refuse_picture
from launcher.errors import LauncherError, UsageError


def make_results(count: int) -> PairResults:
    pairs = tuple(
        MeasuredPair(first, second, latency_s=(first + 1) * 1e-6, bandwidth=(second + 0.25) * 1e9)
        for first, second in combinations(range(count), 2)
    )
    return PairResults(tuple(f"gpu{number}" for number in range(count)), 8 * count, "nccl", "cuda", pairs)


def read_texts(svg: Path) -> list[str]:
    """matplotlib writes each text as a comment before its glyphs."""
    return re.findall(r"<!-- (.+?) -->", svg.read_text("utf-8"))


def test_every_host_and_value_stands_in_the_picture(tmp_path: Path) -> None:
    draw_pairs(make_results(3), tmp_path / "p.svg")
    texts = read_texts(tmp_path / "p.svg")
    for text in ("3 hosts, 24 ranks, nccl on cuda", "Latency, one way", "Bandwidth, one direction", "µs", "GB/s"):
        assert texts.count(text) == 1, texts
    for name in ("gpu0", "gpu1", "gpu2"):
        assert texts.count(name) == 4  # on two axes of two matrices
    for value in ("1.25", "2.25"):
        assert texts.count(value) >= 2  # both ways


def test_a_large_picture_has_colors_only(tmp_path: Path) -> None:
    draw_pairs(make_results(17), tmp_path / "p.svg")
    texts = read_texts(tmp_path / "p.svg")
    assert "gpu16" in texts
    assert "16.25" not in texts and "16.2" not in texts


def test_a_png(tmp_path: Path) -> None:
    draw_pairs(make_results(2), tmp_path / "p.PNG")
    assert (tmp_path / "p.PNG").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_read_in_the_current_directory(tmp_path: Path) -> None:
    """A matplotlibrc there could make old versions run a program, as whoever typed `launch report` there."""
    (tmp_path / "matplotlibrc").write_text("nonsense: 1\nlines.linewidth: 7\n")
    code = (
        "from launcher.commands.plots import own_style\n"
        "with own_style({}): import os, matplotlib; print(matplotlib.rcParams['lines.linewidth'], os.getcwd())"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert (done.stdout, done.stderr) == (f"1.5 {tmp_path}\n", "")


def test_the_style_is_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    monkeypatch.setitem(mpl.rcParams, "text.color", "#123456")
    draw_pairs(make_results(3), tmp_path / "p.svg")
    assert "#123456" not in (tmp_path / "p.svg").read_text("utf-8")
    assert mpl.rcParams["text.color"] == "#123456"


def test_a_host_has_no_pair_with_itself() -> None:
    matrix = fill_matrix(2, [(MeasuredPair(0, 1, 5e-6, 1e9), 5.0)])
    assert matrix[0][1] == matrix[1][0] == 5
    assert math.isnan(matrix[0][0]) and math.isnan(matrix[1][1])


def test_what_could_not_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_picture(tmp_path / "p.svg")
    with pytest.raises(UsageError, match=r"must be a \.png or \.svg file, got '.*/p\.pdf'"):
        refuse_picture(tmp_path / "p.pdf")
    with pytest.raises(UsageError, match="there is no directory"):
        refuse_picture(tmp_path / "none" / "p.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="needs matplotlib") as error:
        refuse_picture(tmp_path / "p.png")
    assert error.value.fix == "run pip install matplotlib"


WRITTEN = {
    "ranks": 2, "hosts": ["a$_{", "b$^$"], "backend": "gloo", "device": "cpu", "passed": True,
    "pairs": [{"first": 0, "second": 1, "latency_s": 1e-5, "bandwidth": 10**9}],
}  # fmt: skip


def test_what_rank_0_wrote_is_read_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, picture = tmp_path / "results.json", tmp_path / "p.svg"
    results.write_text(json.dumps(WRITTEN))
    assert read_pairs(results, 2) == PairResults(("a$_{", "b$^$"), 2, "gloo", "cpu", (MeasuredPair(0, 1, 1e-5, 1e9),))
    draw(results, picture, 2)
    assert capsys.readouterr().err == f"test-distributed: plot written to {picture}\n"
    assert "a$_{" in read_texts(picture)


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "null", "{}", "\x00", "[" * 100_000,
        *(json.dumps({**WRITTEN, **change}) for change in (
            {"hosts": 2}, {"hosts": [], "pairs": []}, {"hosts": ["a", "\ud800"]}, {"hosts": ["a"] * 10**6},
            {"hosts": ["a", "b" * 256]},
            {"hosts": [1, 2]}, {"ranks": "2"}, {"backend": None}, {"pairs": [3]}, {"pairs": None},
        )),
        *(json.dumps({**WRITTEN, "pairs": [{**WRITTEN["pairs"][0], **change}]}) for change in (  # type: ignore[index]
            {"first": 9}, {"first": -1}, {"first": True}, {"second": "1"}, {"latency_s": "x"}, {"latency_s": math.nan},
            {"bandwidth": math.inf}, {"bandwidth": 10**400}, {"bandwidth": -1},
        )),
    ],
)  # fmt: skip
def test_results_in_another_form_are_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They come from a node; a command without its picture still ends with the run's exit code."""
    results = tmp_path / "results.json"
    results.write_text(text)
    with pytest.raises(LauncherError, match=r"results\.json: can't be read: \w+Error"):
        read_pairs(results, 2)
    draw(results, tmp_path / "p.svg", 2)
    said = capsys.readouterr().err
    assert said.startswith("test-distributed: no plot: ") and said.count("\n") == 1
    assert not (tmp_path / "p.svg").exists()


def test_a_picture_that_can_not_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.json"
    results.write_text(json.dumps(WRITTEN))
    draw(results, tmp_path / "gone" / "p.svg", 2)
    assert capsys.readouterr().err.startswith("test-distributed: no plot: [Errno 2]")
