"""A plan as JSON values, for run.json, --json and dry runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts
from launcher.job.job import Job
from launcher.job.plan import LaunchPlan
from launcher.job.variables import HIDDEN, hide_secrets, is_secret
from launcher.runs.run_json import PLAN_OF_EVENT, Node, Plan, PlannedProgram, SentCode, UsedHost


def as_record(plan: LaunchPlan, of_event: Mapping[str, Any], *, is_dry: bool = False) -> dict[str, Any]:
    """Return the plan as JSON values, without the variables that the user set, any of which may be a secret.

    of_event: the values of PLAN_OF_EVENT. is_dry: with each node's line, and None for what only the nodes know.
    """
    is_known = all(node.nproc for node in plan.nodes)
    nodes = [
        Node(
            node.host.name, node.node_rank, node.first_rank if is_known else None, node.nproc or None, node.cwd,
            () if is_dry else tuple(hide_secrets(node.argv or node.processes[0].argv)),
            {name: HIDDEN if is_secret(name, value) else value for name, value in node.env.items()},
            node.by_hand,
        )
        for node in plan.nodes
    ]  # fmt: skip
    record = asdict(
        Plan(
            **of_event,
            program=PlannedProgram(
                plan.program.kind.value, plan.program.target, tuple(hide_secrets(plan.program.args))
            ),
            world_size=plan.world_size if is_known else None,
            master_addr=None if plan.master_addr.startswith("<") else plan.master_addr,
            master_port=plan.master_port if isinstance(plan.master_port, int) else None,
            nodes=tuple(nodes),
        )
    )
    for node in record["nodes"]:
        for name in ("argv", "env") if is_dry else ("command",):
            del node[name]
    return {name: value for name, value in record.items() if name in of_event or name not in PLAN_OF_EVENT}


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


def describe_code(job: Job) -> SentCode | None:
    """Return which code was sent; None if none was."""
    tree = job.tree
    if tree is None:
        return None
    links = {link.name: link.target for link in tree.links}
    return SentCode(tree.hash, tree.root, tree.files, tree.bytes_in_all, links, tree.left_out)
