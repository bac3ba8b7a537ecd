"""GPUs that a run would use: who is on them, and whether they are well; each finding as a whole text."""

from __future__ import annotations

import pytest
from machines.example_facts import COMMAND, H200, JOB, ON_CPUS, SCRIPT, facts, told

from launcher.hosts.host import Host
from launcher.job.facts import Checks, Gpu, GpuProcess
from launcher.job.job import Job
from launcher.job.plan import used_gpus
from launcher.preflight.findings import CheckedHost
from launcher.preflight.gpus import check

MIB = 143771
LOST = "Unable to determine the device handle for GPU0000:5D:00.0: GPU is lost."
GO_ON = "choose other GPUs with --include, or start anyway with --no-check"
WAIT = "choose other GPUs with --include, wait with --queue, or start anyway with --no-check"


def gpu(index=0, *processes, used=0, **more):
    known = {"memory_mib": MIB, "free_mib": None if used is None else MIB - used, "driver": "580.159"}
    return Gpu(index, "H200", processes=processes, **(known | more))


def process(pid, mib=1024, owner="ann", name="python", mark=None):
    return GpuProcess(pid, mib, owner, name, mark)


MPS = process(99, 30, owner="root", name="nvidia-cuda-mps")


def found(*gpus, job=JOB, host=None):
    host = host or Host("gpu1")
    return told(check(CheckedHost(job, host, facts(gpus=gpus, checks=Checks()))))


@pytest.mark.parametrize(
    ("gpus", "findings"),
    [
        ([gpu(used=0)], []),
        ([gpu(used=7000)], []),  # what a driver keeps for itself
        (
            [gpu(0, process(4411, 120 << 10), used=120 << 10)],
            [f"problem: gpu1: GPU 0 busy: pid 4411 (python) of ann, 120 GB; fix: {WAIT}"],
        ),
        (
            [gpu(0, process(4411, 400), used=400)],  # somebody's notebook: there is room
            [f"warning: gpu1: GPU 0 busy: pid 4411 (python) of ann, 0.4 GB; fix: {GO_ON}"],
        ),
        (
            [gpu(0, process(4411, None), used=None)],  # [N/A] of a MIG device, or in WSL
            [f"warning: gpu1: GPU 0 busy: pid 4411 (python) of ann; fix: {GO_ON}"],
        ),
        (
            [gpu(0, process(4411, 2048, owner=None, name=None), used=2048)],
            [f"warning: gpu1: GPU 0 busy: pid 4411, not visible there (another container?), 2.0 GB; fix: {GO_ON}"],
        ),
        (
            [gpu(0, process(4411, 2048, mark="20261120-091233.ab12.0"), used=2048)],
            [
                "warning: gpu1: GPU 0 busy: pid 4411 (python) of ann, 2.0 GB; "
                "fix: if run 20261120-091233 is over, stop it with `launch clean`"
            ],
        ),
        (
            [gpu(index, process(4411, 1024), used=1024 if index else 100 << 10) for index in range(3)],
            [f"problem: gpu1: GPU 0, 1 and 2 busy: pid 4411 (python) of ann, 3.0 GB; fix: {WAIT}"],
        ),
        (
            [gpu(index, process(4411 + index, 1024), used=1024) for index in range(4)],
            [
                f"warning: gpu1: GPU 0, 1, 2 and 3 busy: 4 processes, first pid 4411 (python) of ann, 4.0 GB; "
                f"fix: {GO_ON}"
            ],
        ),
        (
            [gpu(0, process(4411), process(4412, owner="bob"), used=2048)],
            [
                f"warning: gpu1: GPU 0 busy: pid 4411 (python) of ann, 1.0 GB; fix: {GO_ON}",
                f"warning: gpu1: GPU 0 busy: pid 4412 (python) of bob, 1.0 GB; fix: {GO_ON}",
            ],
        ),
        (
            [gpu(0, *(process(pid, 1024, name=f"p{pid}") for pid in range(50)), used=100 << 10)],
            [
                *(f"problem: gpu1: GPU 0 busy: pid {pid} (p{pid}) of ann, 1.0 GB; fix: {WAIT}" for pid in range(32)),
                f"problem: gpu1: GPU 0 busy: 18 more processes of other programs, 18 GB; fix: {WAIT}",
            ],
        ),
        (
            [gpu(0, used=100 << 10)],
            [
                "problem: gpu1: GPU 0: 100 GB in use by a process that isn't visible there; "
                "fix: look on the machine itself, or reset the GPU: the process is in a container or dead"
            ],
        ),
        (
            [gpu(3, compute_mode="Prohibited")],
            [
                "problem: gpu1: GPU 3 blocks new processes (compute mode Prohibited); "
                "fix: run nvidia-smi -i 3 -c DEFAULT",
            ],
        ),
        (  # under MPS, which shares it
            [gpu(0, MPS, process(4411, 400), used=430, compute_mode="Exclusive_Process")],
            [f"warning: gpu1: GPU 0 busy: pid 4411 (python) of ann, 0.4 GB; fix: {GO_ON}"],
        ),
        ([gpu(0, memory_mib=24564, free_mib=22516, has_display=True)], []),
        (
            [gpu(0, memory_mib=24564, free_mib=4084, has_display=True)],
            ["problem: gpu1: GPU 0: 20 GB in use by the desktop on it; fix: close programs of the desktop"],
        ),
        (
            [gpu(0, process(4411, 400), used=400, compute_mode="Exclusive_Process")],
            [
                f"warning: gpu1: GPU 0 busy: pid 4411 (python) of ann, 0.4 GB; fix: {GO_ON}",
                "problem: gpu1: GPU 0 blocks new processes (compute mode Exclusive_Process); "
                "fix: run nvidia-smi -i 0 -c DEFAULT",
            ],
        ),
        (
            [gpu(0, ecc_errors=1), gpu(1, ecc_errors=0), gpu(2, ecc_errors=3)],
            [
                "warning: gpu1: GPU 0 had 1 uncorrectable memory error; "
                "fix: reset it, or leave it out with --exclude: results may be wrong",
                "warning: gpu1: GPU 2 had 3 uncorrectable memory errors; "
                "fix: reset it, or leave it out with --exclude: results may be wrong",
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_gpu(gpus, findings):
    assert found(*gpus) == findings


@pytest.mark.parametrize(
    ("more", "findings"),
    [
        ({"cuda_version": None}, ["problem: gpu1: torch 2.13.0 is a CPU-only build; "
                                  "fix: install one for its GPUs, or run on CPUs: --nproc N --cpu"]),
        ({"cuda_version": None, "hip_version": "6.4"}, []),
        ({"cuda_version": None, "torch_version": "unknown"}, []),
        ({"cuda_version": None, "torch_version": None}, []),
        ({"cuda_version": None, "gpus": ()}, []),
    ],
)  # fmt: skip
def test_a_torch_that_uses_no_gpu(more, findings):
    assert told(check(CheckedHost(JOB, Host("gpu1"), facts(checks=Checks(), **more)))) == findings


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00"),  ("00010000:01:00.0", "10000:01:00"),
         ("", ""), ("[N/A]", ""),
    ],
)  # fmt: skip
def test_an_address_as_the_kernel_writes_it(bus_id, address):
    assert gpu(bus_id=bus_id).pci_address == address


BUSY = [gpu(index, process(100 + index, 100 << 10), used=100 << 10) for index in range(8)]


@pytest.mark.parametrize(
    ("job", "host", "indexes"),
    [
        (JOB, Host("gpu1"), [0, 1, 2, 3, 4, 5, 6, 7]),
        (Job(SCRIPT, nproc=2), Host("gpu1"), [0, 1]),
        (JOB, Host("gpu1", gpus=(7, 2)), [7, 2]),
    ],
)
def test_only_gpus_that_the_run_would_use_are_looked_at(job, host, indexes):
    assert [gpu.index for gpu in used_gpus(job, host, facts(gpus=H200))] == indexes
    assert len(found(*BUSY, job=job, host=host)) == 1
    others = [gpu for gpu in BUSY if gpu.index not in indexes]
    assert found(*others, job=Job(SCRIPT, env=job.env), host=Host("gpu1", gpus=tuple(indexes))) == []


@pytest.mark.parametrize(
    ("job", "visible", "indexes"),
    [(Job(SCRIPT, nproc=2), (4, 5, 6, 7), [4, 5]), (JOB, (5, 4), [5, 4]), (JOB, (), []), (JOB, (-1,), [])],
)
def test_only_gpus_that_ranks_see_are_looked_at(job, visible, indexes):
    assert [gpu.index for gpu in used_gpus(job, Host("gpu1"), facts(visible_gpus=visible))] == indexes


@pytest.mark.parametrize(
    ("error", "job", "host", "severity"),
    [
        ("WARNING: infoROM is corrupted at gpu 0000:5D:00.0", JOB, Host("gpu1"), "warning"),
        (LOST, JOB, Host("gpu1"), "problem"),  # it would train on 7 of 8, and say nothing
        (LOST, JOB, Host("gpu1", gpus=(0, 1)), "warning"),
    ],
)
def test_what_the_tool_complains_of_beside_its_table(error, job, host, severity):
    """As of a GPU that is lost, where the others go on."""
    fact = facts(gpus=H200[:7], gpu_error=error, checks=Checks())
    is_lost = error is LOST
    fix = (
        "reboot the host; until then, pass --exclude HOST:GPU, or leave the host out"
        if is_lost
        else "look for the cause in dmesg there"
    )
    assert told(check(CheckedHost(job, host, fact))) == [
        f"{severity}: gpu1: its GPU tool reports an error: {error}; fix: {fix}"
    ]


def test_a_gpu_that_answers_with_errors_is_lost():
    lost = gpu(5, memory_mib=None, free_mib=None, fault="GPU is lost", compute_mode="[GPU is lost]")
    text = (
        "problem: gpu1: GPU 5 doesn't respond (GPU is lost); "
        "fix: reboot that host, or leave the GPU out with --exclude gpu1:5"
    )
    assert found(gpu(4), lost) == [text]
    assert found(gpu(4), lost, host=Host("gpu1", gpus=(4,))) == []


@pytest.mark.parametrize(
    ("driver", "cuda", "warned"),
    [
        ("535.129.03", "13.0", ("580", "12")), ("570.86.15", "13.0", ("580", "12")), ("470.223", "12.8", ("525", "11")),
        ("580.65.06", "13.0", None), ("525.60.13", "12.9", None), ("418.1", "11.8", ("450", "10")),
        ("[N/A]", "13.0", None), ("540.4.0", "12.6", None), ("535.1", None, None), ("535.1", "14.0", None),
    ],
)  # fmt: skip
def test_a_driver_that_is_older_than_torch_s_cuda(driver, cuda, warned):
    fact = facts(gpus=(gpu(driver=driver),), cuda_version=cuda, hip_version=None if cuda else "6.4", checks=Checks())
    text = "warning: gpu1: driver {} is too old for torch's CUDA {}, which needs {}; "
    text += "fix: update it, or install a torch for CUDA {}; cuda-compat helps only some GPUs"
    expected = [text.format(driver, cuda, *warned)] if warned else []
    assert told(check(CheckedHost(JOB, Host("gpu1"), fact))) == expected


@pytest.mark.parametrize(
    ("host", "visible", "nproc", "is_refused"),
    [
        (Host("gpu1"), None, None, True),
        (Host("gpu1"), None, 1, False),
        (Host("gpu1", gpus=(0, 1)), None, None, False),
        (Host("gpu1", gpus=(1, 2)), None, None, True),
        (Host("gpu1"), (-1,), None, False),  # a MIG device, named by the user
        (Host("gpu1"), (2,), None, False),
    ],
)
def test_mig_leaves_one_device_for_all_ranks(host, visible, nproc, is_refused):
    fact = facts(gpus=(gpu(0), gpu(1), gpu(2, is_mig=True)), visible_gpus=visible, checks=Checks())
    text = (
        "problem: gpu1: GPU 2 in MIG mode: CUDA shows each rank the same MIG device, and no other GPU; "
        "fix: leave out with --exclude gpu1:2, or turn MIG off: nvidia-smi -mig 0"
    )
    assert told(check(CheckedHost(Job(SCRIPT, nproc=nproc), host, fact))) == ([text] if is_refused else [])


@pytest.mark.parametrize("job", [ON_CPUS, Job(COMMAND, nproc=8)])
def test_a_run_on_cpus_minds_no_gpu(job):
    assert found(*BUSY, job=job) == []
