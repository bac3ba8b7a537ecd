"""What is installed for the Python of each node: who differs in what, in one line for each host."""

from __future__ import annotations

import pytest
from machines.example_facts import JOB, ON_CPUS, facts, nodes_of, told

from launcher.preflight.findings import fold
from launcher.preflight.packages import check

FIX = "fix: make the environments equal, for example with --setup 'uv sync --locked'"
LONG = f"{FIX}; launch check --json lists all"
USUAL = {"einops": "0.8.1", "numpy": "2.3.1", "torch": "2.13.0", "tqdm": "4.67.1"}


def has(**versions):
    """Return a node with the usual packages, but for these; None: it lacks that one."""
    packages = {name.replace("_", "-"): version for name, version in (USUAL | versions).items() if version is not None}
    return facts(packages=packages)


MANY = has(**{f"p{number}": "1" for number in range(10)}, tqdm=None, einops="0.8.0")


@pytest.mark.parametrize(
    ("every_fact", "findings"),
    [
        ([MANY], []),
        ([has(), has(), has()], []),
        ([has(), facts(), has()], []),  # one that was not asked
        (
            [has(), has(), has(einops="0.8.0")],
            [f"warning: gpu3: 1 package differs from the others: einops 0.8.0 (others 0.8.1); {FIX}"],
        ),
        (
            [has(tqdm=None, extra="1.0"), has(), has(), has(tqdm=None, extra="1.0"), has()],
            [
                "warning: gpu[1,4]: 2 packages differ from the others: extra 1.0 (missing on the others), "
                f"tqdm missing; {FIX}"
            ],
        ),
        (
            [has(), has(), MANY],
            [
                "warning: gpu3: 12 packages differ from the others: einops 0.8.0 (others 0.8.1), "
                f"p0 1 (missing on the others), ...; {LONG}"
            ],
        ),
        (
            [has(einops="0.7.0"), has(), has(), has(), has(einops="0.8.0")],
            [
                f"warning: gpu1: 1 package differs from the others: einops 0.7.0 (most 0.8.1); {FIX}",
                f"warning: gpu5: 1 package differs from the others: einops 0.8.0 (most 0.8.1); {FIX}",
            ],
        ),
        (
            [has(), has(einops="0.8.0", tqdm=None)],  # of two, neither is the usual one
            [
                "warning: gpu[1-2]: 2 packages differ: einops 0.8.1 on gpu1, 0.8.0 on gpu2, "
                f"tqdm 4.67.1 on gpu1, missing on gpu2; {FIX}"
            ],
        ),
        (
            [has(), has(einops="0.8.0"), has(einops="0.7.0", tqdm="4"), has(einops="0.6.0")],
            [
                f"warning: gpu3: 1 package differs from the others: tqdm 4 (others 4.67.1); {FIX}",
                "warning: gpu[1-4]: 1 package differs: einops 0.8.1 on gpu1, 0.8.0 on gpu2, 0.7.0 on gpu3, "
                f"0.6.0 on gpu4; {FIX}",
            ],
        ),
        # what installs packages, and the launcher itself
        ([has(pip="25.0", setuptools="80"), has(pip="24.0"), has(wheel="1", ssh_torch_launcher="1")], []),
        # what has a finding of its own: here only whether it is there
        ([has(), has(), has(torch="2.12.0", numpy="1.26.4", nvidia_nccl_cu12="2.27.5"), has(nvidia_nccl_cu12="2.28")],
         ["warning: gpu[1-4]: 1 package differs: nvidia-nccl-cu12 2.27.5 on gpu3, 2.28 on gpu4, missing on gpu[1-2]; "
          + FIX]),
        (
            [has(), has(), has(numpy=None)],
            [f"warning: gpu3: 1 package differs from the others: numpy missing; {FIX}"],
        ),
        ([has(), has(), has(numpy="1"), facts(packages=None)], []),
    ],
)  # fmt: skip
def test_who_differs(every_fact, findings):
    assert told(fold(check(nodes_of(JOB, every_fact)))) == findings


def test_nccl_is_one_of_many_where_no_gpu_is_used():
    pair = [has(nvidia_nccl_cu12="2.27.5"), has(nvidia_nccl_cu12="2.28.9")]
    assert told(check(nodes_of(JOB, pair))) == []
    text = "1 package differs: nvidia-nccl-cu12 2.27.5 on gpu1, 2.28.9 on gpu2"
    assert told(check(nodes_of(ON_CPUS, pair))) == [f"warning: gpu[1-2]: {text}; {FIX}"]
