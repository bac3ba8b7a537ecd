"""Whether GPUs are as free as before the first attempt."""

from __future__ import annotations

import pytest

from launcher.hosts.host import Host
from launcher.job.facts import Gpu, NodeFacts
from launcher.job.job import Job, Program, ProgramKind
from launcher.runs.gpu_memory import GpusInUseError, measure_use, refuse_unfreed

JOB = Job(Program(ProgramKind.SCRIPT, "train.py"), nproc=3)


def use(*free_mib: int | None) -> dict[str, dict[int, int]]:
    gpus = tuple(Gpu(index, "H200", 143771, "580", free) for index, free in enumerate(free_mib))
    return measure_use(JOB, [Host("gpu2")], [NodeFacts("/tmp/run", gpus=gpus)])


def test_a_driver_may_keep_some() -> None:
    refuse_unfreed(use(143000, 100000), use(143000 - 512, 100001))


def test_a_gpu_that_is_not_free_is_named() -> None:
    with pytest.raises(GpusInUseError) as caught:
        refuse_unfreed(use(143000, 143000, 90000), use(142000, 143000, 10000))
    assert caught.value.hosts == ("gpu2",)
    assert caught.value.message == "gpu2: GPU 0 and 2 still have 79 GB more in use than before the first attempt"


def test_what_is_not_known_is_not_compared() -> None:
    refuse_unfreed(use(None, 143000), use(0, None))
    refuse_unfreed({}, use(0))


def test_a_gpu_of_others_is_theirs() -> None:
    refuse_unfreed(use(100, 100, 100, 143000), use(100, 100, 100, 0))
