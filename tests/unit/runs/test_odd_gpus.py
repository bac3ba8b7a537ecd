"""Which GPU, or which host, stands out among those of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from launcher.job.facts import GpuSample, HostSample, Xid, describe_reasons
from launcher.runs.odd_gpus import HostInterval, OddWatch, Samples

WELL = GpuSample(0, "H100", 99, 71000, 81559, 650.0, 700.0, 61, 1980, 1980, 0x4, 0)
IDLE = replace(WELL, utilization=0, power_w=75.0, clock_mhz=345, reasons=0x1)
HOST = HostSample(40, 30, 512 << 10, 90 << 10, 0, 50, 1000)
Change = Callable[[str, GpuSample], GpuSample]


def interval(
    change: Change = lambda place, gpu: gpu, hosts: Mapping[str, HostSample] | None = None, gpu: GpuSample = WELL
) -> dict[str, HostInterval]:
    """Return what two hosts with four GPUs each did in 15 s; change: by which a GPU, `g1 3`, differs."""
    found = {}
    for name in ("g1", "g2"):
        samples = Samples()
        for _ in range(3):
            gpus = [change(f"{name} {index}", replace(gpu, index=index)) for index in range(4)]
            samples.add((hosts or {}).get(name, HOST), gpus, None)
        summed = samples.sum_up()
        assert summed is not None
        found[name] = summed
    return found


def only(place: str, **values: object) -> Change:
    return lambda where, gpu: replace(gpu, **values) if where == place else gpu  # type: ignore[arg-type]


def find(*intervals: Mapping[str, HostInterval]) -> list[list[str]]:
    """Return what stands out after each interval."""
    ranks = {(name, gpu): 4 * number + gpu for number, name in enumerate(("g1", "g2")) for gpu in range(4)}
    watch = OddWatch(ranks, {("g2", "0000:3b:00"): 3})
    return [[odd.describe() for odd in watch.take(each)] for each in intervals]


HOT = only("g2 3", clock_mhz=800, reasons=0x44, temperature_c=87, power_w=300.0)


def test_a_clock_that_heat_holds_down() -> None:
    text = "g2 GPU 3 (rank 7): thermal slowdown for 30 s, SM clock 800 MHz"
    assert find(interval(), interval(HOT), interval(HOT), interval()) == [[], [], [text], []]


def test_heat_now_and_then_is_no_finding() -> None:
    hot = iter([False, True, True] * 8)
    change: Change = lambda where, gpu: HOT(where, gpu) if where == "g2 3" and next(hot) else gpu  # noqa: E731
    assert find(*(interval(change) for _ in range(6))) == [[]] * 6


NOTHING = dict.fromkeys([field for field in GpuSample.__slots__ if field not in ("index", "name")])
LOST = "it stopped answering: the host may have lost it"


def test_a_gpu_that_is_lost_stops_answering() -> None:
    """NVML fails in each call about it, and nvidia-smi may leave it out."""
    silent, without = only("g2 1", **NOTHING), interval()
    without["g2"] = replace(without["g2"], gpus={index: gpu for index, gpu in without["g2"].gpus.items() if index != 1})
    text = f"g2 GPU 1 (rank 5): {LOST}"
    assert find(interval(), interval(silent), without, interval(silent), interval()) == [[], [text], [text], [text], []]


def test_a_gpu_that_never_told_anything_is_not_lost() -> None:
    """As a Jetson's, and one whose host can't be read at the moment."""
    assert find(*[interval(only("g2 1", **NOTHING))] * 2) == [[], []]
    failed = interval()
    failed["g2"] = replace(failed["g2"], gpus={}, error="nvidia-smi hangs: no answer for 5 s (process 7)")
    assert find(interval(), failed) == [[], ["g2: nvidia-smi hangs: no answer for 5 s (process 7)"]]


@pytest.mark.parametrize(
    ("values", "usual", "text"),
    [
        ({"utilization": 20}, WELL, "odd utilization for 4 min: 20 %, the others' median is 99 %"),
        (
            {"power_w": 400.0, "clock_mhz": 1200},
            WELL,
            "odd power for 4 min: 400 W, the others' median is 650 W",
        ),
        (
            {"utilization": 100},
            replace(WELL, utilization=10),
            "odd utilization for 4 min: 100 %, the others' median is 10 %",
        ),
    ],
)
def test_utilization_and_power_apart_for_four_minutes(values: dict[str, float], usual: GpuSample, text: str) -> None:
    apart = interval(only("g1 2", **values), gpu=usual)
    assert find(*[apart] * 16) == [[]] * 15 + [[f"g1 GPU 2 (rank 2): {text}"]]
    assert find(*[apart] * 15, interval(), *[apart] * 14) == [[]] * 30, "it was as the others in between"


@pytest.mark.parametrize(
    ("odd", "values"),
    [
        (("g1 0", "g1 1", "g2 0"), {"utilization": 60}),
        ((), {}),
    ],
)
def test_a_job_that_differs_from_rank_to_rank_has_no_odd_one(odd: Sequence[str], values: dict[str, float]) -> None:
    """As the stages of a pipeline do, and ranks that all idle."""
    change: Change = lambda where, gpu: replace(gpu, **values) if where in odd else gpu  # type: ignore[arg-type] # noqa: E731
    assert find(*[interval(change, gpu=WELL if odd else IDLE)] * 20) == [[]] * 20


def test_errors_are_named_at_once() -> None:
    assert find(interval(), interval(only("g2 1", ecc_errors=2)))[-1] == [
        "g2 GPU 1 (rank 5): 2 uncorrectable memory errors since its ranks started: its results may be wrong"
    ]
    assert find(interval(only("g2 1", ecc_errors=2)), interval(only("g2 1", ecc_errors=2)))[-1] == [], "before the run"
    faulty = replace(HOST, xids=(Xid("0000:3b:00", 79), Xid("0000:3b:00", 13), Xid("0000:ff:00", 48)))
    assert find(interval(hosts={"g2": faulty}))[-1] == [
        "g2 GPU 3 (rank 7): the driver logged Xid 79: a hardware or driver fault",
        "g2: the driver logged Xid 48 of the GPU at PCI 0000:ff:00: a hardware or driver fault",
    ]


def test_a_host_that_swaps() -> None:
    sick = interval(hosts={"g1": replace(HOST, swap_mib_s=120.0, memory_used_mib=510 << 10)})
    text = "g1: it swaps 120 MiB/s: 510 of 512 GiB of memory are in use"
    assert find(sick, sick, interval()) == [[], [text], []], "it may be for a moment"


def test_a_fault_that_the_driver_has_logged_stays() -> None:
    faulty = replace(HOST, xids=(Xid("0000:3b:00", 79),))
    told = find(interval(), interval(hosts={"g2": faulty}), *[interval()] * 20)
    assert told[1:] == [["g2 GPU 3 (rank 7): the driver logged Xid 79: a hardware or driver fault"]] * 21


def test_a_host_that_is_gone_for_a_while() -> None:
    one = {"g1": interval()["g1"]}
    assert find(interval(HOT), one, interval(HOT), interval(HOT)) == [
        [],
        [],
        [],
        find(interval(HOT), interval(HOT))[-1],
    ]
    assert find(one, {}, interval()) == [[], [], []]


def test_a_reader_that_hangs_and_samples_without_values() -> None:
    samples = Samples()
    assert samples.sum_up() is None
    samples.add(None, (), "what reads its GPUs hangs")
    summed = samples.sum_up()
    assert summed is not None
    assert find({"g1": summed}) == [["g1: what reads its GPUs hangs"]]
    silent = Samples()
    silent.add(HostSample(), [GpuSample(0, "H100")], None)
    told = silent.sum_up()
    assert told is not None
    assert find(*[{"g1": told, "g2": told}] * 17) == [[]] * 17


def test_reasons_in_words() -> None:
    assert [describe_reasons(bits) for bits in (None, 0, 0x1, 0x4, 0x60, 0x88, 0x08)] == [
        "", "", "", "power cap", "thermal slowdown", "power brake", "hardware slowdown",
    ]  # fmt: skip
