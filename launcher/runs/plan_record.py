"""A plan as JSON values, for run.json, --json and dry runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts
from launcher.job.job import Job, Program
from launcher.job.plan import LaunchPlan, build_plan
from launcher.job.variables import HIDDEN, hide_secrets, is_secret
from launcher.runs.run_json import LineToPaste, Node, Plan, PlannedProgram, SentCode, UsedHost


def as_record(plan: LaunchPlan) -> dict[str, object]:
    """Return the plan as JSON values, without the variables that the user set, any of which may be a secret."""
    nodes = [
        Node(
            node.host.name, node.node_rank, node.first_rank, node.nproc, node.cwd,
            tuple(hide_secrets(node.argv or node.processes[0].argv)),
            {name: HIDDEN if is_secret(name, value) else value for name, value in node.env.items()},
        )
        for node in plan.nodes
    ]  # fmt: skip
    program = _describe_program(plan.program)
    return asdict(Plan(program, plan.world_size, plan.master_addr, int(plan.master_port), tuple(nodes)))


def as_dry_record(plan: LaunchPlan) -> dict[str, object]:
    """Return the plan as JSON values for a dry run: each node's line, and None for what only the nodes know."""
    is_known = all(node.nproc for node in plan.nodes)
    return {
        "program": asdict(_describe_program(plan.program)),
        "world_size": plan.world_size if is_known else None,
        "master_addr": None if plan.master_addr.startswith("<") else plan.master_addr,
        "master_port": plan.master_port if isinstance(plan.master_port, int) else None,
        "nodes": [
            {
                "host": node.host.name,
                "node_rank": node.node_rank,
                "first_rank": node.first_rank if is_known else None,
                "nproc": node.nproc or None,
                "cwd": node.cwd,
                "command": node.by_hand,
            }
            for node in plan.nodes
        ],
    }


def host_records(hosts: Sequence[Host], facts: Sequence[NodeFacts]) -> list[dict[str, object]]:
    """Return as JSON values what may differ between hosts and change how a run goes."""
    return [
        asdict(
            UsedHost(
                host.name, len(fact.gpus), " or ".join(dict.fromkeys(gpu.name for gpu in fact.gpus)) or None,
                fact.gpus[0].driver if fact.gpus else None, fact.cpu_count, fact.python, fact.python_version,
                fact.torch_version, fact.cuda_version, fact.nccl_version,
                fact.route.interface if fact.route is not None else None,
            )
        )
        for host, fact in zip(hosts, facts, strict=True)
    ]  # fmt: skip


def by_hand_records(
    job: Job, hosts: Sequence[Host], facts: Sequence[NodeFacts], share: tuple[int, int] | None
) -> list[dict[str, str]]:
    """Return each node's line to paste as JSON values; of the variables that the user set, only the names."""
    program = replace(job.program, args=tuple(hide_secrets(job.program.args)))
    plan = build_plan(replace(job, program=program, env=dict.fromkeys(job.env, HIDDEN)), hosts, facts, share)
    return [asdict(LineToPaste(node.host.name, node.by_hand)) for node in plan.nodes]


def code_record(job: Job) -> dict[str, object] | None:
    """Return which code was sent as JSON values; None if none was."""
    tree = job.tree
    if tree is None:
        return None
    links = {link.name: link.target for link in tree.links}
    return asdict(SentCode(tree.hash, tree.root, tree.files, tree.bytes_in_all, links, tree.left_out))


def _describe_program(program: Program) -> PlannedProgram:
    return PlannedProgram(program.kind.value, program.target, tuple(hide_secrets(program.args)))
