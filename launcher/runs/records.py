"""What a run writes of itself, as values of run.json and --json: its plan, hosts and code, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from launcher.clock import iso_time
from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts
from launcher.job.job import Job
from launcher.job.plan import LaunchPlan
from launcher.job.variables import HIDDEN, hide_secrets, is_secret
from launcher.runs import run_json

if TYPE_CHECKING:  # a dry run needs neither
    from launcher.diagnosis.cause import Cause
    from launcher.diagnosis.failure import Failure
    from launcher.session.node_state import Census


def describe_plan(plan: LaunchPlan, *, is_dry: bool = False, **of_run: Any) -> dict[str, Any]:
    """Return the plan as JSON values, without the variables that the user set, any of which may be a secret.

    is_dry: with each node's line, and None for what only the nodes know. of_run: the other values of run_json.Plan.
    """
    is_known = all(node.nproc for node in plan.nodes)
    nodes = [
        run_json.Node(
            node.host.name, node.node_rank, node.first_rank if is_known else None, node.nproc or None, node.cwd,
            () if is_dry else tuple(hide_secrets(node.argv or node.processes[0].argv)),
            {} if is_dry else {name: HIDDEN if is_secret(name, each) else each for name, each in node.env.items()},
            node.by_hand if is_dry else "",
        )
        for node in plan.nodes
    ]  # fmt: skip
    program = plan.program
    return asdict(
        run_json.Plan(
            **of_run,
            program=run_json.PlannedProgram(program.kind.value, program.target, tuple(hide_secrets(program.args))),
            world_size=plan.world_size if is_known else None,
            master_addr=None if plan.master_addr.startswith("<") else plan.master_addr,
            master_port=plan.master_port if isinstance(plan.master_port, int) else None,
            nodes=tuple(nodes),
        )
    )


def describe_hosts(hosts: Sequence[Host], facts: Sequence[NodeFacts]) -> list[dict[str, object]]:
    """Return as JSON values what may differ between hosts and change how a run goes."""
    return [
        asdict(
            run_json.UsedHost(
                host.name, len(fact.gpus), " or ".join(dict.fromkeys(gpu.name for gpu in fact.gpus)) or None,
                fact.gpus[0].driver if fact.gpus else None, fact.cpu_count, fact.python, fact.python_version,
                fact.torch_version, fact.cuda_version, fact.nccl_version,
                fact.route.interface if fact.route is not None else None,
            )
        )
        for host, fact in zip(hosts, facts, strict=True)
    ]  # fmt: skip


def describe_code(job: Job) -> run_json.SentCode | None:
    """Return which code was sent; None if none was."""
    tree = job.tree
    if tree is None:
        return None
    links = {link.name: link.target for link in tree.links}
    return run_json.SentCode(tree.hash, tree.root, tree.files, tree.bytes_in_all, links, tree.left_out)


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt ended; how the last one ended is how the run ended."""

    exit_code: int
    seconds: float
    census: Census
    cause: Cause | None = None
    failed: tuple[Failure, ...] = ()  # the ranks that failed by themselves, that of the cause first
    interrupted_by: int | None = None
    error: str | None = None  # why it could not start
    master_port: int | str | None = None
    ranks: int = 0  # of this launcher; 0: it ended before any was started
    is_network: bool = False  # all hosts were lost, or this machine was suspended
    output_s: float | None = None  # from the start of the ranks to their last output; None: there was none
    has_saved: bool | None = None  # whether the ranks have saved a checkpoint; None: not known
    time_limit: str | None = None  # the option that has stopped it in time, `until` or `for`
    lost_host_wait_s: float = 0.0  # until no rank can be alive on a host that was lost; 0: all hosts have been asked

    def describe(self) -> run_json.Result:
        """Return it for run.json and --json."""
        return run_json.Result(
            exit_code=self.exit_code,
            seconds=round(self.seconds, 3),
            interrupted_by=self.interrupted_by,
            time_limit=self.time_limit,
            error=self.error,
            left={host: tuple(found) for host, found in self.census.left.items()},
            unreachable=dict(self.census.unasked),
            written=dict(self.census.written),
            cause=None if self.cause is None else _describe_cause(self.cause),
            failures=tuple(
                run_json.RankFailure(**_describe(each), traceback=tuple(each.traceback)) for each in self.failed
            ),
        )


def _describe(failure: Failure) -> dict[str, Any]:
    return {
        "host": failure.host,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "gpu": failure.gpu,
        "exit_code": failure.code,
        "signal": failure.signal,
        "text": failure.ending,
        "at": iso_time(failure.at),
    }


def _describe_cause(cause: Cause) -> run_json.Cause:
    failure, known = cause.failure, cause.explanation
    return run_json.Cause(
        **_describe(failure),
        what=failure.kind.value,
        oom=failure.oom,
        headline=failure.headline,
        traceback=cause.traceback,
        last_lines=cause.last_lines,
        explanation=None if known is None else run_json.Explanation(known.name, known.cause, known.fix),
    )
