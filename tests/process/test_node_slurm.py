"""What a node says of itself in a step of Slurm: the job's share of it, and the way to the launcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from node_process import Nodes

from launcher.node import messages
from launcher.node.facts import gathering
from launcher.session.node_state import read_facts

STEP = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
CUDA = "CUDA_VISIBLE_DEVICES"
GPUS = [{"index": index, "uuid": ""} for index in range(4)]


@pytest.fixture
def set_env(monkeypatch: pytest.MonkeyPatch):
    def set_all(**env: str) -> None:
        for name in [name for name in os.environ if name.startswith(("SLURM", "CUDA"))]:
            monkeypatch.delenv(name)
        for name, value in env.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({**STEP, "SLURM_CPUS_ON_NODE": "3"}, 3),
        ({**STEP, "SLURM_CPUS_ON_NODE": "64"}, 8),  # threads that the kernel does not allow
        ({"SLURM_CPUS_ON_NODE": "3"}, 8),  # passed on by something; it is another machine's
    ],
)
def test_cpus(set_env, env, count):
    set_env(**env)
    assert gathering.share_cpus(8) == count


@pytest.mark.parametrize(
    ("env", "indexes"),
    [
        ({**STEP, "CUDA_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        ({**STEP, "CUDA_VISIBLE_DEVICES": "GPU-1234"}, [0, 1, 2, 3]),  # an old tool, which tells no UUIDs
        (STEP, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, [0, 1, 2, 3]),
    ],
)
def test_gpus(set_env, env, indexes):
    set_env(**env)
    assert [gpu["index"] for gpu in gathering.choose_gpus(GPUS)] == indexes


@pytest.mark.parametrize(
    ("launcher", "ends"),
    [("127.0.0.1", ("127.0.0.1", "127.0.0.1")), ("no-such-host.invalid", ("no-such-host.invalid", None))],
)
def test_the_ends_of_the_way(set_env, launcher, ends):
    set_env(**{**STEP, "SLURM_LAUNCH_NODE_IPADDR": launcher})
    assert gathering.find_ends() == ends


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_LAUNCH_NODE_IPADDR"])
def test_no_way_is_known_outside_of_a_step(set_env, missing):
    set_env(**{name: value for name, value in STEP.items() if name != missing})
    assert gathering.find_ends() == (None, None)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH with a GPU tool that lists two."""
    tool = tmp_path / "nvidia-smi"
    line = '"$i, Fake, 81559, 999.99, GPU-$i, 81000, Default, 0, 00000000:0$i:00.0, Disabled, 30, Disabled"'
    tool.write_text(f"#!/bin/sh\ncase $1 in *gpu=*) for i in 0 1; do echo {line}; done;; esac\n")
    tool.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("login", "setup", "named", "visible"),
    [({}, "", {}, None), ({CUDA: "-1"}, "", {}, ()), ({CUDA: "-1"}, "", {CUDA: "1,0"}, (1, 0)),
     ({CUDA: "-1"}, f"export {CUDA}=1", {}, (1,))],
)  # fmt: skip
def test_the_environment_of_the_ranks_says_which_gpus_they_see(
    nodes: Nodes, path: str, login: dict[str, str], setup: str, named: dict[str, str], visible: tuple[int, ...] | None
) -> None:
    node = nodes.start(env={"PATH": path, **login})
    steps = [{"name": "--setup", "command": setup}] if setup else []
    order = {"steps": steps, "named": list(named), "venv": None, "timeout_s": 60} if setup else None
    node.prepare(facts=True, pythons=[], env=named, setup=order)
    facts = read_facts(node.wait_for(messages.FACTS), "")
    assert ([gpu.index for gpu in facts.gpus], facts.visible_gpus) == ([0, 1], visible)


def test_a_node_tells_all_of_it(nodes: Nodes, path: str, any_python: str) -> None:
    env = {**STEP, "SLURM_CPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "1", "PATH": path}
    node = nodes.start(python=any_python, env=env)
    node.prepare(facts=True, pythons=[])
    facts = read_facts(node.wait_for(messages.FACTS), "")
    assert (facts.cpu_count, [gpu.index for gpu in facts.gpus]) == (1, [1])
    assert (facts.ssh_client, facts.ssh_address) == ("127.0.0.1", "127.0.0.1")
