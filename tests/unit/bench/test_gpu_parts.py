"""The parts of `python -m bench gpu`: what counts as pass, judged by texts that real programs print."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.gpu.faults import GPU_FULL, HOST_FULL, SHARED
from bench.gpu.hardware import Gpu, Hardware
from bench.gpu.part import NotRunError, Outcome, Part, PartError, Verdict
from bench.gpu.table import PARTS, report_part, run_part
from bench.gpu.trial import Trial
from launcher.diagnosis.signatures import SIGNATURES

ROOT = Path(__file__).parents[3]
H100 = Gpu("NVIDIA H100 80GB HBM3", 84_929_347_584, "GPU-8932f937")  # 79.1 GiB, of nvidia-smi's 81559 MiB


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


@pytest.mark.parametrize("pattern", [GPU_FULL, HOST_FULL, SHARED])
def test_the_explanations_that_the_parts_look_for(pattern: str) -> None:
    assert any(re.search(pattern, rule.cause) for rule in SIGNATURES)


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
