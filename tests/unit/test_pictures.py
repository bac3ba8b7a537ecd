"""The picture of the pairs: what is refused before a run, and what is drawn after it."""

from __future__ import annotations

import importlib.util
import math
import re
from itertools import combinations
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.pictures import draw_pairs, fill_matrix, refuse_picture


def make_results(count: int) -> dict[str, object]:
    pairs = [
        {"first": first, "second": second, "latency_s": (first + 1) * 1e-6, "bandwidth": (second + 0.25) * 1e9}
        for first, second in combinations(range(count), 2)
    ]
    names = [f"gpu{number}" for number in range(count)]
    return {"hosts": names, "ranks": 8 * count, "backend": "nccl", "device": "cuda", "pairs": pairs}


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


def test_a_large_picture_has_colours_only(tmp_path: Path) -> None:
    draw_pairs(make_results(17), tmp_path / "p.svg")
    texts = read_texts(tmp_path / "p.svg")
    assert "gpu16" in texts
    assert "16.25" not in texts and "16.2" not in texts


def test_a_png(tmp_path: Path) -> None:
    draw_pairs(make_results(2), tmp_path / "p.PNG")
    assert (tmp_path / "p.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_host_has_no_pair_with_itself() -> None:
    matrix = fill_matrix(2, [{"first": 0, "second": 1, "latency_s": 5e-6}], "latency_s", 1e-6)
    assert matrix[0][1] == matrix[1][0] == pytest.approx(5)
    assert math.isnan(matrix[0][0]) and math.isnan(matrix[1][1])


def test_what_could_not_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_picture(tmp_path / "p.svg")
    with pytest.raises(UsageError, match=r"want a \.png or \.svg file, got '.*/p\.pdf'"):
        refuse_picture(tmp_path / "p.pdf")
    with pytest.raises(UsageError, match="there is no folder"):
        refuse_picture(tmp_path / "none" / "p.png")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs matplotlib") as error:
        refuse_picture(tmp_path / "p.png")
    assert error.value.hint == "pip install 'ssh-torch-launcher[plot]'"
