"""Ranks without torchrun, for a torch that is too old for ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from machines.ports import free_port
from node_process import STAND_IN, STDERR, STDOUT, Nodes

from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts, Route
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.plan import NodePlan, build_plan, start_fields
from launcher.node import messages

NASTY = ("--local_rank", "a b", "$HOME", "--use_env", "--")
TELLS = """\
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT")
os.write(1, (json.dumps([{name: os.environ[name] for name in names}, sys.argv[1:]]) + "\\n").encode())
"""


def plan(folder: Path, nnodes: int, node_rank: int) -> NodePlan:
    """Return what a node would start: two ranks that tell their variables and arguments."""
    (folder / "tell me.py").write_text(TELLS)
    program = Program(ProgramKind.SCRIPT, "tell me.py", NASTY)
    place = {"master_addr": "127.0.0.1", "master_port": free_port()}
    job = Job(program, nproc=2, cpu=True, workdir=str(folder), **place, start="plain")
    fact = NodeFacts(
        "/gone", hostname="n", cpu_count=2, home="/", python=sys.executable, route=Route("lo", "127.0.0.1")
    )
    return build_plan(job, [Host("n")], [fact], share=(nnodes, node_rank)).nodes[0]


def told(output: bytes) -> list[list[object]]:
    """Return what the ranks told, in their order, but for the port."""
    ranks = sorted((json.loads(line) for line in output.splitlines()), key=lambda rank: str(rank[0]["RANK"]))
    assert len({variables.pop("MASTER_PORT") for variables, _ in ranks}) == 1
    return ranks


def wanted(nnodes: int, node_rank: int) -> list[list[object]]:
    common = {"WORLD_SIZE": str(2 * nnodes), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    common |= {"GROUP_RANK": str(node_rank), "GROUP_WORLD_SIZE": str(nnodes)}
    return [[{**common, "RANK": str(2 * node_rank + rank), "LOCAL_RANK": str(rank)}, list(NASTY)] for rank in range(2)]


def test_the_python_that_is_found_imports_no_torchrun(nodes: Nodes, tmp_path: Path) -> None:
    """Where there is none, its import would fail."""
    node = nodes.start()
    env = {"PYTHONPATH": str(STAND_IN), "STAND_IN_BROKEN": "1"}
    node.prepare(facts=True, plain=True, pythons=[sys.executable], env=env)
    assert node.wait_for(messages.FACTS)["search"]["torch"] == "2.13.0+stand.in"
    node.send(messages.START, **start_fields(plan(tmp_path, 2, 1)))
    assert node.wait_for(messages.ENDED)["code"] == 0
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}
    assert [*told(node.output[0, STDOUT]), *told(node.output[1, STDOUT])] == wanted(2, 1)
    assert not node.output[None, STDERR]
    assert node.stop() == []
