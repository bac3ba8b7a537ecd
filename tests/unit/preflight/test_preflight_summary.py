"""What all nodes have in common, in a line."""

from __future__ import annotations

import pytest
from machines.example_facts import COMMAND, H200, JOB, SCRIPT, checked, facts

from launcher.job.facts import Route
from launcher.job.job import Job, Program, ProgramKind
from launcher.preflight.summary import common_traits, summarize


@pytest.mark.parametrize(
    ("job", "nodes", "words"),
    [
        (
            Job(SCRIPT),
            [facts(), facts(gpus=H200[:4], torch_version="2.12.0", route=Route("ib0", "10.0.0.2"))],
            "8 x H200 140 GB or 4 x H200 140 GB, driver 580.159, python 3.11 (/usr/bin/python3), "
            "torch 2.13.0 or 2.12.0, CUDA 13.0, NCCL 2.28.9, data over eth1 or ib0",
        ),
        (
            Job(SCRIPT, cpu=True),
            [facts(), facts(python="/env/bin/python"), facts()],
            "CPUs, python 3.11 (/usr/bin/python3) or 3.11 (/env/bin/python), torch 2.13.0, data over eth1",
        ),
        (Job(COMMAND, nproc=2), [facts(), facts(gpus=())], "8 x H200 140 GB or no GPU, driver 580.159, data over eth1"),
    ],
)
def test_a_line_says_what_all_nodes_have(job, nodes, words):
    assert summarize(job, nodes) == words


PYTHON = "python 3.11 (/usr/bin/python3)"
BUILD = ("CUDA 13.0", "NCCL 2.28.9")


@pytest.mark.parametrize(
    ("job", "nodes", "traits"),
    [
        (JOB, [facts(), facts(torch_version="2.12.0", gpus=H200[:4], python_version="3.12", route=None)],
         ["driver 580.159", *BUILD]),
        (JOB, [facts(), facts(gpus=())], [PYTHON, "torch 2.13.0", *BUILD, "data over eth1"]),  # it has no driver
        (JOB, [facts(torch_version=None, python_version=None, cuda_version=None, nccl_version=None)] * 2,
         ["8 x H200 140 GB", "driver 580.159", "data over eth1"]),
        (JOB, [facts(gpus=()), facts(gpus=(), python="/env/bin/python")],
         ["CPUs", "python 3.11", "torch 2.13.0", *BUILD, "data over eth1"]),
        (
            Job(Program(ProgramKind.SCRIPT, "/data/train.py"), nproc=2, cpu=True),
            [checked(script_hash="5f3a91c0ffee"), checked(script_hash="5f3a91c0ffee")],
            ["CPUs", PYTHON, "torch 2.13.0", "data over eth1", "train.py 5f3a91"],
        ),
        (
            Job(COMMAND, nproc=2),
            [checked(script_hash="5f3a91c0ffee"), checked(script_hash=None)],
            ["8 x H200 140 GB", "driver 580.159", "data over eth1"],
        ),
    ],
)  # fmt: skip
def test_only_what_all_have_is_common(job, nodes, traits):
    assert common_traits(job, nodes) == traits
