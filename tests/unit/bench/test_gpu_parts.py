"""The parts of `python -m bench gpu`: what counts as pass, judged by texts that real programs print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.gpu.checks import judge_busy, match_gpus
from bench.gpu.collectives import judge_loads, judge_results
from bench.gpu.faults import GPU_FULL, HOST_FULL, SHARED
from bench.gpu.hardware import Gpu, Hardware, parse_hardware
from bench.gpu.one_gpu import judge_spread
from bench.gpu.part import NotRunError, Outcome, Part, PartError, Verdict
from bench.gpu.speed import judge_speed
from bench.gpu.table import PARTS, main, report_part, run_part
from bench.gpu.trial import AS_HOST, Trial
from launcher.diagnosis.signatures import explain_lines

ROOT = Path(__file__).parents[3]
H100 = Gpu("NVIDIA H100 80GB HBM3", 84_929_347_584, "GPU-8932f937")  # 79.1 GiB, of nvidia-smi's 81559 MiB
BUSY = """\
1 host responded (0.5 s)
  node1      GPU 0 busy: pid 4411 (python) of ann, 11 GB
             fix: if run 20261120-091233 is over, stop it with `launch clean`
"""
HIDDEN = "node1  GPU 0: 8.1 GB in use by a process that isn't visible there"
ELSEWHERE = "node1  GPU 0 busy: pid 4411, not visible there (another container?), 11 GB"
RUN = "20261120-091233"


def fact(name: str, memory_mib: int | None) -> dict[str, object]:
    """Return a GPU as `launch check --json` shows it."""
    return {"index": 0, "name": name, "memory_mib": memory_mib}


def known(count: int) -> Hardware:
    return Hardware([H100] * count, "2.13.0", "13.0", "2.28.9", "580.159.04", 16)


def make_part(run: Callable[[Trial], Outcome], *, gpus: int = 1, has_cpu_form: bool = True) -> Part:
    return Part("some", "does", "passes", run, gpus=gpus, has_cpu_form=has_cpu_form)


def judge(tmp_path: Path, run: Callable[[Trial], Outcome], gpus: int = 1) -> tuple[Verdict, Outcome]:
    return run_part(make_part(run), Trial(tmp_path, known(gpus), gpus, time.monotonic() + 60))


def fail(error: Exception) -> Callable[[Trial], Outcome]:
    def run(trial: Trial) -> Outcome:
        raise error

    return run


def test_the_help_names_the_parts_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Usage: python -m bench gpu [PART]..."
    assert [line.split()[0] for line in lines[-len(PARTS) :]] == [part.name for part in PARTS]


def test_the_header_names_the_hardware() -> None:
    probe = '{"torch": "2.13.0+cu130", "cuda": "13.0", "nccl": "2.28.9", "gpus": [["NVIDIA H100 80GB HBM3", 84929347584, "GPU-1"]]}'  # noqa: E501
    assert str(parse_hardware(f"a warning\n{probe}\n", "580.159.04\n580.159.04\n", 16)) == (
        "1 x NVIDIA H100 80GB HBM3 (79.1 GiB), 16 cores, driver 580.159.04, torch 2.13.0+cu130, CUDA 13.0, NCCL 2.28.9"
    )
    probe = '{"torch": "2.13.0+cpu", "cuda": null, "nccl": null, "gpus": []}'
    assert str(parse_hardware(probe, "", 2)) == "no GPU, 2 cores, torch 2.13.0+cpu"


def test_facts_match_if_names_and_memory_do() -> None:
    facts = [fact("NVIDIA T4", 15360), fact(H100.name, 81559)]
    (share,) = match_gpus(facts, [H100], all_visible=False)
    assert share == pytest.approx(0.993, abs=0.001)
    for wrong in ([fact(H100.name, 40960)], [fact(H100.name, 90000)], [fact("NVIDIA H100 PCIe", 81559)],
                  [fact(H100.name, None)]):  # fmt: skip
        with pytest.raises(PartError, match="shows no NVIDIA H100 80GB HBM3 with 80994 MiB"):
            match_gpus(wrong, [H100], all_visible=True)
    with pytest.raises(PartError, match="nvidia-smi shows 2 GPUs, torch 1"):
        match_gpus(facts, [H100], all_visible=True)
    with pytest.raises(PartError):  # one fact is not two GPUs
        match_gpus(facts[1:], [H100, H100], all_visible=False)


def test_a_busy_gpu_is_known_by_its_pid() -> None:
    assert judge_busy(BUSY, "4411", RUN).seen == "GPU 0 busy: pid 4411 (python) of ann, 11 GB"
    several = BUSY.replace("pid 4411", "pid 17 and 4411")
    assert judge_busy(several, "4411", RUN).figure == "1 pid"
    for pid, text in (("441", BUSY), ("4411", HIDDEN), ("4411", ELSEWHERE)):
        with pytest.raises(NotRunError, match="noticed, but nvidia-smi doesn't know the pid"):
            judge_busy(text, pid, RUN)
    with pytest.raises(PartError, match="the remedy doesn't name the run"):
        judge_busy(BUSY, "4411", "20261120-999999")
    with pytest.raises(PartError, match="didn't notice"):
        judge_busy("nothing would break a run", "4411", RUN)


def test_ways_of_parallel_end_at_the_same_loss() -> None:
    assert judge_spread({"ddp": 2.8614, "tp": 2.8642}).figure == "0.10%"
    with pytest.raises(PartError, match=r"the losses are 4\.8% apart: ddp 2\.8614, tp 3\.0000"):
        judge_spread({"ddp": 2.8614, "tp": 3.0})


def test_ranks_share_a_gpu_only_where_there_are_too_few(tmp_path: Path) -> None:
    two, one, none = (Trial(tmp_path, known(gpus), gpus, 0.0) for gpus in (2, 1, 0))
    assert two.side_by_side(2, "a.py") == ["--gpus", "2", "a.py"]
    assert one.side_by_side(2, "a.py") == ["--nproc", "2", "--cpu", AS_HOST, "a.py"]
    assert none.side_by_side(2, "a.py") == ["--nproc", "2", "--cpu", "a.py"]


def test_each_rank_on_a_shared_gpu_is_a_host_of_its_own() -> None:
    shown = (
        "import os; print(*(os.environ.get(name) for name in ('LOCAL_RANK', 'NCCL_HOSTID', 'CUDA_VISIBLE_DEVICES')))"
    )
    env = {**os.environ, "RANK": "3", "LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, AS_HOST, "-c", shown], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "0 host3 None\n"


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 158.19 GiB. GPU 0 has a total capacity of "
            "79.10 GiB of which 78.58 GiB is free. Including non-PyTorch memory, this process has 526.00 MiB memory in "
            "use. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
            "unallocated.",
            GPU_FULL,
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)",
            HOST_FULL,
        ),
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 3b000", SHARED),
    ],
)
def test_the_explanations_that_the_parts_look_for(line: str, pattern: str) -> None:
    assert re.search(pattern, next(explain_lines([line])).cause)


def test_the_speed_of_the_plain_loop_is_a_limit_on_gpus_alone() -> None:
    turns = [(97.0, 100.0), (99.0, 100.0), (96.0, 100.0)]
    assert judge_speed(turns, 1, is_limited=False).figure == "0.97"
    with pytest.raises(PartError, match=r"0\.970 of the plain loop, at least 0\.98 is required: 96 against 100"):
        judge_speed(turns, 1, is_limited=True)
    assert judge_speed(turns[1:2], 2, is_limited=True) == Outcome(
        "0.990", "99 against 100 tokens/s, 2 ranks, median of 1 turn"
    )


def test_the_results_of_the_collectives() -> None:
    alone = {"backend": "nccl", "bandwidth": []}
    speeds = [{"collective": "all_reduce", "size_bytes": size, "busbw": size * 1e3} for size in (4096, 64 << 20)]
    other = {"collective": "broadcast", "size_bytes": 128 << 20, "busbw": 1.0}
    assert judge_results({**alone, "bandwidth": [*speeds, other]}, "all passed", "nccl") == Outcome(
        "67.1 GB/s", "all passed; busbw of all_reduce with 64 MiB"
    )
    with pytest.raises(PartError, match="it used gloo instead of nccl"):
        judge_results({**alone, "backend": "gloo"}, "all passed", "nccl")


def test_the_speeds_of_all_gpus_under_load() -> None:
    sensors = {"number": 0, "hottest_c": 71, "clock_mhz": 1755, "power_w": 698.0}
    load = {"rank": 0, "flops": 453e12, "to_gpu": 55e9, "from_gpu": 54e9, "sensors": sensors}
    found = [{"text": "1 x H100 under load: 453 TFLOP/s in bf16"}]
    assert judge_loads({"loads": [load], "findings": found}, on_gpu=True) == Outcome("453 TFLOP/s", found[0]["text"])
    for loads, error in (
        ([], "1 x H100 under load"),
        ([load, load], "two ranks call their GPU the same"),
        ([load | {"from_gpu": None, "sensors": sensors | {"clock_mhz": None}}], "know its from_gpu, clock_mhz"),
    ):
        with pytest.raises(PartError, match=error):
            judge_loads({"loads": loads, "findings": found}, on_gpu=True)


def test_what_a_part_can_report(tmp_path: Path) -> None:
    good = Outcome("1 s", "seen")
    assert judge(tmp_path, lambda trial: good) == (Verdict.PASS, good)
    assert judge(tmp_path, lambda trial: good, gpus=0) == (Verdict.ON_CPUS, good)
    assert judge(tmp_path, fail(PartError("no"))) == (Verdict.FAIL, Outcome("-", "no"))
    assert judge(tmp_path, fail(NotRunError("can't"))) == (Verdict.NOT_RUN, Outcome("-", "can't"))
    assert judge(tmp_path, fail(KeyError("gpus"))) == (Verdict.FAIL, Outcome("-", "KeyError: 'gpus'"))
    late = Trial(tmp_path, known(1), 1, time.monotonic() - 1)
    assert run_part(make_part(lambda trial: good), late)[0] is Verdict.NOT_RUN


@pytest.mark.parametrize(
    ("there", "needed", "has_cpu_form", "line"),
    [
        (2, 2, False, "| some | pass | 2 GPUs | a \\| b |"),
        (1, 2, True, "| some | on CPUs | 0 GPUs | a \\| b |"),
        (1, 2, False, "| some | not run | - | needs 2 GPUs |"),
        (0, 1, False, "| some | not run | - | needs a GPU |"),
    ],
)
def test_too_few_gpus_are_never_a_pass(
    there: int, needed: int, has_cpu_form: bool, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    part = make_part(lambda trial: Outcome(f"{trial.gpus} GPUs", "a | b"), gpus=needed, has_cpu_form=has_cpu_form)
    report_part(part, known(there), time.monotonic() + 60)
    assert capsys.readouterr().out == line + "\n"


def test_the_document_has_each_part_as_the_code_has_it() -> None:
    lines = (ROOT / "docs" / "gpu.md").read_text().splitlines()
    wanted = [f"| `{part.name}` | {part.does} | {part.passes} |" for part in PARTS]
    assert [line for line in lines if line in wanted] == wanted


def test_an_unknown_part_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nccl", "ncll"]) == 2
    assert capsys.readouterr().err.startswith("bench: no part 'ncll'; fix: choose from queries, nccl, ")
