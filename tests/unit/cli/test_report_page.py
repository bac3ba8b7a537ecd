"""The page of a run: which numbers it finds, what it makes of samples, and that nothing foreign becomes HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import timezone
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from machines.example_run import BEGAN_AT, FINDING, ODD_GPU, ODD_HOST, ODD_RANK, RUN_ID, ExampleRun

from launcher.cli.answer import find_value
from launcher.cli.report_page.contents import (
    Sample,
    SampleFinding,
    collect_contents,
    plot_samples,
    read_contents,
    read_samples,
    tell_contents,
)
from launcher.cli.report_page.page import (
    BOTTOM,
    RIGHT,
    draw_plot,
    find_steps,
    find_times,
    show_number,
    write_page,
)
from launcher.cli.report_page.plots import MOST_BINS, Line, Plot, TimeRange, Values, find_numbers
from launcher.errors import UsageError
from launcher.forms import FormError
from launcher.output.log_reader import LogLine

HOSTILE = (
    "<script>alert(1)</script></style></title>\"'><img src=x onerror=alert(2)> &lt; \x1b]0;title\x07\x1b[31mred\x1b[0m"
    "\x00\ud800\u202e -->"
)
TIMES = TimeRange(BEGAN_AT, BEGAN_AT + 100)


class Reader(HTMLParser):
    """What a browser would make of a page: its elements, in order, and the texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def lines(*texts: str) -> list[LogLine]:
    """Return lines of rank 0, one for each second."""
    return [
        LogLine(f"2026-11-26 08:00:{second:02}.000", "gpu1", 0, False, True, text.encode(), 0, b"")
        for second, text in enumerate(texts)
    ]


def values(*texts: str) -> dict[str, list[float]]:
    """Return the numbers that are found in these lines, by name."""
    return {
        plot.title: [middle for _, _, middle, _ in plot.bins] for plot in find_numbers(lines(*texts), "+00:00", TIMES)
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loss={}.5", {"loss": [1.5, 2.5, 3.5]}),
        ("step 7 | lr: {}e-4, next", {"lr": [1e-4, 2e-4, 3e-4]}),
        ("{{'loss': {}.25, \"grad_norm\": -{}}}", {"loss": [1.25, 2.25, 3.25], "grad_norm": [-1, -2, -3]}),
        ("tokens/s={},234.5", {"tokens/s": [1234.5, 2234.5, 3234.5]}),
        ("mfu={}%  mem: {}.5GB", {"mfu (%)": [1, 2, 3], "mem (GB)": [1.5, 2.5, 3.5]}),
        ("45%|###  | {}/9 [00:0{}<00:15, 3.5it/s, loss={}]", {"loss": [1, 2, 3]}),
        ("step: {}/100.", {"step": [1, 2, 3]}),
        ("time: 0{}:30:45 date={}-02-03 addr={}.0.0.1:80 version={}.2.3 id={}ab-c", {}),
        ("epoch 1 step 10{} loss {}.31 gradient norm 0.{} 12.{}k tokens/s",
         {"loss": [1.31, 2.31, 3.31], "gradient norm": [0.1, 0.2, 0.3]}),
        ("step 7: train loss {}.5, val loss {}.6", {"train loss": [1.5, 2.5, 3.5], "val loss": [1.6, 2.6, 3.6]}),
        ("iter {}: loss {}.5, time 12.{}ms, mfu {}.1%",
         {"loss": [1.5, 2.5, 3.5], "time (ms)": [12.1, 12.2, 12.3], "mfu (%)": [1.1, 2.1, 3.1]}),
        ("rank {} on gpu{} of 10.0.0.{}, torch 2.{}.0", {}),
        ("no number {}", {}),
        ("{}=5", {}),
    ],
)  # fmt: skip
def test_numbers_in_lines(text: str, found: dict[str, list[float]]) -> None:
    assert (
        values(*(text.replace("{}", str(number)).replace("{{", "{").replace("}}", "}") for number in (1, 2, 3)))
        == found
    )


def test_numbers_that_are_worth_a_plot() -> None:
    """Those that come three times and change; the most frequent first, and no more than twelve."""
    assert values("a=1 b=1 c=1", "a=2 b=1", "a=3 b=1") == {"a": [1, 2, 3]}
    many = " ".join(f"n{number}={{}}" for number in range(30))
    assert len(values(*(many.replace("{}", str(number)) for number in range(5)))) == 12
    assert [*values("a=1", "a=2", "a=3", "b=1", "b=2", "b=3", "b=4")] == ["b", "a"]


def test_a_loss_that_is_nan() -> None:
    (plot,) = find_numbers(lines("loss=1", "loss=1", "loss=nan", "loss=-inf", "loss=1e300", "loss=1"), "+01:00", TIMES)
    assert plot.bins == ()  # in another time zone it was an hour earlier
    (plot,) = find_numbers(lines("loss=1", "loss=1", "loss=nan", "loss=-inf", "loss=1e300", "loss=1"), "+00:00", TIMES)
    assert [middle for _, _, middle, _ in plot.bins] == [1, 1, 1]
    assert plot.note == "NaN or infinite 3 times, first at 2026-11-26 08:00:02"


@given(st.text(st.sampled_from("a=:. 1e-+,%/'\"nif"), max_size=300))
def test_any_line_can_be_read(text: str) -> None:
    values(text, text, text)


def test_a_long_line_takes_no_time() -> None:
    values(*["a" * 1_000_000, "a=" * 500_000, "1," * 500_000] * 3)


def test_a_long_run_is_reduced() -> None:
    """A value that stands out isn't lost in a mean."""
    found = Values(TIMES)
    for number in range(100_000):
        found.add(BEGAN_AT + number / 1000, 1000.0 if number == 50_000 else math.sin(number))
    for at in (0.0, 1e15):
        found.add(at, 5e9)
    assert len(found.bins) == MOST_BINS
    assert max(high for _, _, _, high in found.bins) == 1000
    assert all(low <= middle <= high for _, low, middle, high in found.bins)


def test_a_line_for_the_odd_gpu() -> None:
    samples = [
        Sample(BEGAN_AT + second, host, 10.0, None, {"0": (50, 1024, 300, 60, 1980), "1": (None, 2048, 300, 60, 1980)})
        for second in range(50) for host in ("a", "b")
    ]  # fmt: skip
    findings = [SampleFinding(BEGAN_AT, host, "hot", gpu) for host, gpu in (("b", 1), ("b", 1), ("x", 7))]
    plots = plot_samples(samples, findings, TIMES)
    names = ["GPU utilization (%)", "GPU memory (GiB)", "GPU power (W)", "GPU temperature (°C)", "SM clock (MHz)"]
    assert [plot.title for plot in plots] == [*names, "CPU of the hosts (%)"]  # of memory nothing is known
    assert [[line.name for line in plot.lines] for plot in plots] == [[], *[["b GPU 1"]] * 4, []]
    assert plots[1].bins[0][1:] == (1, pytest.approx(4 / 3), 2) and plots[1].lines[0].points[0] == (BEGAN_AT, 2)
    assert plots[0].note == "band: the other 3 GPUs; line: their mean"


def test_samples_of_any_form(tmp_path: Path) -> None:
    """A controller that was killed has written half a line, and a host may have sent anything."""
    sample = {"at": 1.5, "host": "a", "cpu": 3, "memory_used_gib": 4.5, "gpus": {"0": [1, 2, 3, None, 5, 6]}}
    wrong = [
        [], 7, {}, {"at": "x", "host": "a"}, {"at": 1, "host": 7}, {**sample, "at": 1e400}, {**sample, "at": True},
        {"at": 1, "host": "a", "finding": 3}, {"finding": "x"}, {**sample, "at": -1e14}, {**sample, "at": 1e14},
        {"at": -1e14, "host": "a", "finding": "x"}, {"at": 1e14, "host": "a", "finding": "x"},
    ]  # fmt: skip
    wrong += [{**sample, "gpus": {"0": each}} for each in ("x", ["a"], [{}], [True], [1e400])]
    odd = [{**sample, "gpus": {"1": []}}, {"at": 2, "host": "b"}]
    finding = {"at": 2, "host": "a", "gpu": 3, "rank": 11, "finding": "hot"}
    of_host = {"at": 4, "host": "b", "finding": "swaps"}
    text = "\n".join(json.dumps(each) for each in [sample, *wrong, *odd, finding, of_host])
    (tmp_path / "samples.jsonl").write_bytes(text.encode() + b"\n\xff\x00\n" + b"[" * 70_000 + b'\n{"at": 3, "ho')
    samples, findings = read_samples(tmp_path)
    assert samples == [
        Sample(1.5, "a", 3, 4.5, {"0": (1, 2, 3, None, 5, 6)}),
        Sample(1.5, "a", 3, 4.5, {"1": ()}),
        Sample(2, "b", None, None, {}),
    ]
    assert findings == [SampleFinding(2, "a", "hot", 3, 11), SampleFinding(4, "b", "swaps")]
    assert [each.place for each in findings] == ["a GPU 3 (rank 11)", "b"]
    assert read_samples(tmp_path / "none") == ([], [])


def test_a_line_of_samples_without_end(tmp_path: Path) -> None:
    """It is never whole in memory."""
    with (tmp_path / "samples.jsonl").open("wb") as file:
        file.truncate(20_000_000)
    tracemalloc.start()
    assert read_samples(tmp_path) == ([], [])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1_000_000


def test_a_long_file_of_samples_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings stay, and so does each host."""
    run = ExampleRun(hours=1).write(tmp_path)
    every, _ = read_samples(run.folder)
    monkeypatch.setattr("launcher.cli.report_page.contents._SAMPLE_BYTES", 60_000)
    few, findings = read_samples(run.folder)
    assert 0.05 < len(few) / len(every) < 0.2
    assert {sample.host for sample in few} == {sample.host for sample in every}
    assert [each.text for each in findings] == [FINDING]


@pytest.fixture(scope="module")
def half_an_hour(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(collect_contents(ExampleRun(hours=0.5).write(tmp_path_factory.mktemp("run"))))


def test_the_page_has_it_all(half_an_hour: str) -> None:
    page = Reader(half_an_hour)
    assert page.open == []
    for text in (
        "failed: 20261126-080000 (baseline)", "64 on 8 hosts", "2026-11-26 08:00:00", "30 min 00 s", "ann on laptop",
        "gpu2 rank 11: exit code 1", "reduce the batch size, or shard the optimizer's state",
        f"{ODD_HOST} GPU {ODD_GPU} (rank {ODD_RANK}): {FINDING}",
        "no line of its own", "3 attempts", "host: gpu2: lost: no heartbeat for 15 s",
        "the same error twice on the same rank", "loss", "tokens/s", "mfu (%)", "GPU temperature (°C)", "gpu2 GPU 3",
        "gpu[1-7]", "570.124.06", "gpu2: 6 GiB free in /tmp", "9b2e41d7aa03 (212 files from /home/ann/project)",
        "4f1c2a9be4c64cbf4b0b1c19d3f0a5a4cf0a3c51, 3 changed files",
        "launch --hosts 'gpu[1-8]' --sync --restarts 10 --detach train.py --lr 3e-4",
    ):  # fmt: skip
        assert text in page.text, text
    assert [text for tag, text in zip((tag for tag, _ in page.elements), page.texts, strict=False) if tag == "h2"]
    differs = [attributes for tag, attributes in page.elements if attributes.get("class") == "differs"]
    assert len(differs) == 1  # the driver of gpu8


def test_the_page_loads_and_runs_nothing(half_an_hour: str) -> None:
    page = Reader(half_an_hour)
    names = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in names if name in ("style", "id", "src") or name.startswith("on")}, names
    assert [attributes["href"] for _, attributes in page.elements if "href" in attributes] == ["data:,"]
    assert not {tag for tag, _ in page.elements} & {"script", "use", "image", "img", "iframe", "object", "a"}
    assert re.search(r"https?:|url\(|@import", half_an_hour) is None
    style = hashlib.sha256(half_an_hour.partition("<style>")[2].partition("</style>")[0].encode()).digest()
    policy = page.elements[[tag for tag, _ in page.elements].index("meta") + 1][1]["content"] or ""
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{base64.b64encode(style).decode()}'; "), policy


def test_plots_are_drawings_with_text_in_them(half_an_hour: str) -> None:
    page = Reader(half_an_hour)
    images = [attributes for tag, attributes in page.elements if tag == "svg" and attributes.get("role") == "img"]
    assert len(images) == 6 + 7  # the numbers of rank 0, the samples
    assert sum(tag == "figure" for tag, _ in page.elements) == 13
    assert "08:10" in page.texts
    classes = [attributes["class"] or "" for _, attributes in page.elements if "class" in attributes]
    assert classes.count("line s1") == 5 * 3 and classes.count("s1") == 5  # the odd GPU, in three attempts
    css = resources.files("launcher.cli.report_page").joinpath("templates/style.css").read_text("utf-8")
    assert {word for each in classes for word in each.split() if f".{word}" not in css} == set()
    gaps = {attributes["width"] for _, attributes in page.elements if attributes.get("class") == "gap"}
    assert gaps and all(0 < float(gap) < 10 for gap in gaps)  # of a few seconds in half an hour


def test_a_day_of_64_gpus_is_a_small_page(tmp_path: Path) -> None:
    run = ExampleRun(hours=24, every_s=300).write(tmp_path)  # more samples are as many bins
    contents = tell_contents(run)
    text = write_page(read_contents(json.loads(json.dumps(contents))))
    assert len(text.encode()) < 500_000
    assert max(len(plot["bins"]) for plot in contents["samples"]) == MOST_BINS


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Wherever it comes from: a name, a line, run.json, a sample."""
    example = ExampleRun(hours=0.1)
    plain = Reader(write_page(collect_contents(example.write(tmp_path / "plain"))))
    record = example.record()
    more = {
        "hosts": [{**host, "torch_version": HOSTILE} for host in record["hosts"]], "warnings": [HOSTILE] * 2,
        "command": HOSTILE, "directory": HOSTILE,
    }  # fmt: skip
    said = "x" * 1_000_000 + "<script>"
    hostile = replace(example, name=HOSTILE, error=HOSTILE[:60], said=said, finding=HOSTILE, more=more)
    text = write_page(collect_contents(hostile.write(tmp_path / "hostile")))
    page = Reader(text)
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert page.text.count("<script>alert(1)</script>") >= 10
    assert len(text) < 500_000
    assert not set(text) & {*map(chr, [*range(0x09), *range(0x0B, 0x20), 0x7F, 0x202E, 0xD800])}


@pytest.mark.parametrize("broken", [
    None, [], {}, {"record": []}, {"numbers": [{"title": "a"}]}, {"times": {"begin": "x", "end": 1}},
    {"numbers": [{"title": "a", "bins": [[1, 2, 3]], "lines": [], "note": ""}]}, {"made_at": math.inf},
    {"numbers": [{"title": "a", "bins": [[1, 2, 3, 4]] * 5000, "lines": [], "note": ""}]},
])  # fmt: skip
def test_what_a_host_sends_has_a_form(tmp_path: Path, broken: object) -> None:
    told = json.loads(json.dumps(tell_contents(ExampleRun(hours=0.01, hosts=2).write(tmp_path))))
    assert read_contents(told).run == RUN_ID
    found = {**told, **broken} if isinstance(broken, dict) and broken else broken
    with pytest.raises(FormError):
        read_contents(found)


def test_runs_of_which_little_is_known(tmp_path: Path) -> None:
    """One that hasn't started its ranks, one of an earlier version, and one whose logs were removed."""
    run = ExampleRun(hours=0.1).write(tmp_path)
    record = json.loads((run.folder / "run.json").read_text())
    old = {name: value for name, value in record.items() if name != "hosts"}
    (run.folder / "run.json").write_text(json.dumps(old))
    assert "3 attempts" in Reader(write_page(collect_contents(run))).text
    for path in run.folder.iterdir():
        path.unlink()
    assert "The run has failed." in Reader(write_page(collect_contents(run))).text
    run.folder.rmdir()
    with pytest.raises(UsageError, match="were removed"):
        collect_contents(run)


def test_a_long_error_is_cut_in_the_row_of_its_attempt(tmp_path: Path) -> None:
    """torch names all keys that a state_dict lacks in one line."""
    error = f"RuntimeError: Missing key(s): {'layer.weight, ' * 1000}the end"
    page = Reader(write_page(collect_contents(ExampleRun(hours=0.1, hosts=2, error=error).write(tmp_path))))
    row = next(text for text in page.texts if text.startswith("error: gpu2 rank 11: RuntimeError: Missing key(s)"))
    assert len(row) < 400
    assert any(text.endswith("the end") for text in page.texts)


def test_what_is_left_of_a_run(tmp_path: Path) -> None:
    example = ExampleRun(hours=0.1, hosts=2)
    result = {**example.record()["result"], "left": {"gpu1": [[7, "python", "S"]]}, "unreachable": {"gpu2": 8}}
    run = replace(example, more={"result": result}).write(tmp_path)
    page = Reader(write_page(collect_contents(run)))
    assert {"gpu1: pid 7 (python) is still running", "gpu2 could not be reached at the end"} < {*page.texts}
    assert find_value(run, "agents") == {"is_alive": False, "exit_code": 1, "missing": ["gpu2"]}


def test_many_attempts_and_hosts(tmp_path: Path) -> None:
    """What isn't shown is counted."""
    example = ExampleRun(hours=0.1, hosts=2)
    many = {"attempts": example.record()["attempts"] * 100}
    page = Reader(write_page(collect_contents(replace(example, more=many).write(tmp_path))))
    assert "300 attempts, of which the last 200" in page.text
    assert "100" in page.texts and "299" in page.texts and "99" not in page.texts


def test_a_run_whose_controller_was_killed(tmp_path: Path) -> None:
    """Its plots end where its logs do, not now."""
    run = replace(ExampleRun(hours=0.1, more={"ended_at": None, "result": None}).write(tmp_path), end=None)
    for path in run.folder.glob("*.log"):
        os.utime(path, (0, BEGAN_AT + 300 + (path.name == "node_0.log")))
    contents = collect_contents(run)
    assert contents.times == TimeRange(BEGAN_AT, BEGAN_AT + 301)
    assert "The launch that controlled the run was killed" in Reader(write_page(contents)).text


def test_times_below_a_plot() -> None:
    day = TimeRange(BEGAN_AT, BEGAN_AT + 86400)
    assert [text for _, text in find_times(day, timezone.utc)] == ["12:00", "18:00", "00:00", "06:00"]
    assert [text for _, text in find_times(TimeRange(BEGAN_AT + 1, BEGAN_AT + 8), timezone.utc)] == [
        "08:00:02", "08:00:04", "08:00:06", "08:00:08"
    ]  # fmt: skip
    assert len(find_times(TimeRange(BEGAN_AT, BEGAN_AT + 10 * 365 * 86400), timezone.utc)) <= 7
    assert len(find_times(TimeRange(BEGAN_AT, BEGAN_AT), timezone.utc)) <= 1


def draw_lines(plot: Plot, gaps: Sequence[tuple[float, float]] = ()) -> list[list[tuple[float, float]]]:
    """Return the points of the lines of a plot over TIMES."""
    lines = [points for name, points in draw_plot(plot, TIMES, gaps, timezone.utc).shapes if name != "band"]
    return [[(float(x), float(y)) for x, _, y in (each.partition(",") for each in line.split())] for line in lines]


def test_a_plot_is_to_scale() -> None:
    plot = Plot("a", tuple((BEGAN_AT + at, 0.0, float(at), 100.0) for at in (0, 50, 100)))
    chart = draw_plot(plot, TIMES, [], timezone.utc)
    (line,) = draw_lines(plot)
    assert [at for at, _ in line] == [*map(pytest.approx, (chart.left, (chart.left + RIGHT) / 2, RIGHT))]
    assert line[0][1] == BOTTOM and line[1][1] == pytest.approx((line[0][1] + line[2][1]) / 2, abs=0.1)
    (name, points), _ = chart.shapes
    assert name == "band" and len(points.split()) == 6
    assert [(at, text) for at, text in chart.y_ticks if text == "0"] == [(BOTTOM, "0")]
    assert chart.title == "a: 3 points from 0 to 100"


def test_a_plot_of_one_point_can_be_seen() -> None:
    """As the round ends of a line."""
    plot = Plot("a", ((BEGAN_AT + 50, 1.0, 1.0, 1.0),), (Line("gpu1 GPU 0", ((BEGAN_AT + 50, 1.0),)),))
    assert [len(line) for line in draw_lines(plot)] == [2, 2]
    assert draw_plot(plot, TimeRange(BEGAN_AT, BEGAN_AT), [], timezone.utc).y_ticks


def test_no_line_goes_through_the_gap_of_a_restart() -> None:
    points = tuple((BEGAN_AT + at, 1.0, 2.0, 3.0) for at in (10, 20, 80, 90))
    plot = Plot("loss", points, (Line("gpu1 GPU 0", tuple(each[:2] for each in points)),))
    assert len(draw_lines(plot)) == 2
    gap = (BEGAN_AT + 60, BEGAN_AT + 70)
    assert [len(line) for line in draw_lines(plot, [gap])] == [2, 2, 2, 2]
    chart = draw_plot(plot, TIMES, [gap], timezone.utc)
    ((left, width),) = chart.gaps
    assert (left - chart.left) / (RIGHT - chart.left) == pytest.approx(0.6)
    assert width / (RIGHT - chart.left) == pytest.approx(0.1)


@given(st.floats(-1e18, 1e18), st.floats(1e-12, 1e18))
@example(2.225073858507e-311, 20000000000001.0)
def test_ticks_are_few_and_between(low: float, span: float) -> None:
    high = low + span
    steps = find_steps(low, high, 4) if high > low else []
    assert len(steps) <= 5 and all(low <= step <= high for step in steps)


def test_ticks_are_round() -> None:
    assert find_steps(93.1, 100.2, 4) == [94, 96, 98, 100]
    assert [show_number(step) for step in find_steps(0, 3.1e-4, 4)] == ["0", "0.0001", "0.0002", "0.0003"]
    assert [*map(show_number, (412_034.4, 0.08214, 1e12, -1500))] == ["412,034", "0.08214", "1e+12", "-1,500"]
