"""Facts of all nodes -> findings: what would make the plan wrong stops the launch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from launcher.facts import NodeFacts
from launcher.hosts import Host, fold_names
from launcher.job import Job, ProgramKind
from launcher.plan import count_processes


@dataclass(frozen=True, slots=True)
class Finding:
    """What a comparison says of some hosts, and the remedy."""

    hosts: tuple[str, ...]
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{fold_names(self.hosts)}: {self.text}" + (f"\n  {self.hint}" if self.hint else "")


_Problems = Iterator[tuple[str, str]]
_Check = Callable[[Job, Host, NodeFacts], _Problems]


def find_problems(job: Job, hosts: Sequence[Host], facts: Sequence[NodeFacts]) -> list[Finding]:
    """Return what would break the run, equal findings of several hosts folded into one."""
    folded: dict[tuple[str, str], list[str]] = {}
    for host, fact in zip(hosts, facts, strict=True):
        for check in _CHECKS:
            for text, hint in check(job, host, fact):
                folded.setdefault((text, hint), []).append(host.name)
    return [Finding(tuple(names), text, hint) for (text, hint), names in folded.items()]


def _check_system(job: Job, host: Host, fact: NodeFacts) -> _Problems:
    if fact.system != "linux":
        yield f"runs {fact.system}; a node must run Linux", ""


def _check_python(job: Job, host: Host, fact: NodeFacts) -> _Problems:
    if not job.program.needs_torch or fact.torch_version is not None:
        return
    tried = "; ".join(f"{path}: {why}" for path, why in fact.pythons_tried)
    yield f"no Python with torch ({tried})", "name it with --python PATH"


def _check_folder(job: Job, host: Host, fact: NodeFacts) -> _Problems:
    if not fact.workdir_found and job.program.kind is not ProgramKind.BUILTIN:
        yield (
            f"the working folder {job.workdir} is not there",
            "name one that is with --workdir, or copy yours",
        )
    elif not fact.script_found:
        yield (
            f"the script {job.program.target} is not in {job.workdir}",
            "copy it there, or name the folder with --workdir",
        )


def _check_gpus(job: Job, host: Host, fact: NodeFacts) -> _Problems:
    if not job.wants_gpus:
        return
    wanted = count_processes(job, host, fact)
    if not fact.gpus:
        yield f"no GPU ({fact.gpu_error or 'nvidia-smi lists none'})", "on CPUs: --nproc N --cpu"
        return
    if host.gpus is not None:
        missing = sorted(set(host.gpus) - {gpu.index for gpu in fact.gpus})
        if missing:
            yield f"has no GPU {', '.join(map(str, missing))}", f"it has 0 to {len(fact.gpus) - 1}"
    elif wanted > len(fact.gpus):
        yield f"{wanted} GPUs wanted, {len(fact.gpus)} there", "one process a GPU; ask for fewer with --gpus"


def _check_route(job: Job, host: Host, fact: NodeFacts) -> _Problems:
    route = fact.route
    if route is None:
        return
    if route.error:
        yield (
            f"can't use the address or port of node 0: {route.error}",
            "name them with addr= and --master-port",
        )
    elif route.interface is None:
        yield f"no interface has the address {route.address}", "set NCCL_SOCKET_IFNAME with --env"


_CHECKS: tuple[_Check, ...] = (_check_system, _check_python, _check_folder, _check_gpus, _check_route)


def find_unreachable_master(hosts: Sequence[Host], facts: Sequence[NodeFacts], master: str) -> list[Finding]:
    """A master on loopback is reached by its own machine alone: nodes that came by SSH to others would hang."""
    if len(hosts) < 2 or not master.startswith("127."):
        return []
    outside = [
        host.name
        for host, fact in zip(hosts[1:], facts[1:], strict=True)
        if fact.ssh_address is None or not fact.ssh_address.startswith("127.")
    ]
    if not outside:
        return []
    text = f"node 0 ({hosts[0].name}) is known by its loopback address {master} only"
    return [Finding(tuple(outside), text, "give its address on the data network: addr=IP in the hostfile")]


def summarize(job: Job, facts: Sequence[NodeFacts]) -> str:
    """Return in a few words what all nodes have: GPUs, versions, the data interface."""
    words = []
    if job.cpu or not any(fact.gpus for fact in facts):
        words.append("CPUs")
    else:
        words.append(_each(f"{len(fact.gpus)} x {fact.gpus[0].name}" if fact.gpus else "no GPU" for fact in facts))
    if job.program.needs_torch:
        words.append("python " + _each(str(fact.python_version) for fact in facts))
        words.append("torch " + _each(str(fact.torch_version) for fact in facts))
    words.append("data over " + _each(str(fact.route.interface) for fact in facts if fact.route))
    return ", ".join(words)


def _each(values: Iterator[str]) -> str:
    return " or ".join(dict.fromkeys(values))
