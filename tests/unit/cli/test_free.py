"""launch free: the table whole as it is printed, and its exit code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machines.example_facts import facts

from launcher.cli.free import Box, Survey, table
from launcher.errors import EXIT_UNREACHABLE, HostFailure, HostFailureKind
from launcher.forms import reader_of
from launcher.hosts.host import Host
from launcher.job.facts import BoxClaim, Gpu, GpuProcess
from launcher.node import messages

NOW = 1_800_000_000.0
GPUS = tuple(Gpu(index, "H100", 81559, "550.54", free_mib=81000) for index in range(8))
WITH_DESKTOP = replace(GPUS[1], free_mib=70000, has_display=True)
SHARED = replace(GPUS[2], processes=(GpuProcess(99, 30, "root", "nvidia-cuda-mps"),))
ANN = BoxClaim("ann", "20261124-091233", NOW - 7200, "nightly", (4, 5, 6, 7))
BOB = BoxClaim("bob", "20261124-101500", NOW - 60, None, (6, 7), is_shared=True)
RESERVED = BoxClaim("ann", "20261124-091233", NOW - 7200, gpus=tuple(range(8)))
OFF = HostFailure("gpu9", HostFailureKind.TIMED_OUT, "10.0.0.9 port 22 does not answer", "is it on?", "10.0.0.9")


def box(name: str, *claims: BoxClaim, gpus: tuple[Gpu, ...] = GPUS, error: str | None = None) -> Box:
    return Box(Host(name), facts(gpus=gpus, gpu_error=error), claims)


def used(gpus: dict[int, tuple[GpuProcess, ...]]) -> tuple[Gpu, ...]:
    return tuple(replace(gpu, processes=gpus.get(gpu.index, ())) for gpu in GPUS)


def python(pid: int, owner: str | None, mib: int = 10240) -> GpuProcess:
    return GpuProcess(pid, mib, owner, "python")


@pytest.mark.parametrize(
    ("boxes", "lines"),
    [
        ((box("gpu1"), box("gpu2")), ["gpu[1-2]  GPU 0-7  free", "16 of 16 GPUs are free"]),
        (
            (box("gpu1", ANN), box("gpu3", ANN, BOB), box("gpu2", ANN)),
            [
                "gpu[1-2]  GPU 0-3  free",
                "          GPU 4-7  ann, run 20261124-091233 (nightly), for 2 h 00 min",
                "gpu3      GPU 0-3  free",
                "          GPU 4-5  ann, run 20261124-091233 (nightly), for 2 h 00 min",
                "          GPU 6-7  ann, run 20261124-091233 (nightly), for 2 h 00 min",
                "                   bob, run 20261124-101500, for 1 min 00 s, shared (--share)",
                "12 of 24 GPUs are free: --include 'gpu[1-3]:0,1,2,3'",
            ],
        ),
        (
            (box("gpu1", ANN, gpus=used({0: (python(7, "cid"),), 3: (python(8, "cid"),), 4: (python(9, "ann"),)})),),
            [
                "gpu1  GPU 0,3  pid 7 and 8 (python) of cid, 20 GB, no claim",
                "      GPU 1-2  free",
                "      GPU 4-7  ann, run 20261124-091233 (nightly), for 2 h 00 min",
                "2 of 8 GPUs are free: --include gpu1:1,2",
            ],
        ),
        (
            (box("gpu1", ANN, gpus=used({4: (python(7, "cid"),), 5: (python(8, None),)})),),
            [
                "gpu1  GPU 0-3  free",
                "      GPU 4    ann, run 20261124-091233 (nightly), for 2 h 00 min",
                "               pid 7 (python) of cid, 10 GB, no claim",
                "      GPU 5-7  ann, run 20261124-091233 (nightly), for 2 h 00 min",
                "4 of 8 GPUs are free: --include gpu1:0,1,2,3",
            ],
        ),
        (  # a lost one, one with a desktop on it, and one whose only process lets others share it (MPS)
            (box("gpu1", gpus=(replace(GPUS[0], fault="GPU is lost"), WITH_DESKTOP, SHARED)),),
            [
                "gpu1  GPU 0    doesn't respond (GPU is lost)",
                "      GPU 1-2  free",
                "2 of 3 GPUs are free: --include gpu1:1,2",
            ],
        ),
        (
            (box("gpu1", gpus=(replace(GPUS[0], free_mib=1000), GPUS[1])),),
            [
                "gpu1  GPU 0  79 GB in use by a process that isn't visible there, no claim",
                "      GPU 1  free",
                "1 of 2 GPUs is free: --include gpu1:1",
            ],
        ),
        (
            (box("cpu1", gpus=(), error=messages.NO_GPU_TOOL), box("cpu2", gpus=(), error="driver mismatch")),
            [
                "cpu1  no GPUs",
                "cpu2  no GPUs",
                "               its GPU tool reports an error: driver mismatch",
            ],
        ),
        (
            (box("gpu1", RESERVED), box("gpu2", replace(ANN, gpus=()))),
            [
                "gpu1  GPU 0-7  ann, run 20261124-091233, for 2 h 00 min",
                "gpu2  GPU 0-7  free",
                "8 of 16 GPUs are free: --include gpu2:0,1,2,3,4,5,6,7",
            ],
        ),
    ],
)
def test_tables(boxes: tuple[Box, ...], lines: list[str]) -> None:
    assert table(Survey(boxes, (), NOW)) == lines
    assert Survey(boxes, (), NOW).exit_code == 0


def test_a_host_that_cant_be_reached_and_a_container() -> None:
    chosen = Box(Host("gpu1", gpus=(1, 2)), facts(gpus=GPUS), (), "it is a container")
    found = Survey((chosen,), (OFF,), NOW)
    assert table(found) == [
        "gpu1  GPU 1-2  free",
        "               it is a container",
        "gpu9  can't be used: 10.0.0.9 port 22 does not answer",
        "      fix: is it on?",
        "2 of 2 GPUs are free",
    ]
    assert found.exit_code == EXIT_UNREACHABLE


def test_no_text_of_a_claim_or_process_reaches_the_terminal_as_it_is() -> None:
    """Whoever writes a claim names its run; whoever starts a process names that."""
    bad = "x\x1b]52;c;aGk=\x07\x9b2J\u202e\n"
    claim = reader_of(BoxClaim)({"user": bad, "run": bad, "name": bad, "since": NOW, "gpus": [1]})
    process = reader_of(GpuProcess)({"pid": 1, "name": bad, "owner": bad, "mark": bad})
    text = "".join(table(Survey((box("gpu1", claim, gpus=used({0: (process,), 1: (process,)})),), (), NOW)))
    assert text.isprintable()
    assert "run x?" in text
