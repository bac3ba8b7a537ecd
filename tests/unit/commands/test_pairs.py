"""The picture of the pairs: what is refused before a run, and what is drawn after it."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from launcher.cli.test_distributed import draw
from launcher.commands.pairs import MeasuredPair, PairResults, draw_pairs, fold_matrix, read_pairs, refuse_picture
from launcher.errors import LauncherError, UsageError

SVG = "{http://www.w3.org/2000/svg}"


def make_results(count: int) -> PairResults:
    pairs = tuple(
        MeasuredPair(first, second, latency_s=(first + 1) * 1e-6, bandwidth=(second + 0.25) * 1e9)
        for first, second in combinations(range(count), 2)
    )
    return PairResults(tuple(f"gpu{number}" for number in range(count)), 8 * count, "nccl", "cuda", pairs)


def read_picture(svg: Path) -> tuple[list[str], list[ElementTree.Element]]:
    """Return the texts of a picture that are shown, and its squares."""
    root = ElementTree.parse(svg).getroot()
    texts = ["".join(each.itertext()).strip() for each in root.iter(f"{SVG}text")]
    return texts, [each for each in root.iter(f"{SVG}rect") if each.get("class") != "none"]


def test_every_host_and_value_is_in_the_picture(tmp_path: Path) -> None:
    draw_pairs(make_results(3), tmp_path / "p.svg")
    texts, squares = read_picture(tmp_path / "p.svg")
    for text in ("3 hosts, 24 ranks, nccl on cuda", "Latency, one way (µs)", "Bandwidth, one direction (GB/s)"):
        assert texts.count(text) == 1, texts
    for name in ("gpu0", "gpu1", "gpu2"):
        assert texts.count(name) == 4  # on two axes of two matrices
    for value in ("1.25", "2.25"):
        assert texts.count(value) >= 2  # both ways
    assert len(squares) == 2 * 6  # a host has none with itself
    shades = {(each.get("class"), each.get("fill-opacity")) for each in squares}
    assert {("latency", "1.000"), ("latency", "0.550"), ("bandwidth", "1.000"), ("bandwidth", "0.600")} == shades
    places = {(each.get("x"), each.get("y")) for each in squares if each.get("class") == "latency"}
    assert len(places) == 6 and all((y, x) for x, y in places)


def test_a_large_picture_has_colors_only(tmp_path: Path) -> None:
    draw_pairs(make_results(17), tmp_path / "p.svg")
    texts, _ = read_picture(tmp_path / "p.svg")
    assert "gpu16" in texts and "16.2" not in texts


def test_hosts_share_rows_where_they_are_many(tmp_path: Path) -> None:
    draw_pairs(make_results(130), tmp_path / "p.svg")
    texts, squares = read_picture(tmp_path / "p.svg")
    assert texts[1] == "Each square is 3 by 3 hosts, and shows the slowest of their pairs."
    assert len(squares) == 2 * 44 * 44 - 2  # the last host is alone in its row
    words = [each.text for each in ElementTree.parse(tmp_path / "p.svg").getroot().iter(f"{SVG}title")]
    assert "gpu0 and gpu3: 3 µs" in words and "gpu0 and gpu3: 3.25 GB/s" in words
    assert fold_matrix({(0, 1): 1.0, (0, 3): 5.0, (1, 2): 7.0}, 2, max) == {(0, 0): 1.0, (0, 1): 7.0, (1, 0): 7.0}
    assert fold_matrix({(0, 3): 5.0, (1, 2): 7.0}, 2, min) == {(0, 1): 5.0, (1, 0): 5.0}


def test_what_could_not_be_drawn_is_refused(tmp_path: Path) -> None:
    refuse_picture(tmp_path / "p.SVG")
    with pytest.raises(UsageError, match=r"must be an \.svg file, got '.*/p\.png'"):
        refuse_picture(tmp_path / "p.png")
    with pytest.raises(UsageError, match="there is no directory"):
        refuse_picture(tmp_path / "none" / "p.svg")


WRITTEN = {
    "ranks": 2, "hosts": ["<b>&{{1}}", "b"], "backend": "gloo", "device": "cpu", "passed": True,
    "pairs": [{"first": 0, "second": 1, "latency_s": 1e-5, "bandwidth": 10**9}],
}  # fmt: skip


def test_what_rank_0_wrote_is_read_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, picture = tmp_path / "results.json", tmp_path / "p.svg"
    results.write_text(json.dumps(WRITTEN))
    assert read_pairs(results, 2) == PairResults(("<b>&{{1}}", "b"), 2, "gloo", "cpu", (MeasuredPair(0, 1, 1e-5, 1e9),))
    draw(results, picture, 2)
    assert capsys.readouterr().err == f"test-distributed: plot written to {picture}\n"
    assert read_picture(picture)[0].count("<b>&{{1}}") == 4


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
