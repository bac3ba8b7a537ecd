"""What `launch top` shows, on screens of several sizes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli.top import as_lines, find_users, watch_run
from launcher.cli.top_screen import HostNow, RunNow, draw, now_as_text, parse_now
from launcher.job.facts import BoxClaim, Gpu, GpuSample, GpuUse, HostSample, NodeFacts
from launcher.output.output_streams import Style
from launcher.runs.run_list import RunList

GPU = GpuSample(0, "NVIDIA H100", 99, 71 << 10, 80 << 10, 650.0, 700.0, 61, 1980, 1980, 0x4, 0)
HOST = HostSample(37.0, 35.0, 512 << 10, 93 << 10, 0.0, 12.0, 1200.0)
ODD = "gpu2 GPU 3 (rank 19): thermal slowdown for 30 s, SM clock 800 MHz, the other 63 run at 1,980 MHz"


def host(number: int, **hot: object) -> HostNow:
    """Return a host whose eight GPUs have ranks; hot: how its GPU 3 differs."""
    gpus = tuple(replace(GPU, index=index, **(hot if index == 3 else {})) for index in range(8))  # type: ignore[arg-type]
    return HostNow(1000.0, HOST, gpus, ranks={str(index): 8 * number + index for index in range(8)})


def hosts(number: int) -> RunNow:
    return RunNow(1001.0, {f"gpu{n}": host(n, **(HOT if n == 2 else {})) for n in range(number)}, (ODD,))


HOT = {"clock_mhz": 800.0, "reasons": 0x40, "temperature_c": 87.0}


def test_each_gpu_where_there_is_room() -> None:
    shown = draw(RunNow(1001.0, {"gpu0": host(0)}), 80, 24, "nightly")
    assert [line.text for line in shown[:5]] == [
        "nightly",
        "HOST  GPU  UTIL %  MEM GiB  POWER W  TEMP C     SM MHz  HELD BY    RANK",
        "gpu0  CPU 37 %  load 35  memory 93/512 GiB  disk 12 % free  network 1,200 MiB/s",
        "      0        99    71/80  650/700      61  1980/1980  power cap  0",
        "      1        99    71/80  650/700      61  1980/1980  power cap  1",
    ]
    assert len(shown) == 11


def test_eight_hosts_with_eight_gpus_fit_80_x_24() -> None:
    shown = draw(hosts(8), 80, 23, "nightly")
    assert [line.text for line in shown[1:8]] == [
        "HOST GPU     UTIL % MEM GiB POWER W TEMP C    SM MHz HELD BY   RANK",
        "gpu2  CPU 37 %  load 35  memory 93/512 GiB  disk 12 % free  network 1,200 MiB/s",
        "     0-2,4-7     99   71/80 650/700     61 1980/1980 power cap 16-18, 20-23",
        "     3           99   71/80 650/700     87  800/1980 thermal   19",
        "gpu0  CPU 37 %  load 35  memory 93/512 GiB  disk 12 % free  network 1,200 MiB/s",
        "     0-7         99   71/80 650/700     61 1980/1980 power cap 0-7",
        "gpu1  CPU 37 %  load 35  memory 93/512 GiB  disk 12 % free  network 1,200 MiB/s",
    ]
    assert len(shown) <= 23 and all(len(line.text) <= 80 for line in shown)
    assert [line.style for line in shown[4:5]] == [Style.STRONG]
    assert " ".join(line.text.strip() for line in shown[-2:]) == f"! {ODD}"


def test_many_hosts_fold() -> None:
    shown = [line.text for line in draw(hosts(64), 100, 23, "nightly")]
    assert shown[2].startswith("gpu2           0-2,4-7  ") and shown[3].lstrip().startswith("3  ")
    assert shown[4].startswith("gpu[0-1,3-63]  0-7  ") and len(shown) == 6


def test_nothing_is_wider_or_higher_than_the_screen() -> None:
    for width in (20, 40, 80):
        for height in (5, 10, 24):
            shown = draw(hosts(30), width, height, "a long title " * 9)
            assert len(shown) <= height and max(len(line.text) for line in shown) <= width


def test_hosts_that_are_lost_or_hang_stay_and_come_first() -> None:
    now = RunNow(1030.0, {
        "gpu0": replace(host(0), at=1029.0), "gpu1": replace(host(1), lost="no heartbeat for 15 s"),
        "gpu2": replace(host(2), error="what reads its GPUs hangs (process 7, state D)"), "gpu3": HostNow(0.0),
    })  # fmt: skip
    shown = [line.text for line in draw(now, 100, 60)]
    assert shown[1] == "gpu1  lost: no heartbeat for 15 s"
    assert "gpu2  what reads its GPUs hangs (process 7, state D)" in shown
    assert "gpu3  has told nothing yet" in shown
    assert "told this" not in "".join(shown)
    assert "gpu0  told this 30 s ago" in [line.text for line in draw(replace(now, at=1059.0), 100, 60)]


def test_users_of_gpus() -> None:
    facts = NodeFacts("", "", gpus=tuple(Gpu(index, "H100", 80, "1", uuid=f"GPU-{index}") for index in range(4)))
    claims = [
        BoxClaim("ann", "20261126-1", 0.0, "nightly", (0, 1)), BoxClaim("bob", "20261126-2", 0.0, None, (1,)),
        BoxClaim("eve", "20261126-3", 0.0, None, (0, 1, 2), is_waiting=True),
        BoxClaim("joe", "", 0.0, None, (4,)),
    ]  # fmt: skip
    uses = [GpuUse("GPU-0", 1, "ann", "python"), GpuUse("GPU-2", 2, "carl", "python"), GpuUse("GPU-3", 3)]
    assert find_users(facts, claims, uses) == {
        "0": "ann's nightly", "1": "ann's nightly, bob's 20261126-2", "2": "python (carl)", "3": "process 3",
        "4": "joe's unresponsive run",
    }  # fmt: skip
    assert find_users(None, (), uses) == {}


def test_json_lines_and_the_file_of_a_run() -> None:
    now = hosts(3)
    assert parse_now(now_as_text(now).encode()) == now
    lines, last = as_lines(now, {})
    assert (len(lines), last) == (3, {"gpu0": 1000.0, "gpu1": 1000.0, "gpu2": 1000.0})
    assert as_lines(now, last)[0] == []


def test_a_run_is_followed_by_its_samples(tmp_path: Path) -> None:
    """Not those of long ago, nor those of a host that tells nothing any more; what stands out is beside them."""
    entry = RunList(tmp_path / "runs").begin("20261120-091233", None, tmp_path)
    (run,) = RunList(tmp_path / "runs").read()
    at = time.time()

    def line(host: str, at: float, **more: object) -> str:
        known = {"cpu": 37, "load": 35, "memory_used_gib": 93.0, "memory_gib": 512.0, "disk_free": 12, "network": 1200}
        gpus = {"3": [99, 72704, 650, 61, 1980, 4, 11, 81920, 700, 1980]}
        return json.dumps({"at": at, "host": host, **known, "model": "NVIDIA H100", "gpus": gpus, **more}) + "\n"

    finding = json.dumps({"at": at, "host": "g1", "gpu": 3, "rank": 11, "finding": "slow"}) + "\n"
    older = json.dumps({"at": at, "host": "g9", "cpu": 1, "memory_used_gib": 1.0, "gpus": {"0": [1, 2, 3, 4, 5, 6]}})
    lines = [line("g3", at - 60), line("g1", at - 15), f"{older}\n", line("g1", at, odd=["g1: slow"]), finding]
    (tmp_path / "samples.jsonl").write_text("".join([*lines, line("g2", at + 1)[:9]]))
    watching = watch_run(run)
    now = next(watching)
    gpu = replace(GPU, index=3, ecc_errors=None)
    assert now.hosts == {"g1": HostNow(at, replace(HOST, swap_mib_s=None), (gpu,), ranks={"3": 11})}
    assert now.odd == ("g1: slow",)
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write(line("g2", at + 1)[9:])
    assert [*next(watching).hosts] == ["g1", "g2"]
    entry.close(is_kept=True)
    assert [*watching] == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"at": "x"}', '{"at": 1, "hosts": {"a": 1}}', '{"at": 1e999}', "[" * 100_000,
     '{"at": 1, "hosts": {"a": {"at": 1, "gpus": [[1]]}}}'],
)  # fmt: skip
def test_what_no_run_has_written(text: str) -> None:
    assert parse_now(text.encode()) is None
