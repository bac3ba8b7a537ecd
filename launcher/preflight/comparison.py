"""Compare the nodes with each other.

A node that differs from most is named; if no value has a majority, the finding lists which node has which value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from launcher.hosts.ranges import fold_names
from launcher.job.facts import Checks, Network
from launcher.job.plan import count_processes, used_gpus
from launcher.preflight.findings import PROBLEM, WARNING, CheckedHost, Finding, Severity
from launcher.preflight.network import is_reached_on_loopback
from launcher.wording import count, listed

_MAX_VALUES = 5
_VIRTUAL = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel")
_EQUAL_GPUS = "pass --gpus N for equal numbers: each GPU adds a rank to the global batch"


Host = TypeVar("Host", str, int)  # its name or index
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Trait:
    """Something that should be equal on all nodes, and what it means if it is not."""

    label: str
    value_of: Callable[[CheckedHost], str | None]  # None: unknown, so this node is skipped
    severity: Severity
    fix: str


def check(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Yield how nodes differ from each other."""
    for trait in _TRAITS:
        yield from _compare(trait, nodes)
    yield from _compare_releases(nodes)
    yield from _check_faster_network(nodes)


def check_machines(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Yield the hosts that are another name of a machine in the run: its ranks would share GPUs, or fail with it."""
    machines: dict[str, list[CheckedHost]] = {}
    for node in sorted(nodes, key=lambda node: node.host.is_spare):
        if node.fact.machine is None:
            continue
        others = machines.setdefault(node.fact.machine, [])
        rivals = [other for other in others if _shares_gpus(node, other)]
        text = f"it is the same machine as {(rivals or others)[0].name}" if others else ""
        if text and node.host.is_spare:
            yield Finding((node.name,), f"{text}, so it can't be its spare", "name another machine as the spare")
        elif others and all(is_reached_on_loopback(each.host, each.fact) for each in (node, *others)):
            pass
        elif rivals:
            fix = "name each machine once, or give each name other GPUs with --include"
            yield Finding((node.name,), f"{text}, and its ranks would use the same GPUs", fix)
        elif others:
            yield Finding((node.name,), text, "name each machine once", WARNING)
        others.append(node)


def _shares_gpus(node: CheckedHost, other: CheckedHost) -> bool:
    """Tell whether both may use one GPU; a part of a GPU (MIG) has no index, so nobody knows."""
    ours, theirs = ({gpu.index for gpu in used_gpus(each.job, each.host, each.fact)} for each in (node, other))
    return node.job.wants_gpus and bool(node.fact.gpus) and not (ours and theirs and ours.isdisjoint(theirs))


def _compare(trait: _Trait, nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    values = {node.name: value for node in nodes if (value := trait.value_of(node)) is not None}
    groups = group_hosts(values)
    if len(groups) < 2:
        return
    if len(groups) > 2 and not has_majority(groups):
        listing = listed(list_values(groups, _MAX_VALUES))
        yield Finding(tuple(values), f"{trait.label}{listing}", trait.fix, trait.severity)
        return
    common, *_ = groups
    others = "the others" if len(groups) == 2 else "most"
    for name, value in values.items():
        if value != common:
            yield Finding((name,), f"{trait.label}{value}, {others} {common}", trait.fix, trait.severity)


def group_hosts(values: Mapping[Host, Value]) -> dict[Value, list[Host]]:
    """Return the hosts that have each value: the most frequent value first, of equals that of the first host."""
    groups: dict[Value, list[Host]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def has_majority(groups: Mapping[Value, Sequence[str]]) -> bool:
    """Return whether most hosts are in the first group; otherwise none is to blame for a difference."""
    first, *others = map(len, groups.values())
    return first > sum(others)


def list_values(groups: Mapping[str, Sequence[str]], most: int) -> list[str]:
    """Return `2.1 on gpu1` and `2.2 on gpu[2-3]`; beyond that many values, count the rest."""
    words = [f"{value} on {fold_names(names)}" for value, names in groups.items()]
    more = len(words) - most
    return [*words[:most], count(more, "more value")] if more > 0 else words


def _compare_releases(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Compare the versions of torch, Python and numpy.

    torch 2.12 can't communicate with 2.13; another patch release or build can, but may compute different numbers.
    numpy 1 can't read what numpy 2 has pickled, and a wheel built for one of them may not import with the other.
    """
    apart = "install the same one everywhere: they can't train together"
    found = list(_compare(_Trait("torch ", lambda node: _release(_torch(node)), PROBLEM, apart), nodes))
    near = "install the same one everywhere: results may differ"
    yield from found or _compare(_Trait("torch ", _torch, WARNING, near), nodes)
    apart = "install the same one everywhere: pickles and wheels may be incompatible"
    yield from _compare(_Trait("python ", lambda node: _release(_python(node)), WARNING, apart), nodes)
    found = list(_compare(_Trait("numpy ", lambda node: _major(_numpy(node)), PROBLEM, apart), nodes))
    yield from found or _compare(_Trait("numpy ", lambda node: _release(_numpy(node)), WARNING, near), nodes)


def _torch(node: CheckedHost) -> str | None:
    return node.fact.torch_version if node.job.program.needs_torch else None


def _python(node: CheckedHost) -> str | None:
    return node.fact.python_version if node.job.program.needs_torch else None


def _numpy(node: CheckedHost) -> str | None:
    return (node.fact.packages or {}).get("numpy") or node.fact.numpy_version


def _major(version: str | None) -> str | None:
    return version and version.partition(".")[0]


def _release(version: str | None) -> str | None:
    return version and ".".join(version.split(".")[:2])


def _of_gpus(value_of: Callable[[CheckedHost], str | None]) -> Callable[[CheckedHost], str | None]:
    return lambda node: value_of(node) if node.job.wants_gpus and node.fact.gpus else None


def _of_checks(value_of: Callable[[Checks], str | None]) -> Callable[[CheckedHost], str | None]:
    return lambda node: value_of(node.fact.checks) if node.fact.checks else None


def _count_gpus(node: CheckedHost) -> str | None:
    """Count a node's GPUs if it uses all of them; None if a number was requested, as too few are then a problem."""
    is_free = node.job.nproc is None and node.host.slots is None and node.host.gpus is None
    return f"{count_processes(node.job, node.host, node.fact)} GPUs" if is_free else None


def _script(node: CheckedHost) -> str | None:
    found = node.fact.checks.script_hash if node.fact.checks else None
    return found and found[:6]


def _code(node: CheckedHost) -> str | None:
    found = node.fact.checks.code_hash if node.fact.checks else None
    return found and found[:6]


_TRAITS = (
    _Trait("the script's hash is ", _script, PROBLEM, "copy the same script to all hosts"),
    _Trait(
        "the hash of its Python files is ", _code, WARNING,
        "copy the same code to all hosts (rsync -rcni lists the files that differ), or pass --sync",
    ),
    _Trait("", _of_gpus(_count_gpus), WARNING, _EQUAL_GPUS),
    _Trait(
        "", _of_gpus(lambda node: node.fact.typical_gpu.name), WARNING, "leave out the slower ones: they slow down all"
    ),
    _Trait("driver ", _of_gpus(lambda node: node.fact.gpus[0].driver), WARNING, "update it: NCCL may refuse to start"),
    _Trait("CUDA ", _of_gpus(lambda node: node.fact.cuda_version), WARNING, "install the same torch build everywhere"),
    _Trait(
        "NCCL ", _of_gpus(lambda node: node.fact.nccl_version), PROBLEM,
        "install the same one everywhere: NCCL refuses to start with different ones",
    ),
    _Trait(
        "", _of_gpus(_of_checks(lambda checks: "InfiniBand" if checks.infiniband else "no InfiniBand")), WARNING,
        "run ibstat there: NCCL falls back to TCP on all hosts",
    ),
)  # fmt: skip


def _check_faster_network(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Find a subnet that all nodes share and whose slowest link is faster than that of the one in use."""
    if len(nodes) < 2 or any(map(_has_chosen_network, nodes)) or all(map(_has_infiniband, nodes)):
        return
    shared = _shared_networks(nodes)
    here = [_slowest_mbps(entries) for entries in shared.values() if _is_used(entries, nodes)]
    if not here:
        return
    network, entries = max(shared.items(), key=lambda item: _slowest_mbps(item[1]))
    if _slowest_mbps(entries) > max(here):
        interfaces = ", ".join(sorted({entry.interface for entry in entries}))
        text = (
            f"data goes over {_gigabits(max(here))} Gb/s, but all hosts share {network} "
            f"at {_gigabits(_slowest_mbps(entries))} Gb/s ({interfaces})"
        )
        fix = "set addr= in the hostfile to the hosts' addresses on that network"
        yield Finding(tuple(node.name for node in nodes), text, fix, WARNING)


def _has_chosen_network(node: CheckedHost) -> bool:
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return node.host.address is not None or any(node.job.env.get(name) for name in names)


def _has_infiniband(node: CheckedHost) -> bool:
    """Tell whether training data uses InfiniBand; NCCL then needs TCP only to connect the ranks."""
    return node.job.wants_gpus and node.fact.checks is not None and bool(node.fact.checks.infiniband)


def _is_used(entries: Sequence[Network], nodes: Sequence[CheckedHost]) -> bool:
    """Tell whether a node reaches the others over a subnet; its interface may have another name on each node."""
    return any(
        node.fact.route is not None and node.fact.route.interface == entry.interface
        for entry, node in zip(entries, nodes, strict=True)
    )


def _slowest_mbps(entries: Sequence[Network]) -> int:
    return min(entry.speed_mbps or 0 for entry in entries)


def _shared_networks(nodes: Sequence[CheckedHost]) -> dict[str, list[Network]]:
    """Return the subnets that all nodes are in, with the entry of each node."""
    shared: dict[str, list[Network]] = {}
    tables = [
        {
            entry.network: entry
            for entry in (node.fact.checks.networks if node.fact.checks else ())
            if entry.speed_mbps is not None and not entry.interface.startswith(_VIRTUAL)
        }
        for node in nodes
    ]
    for network in tables[0] if tables else ():
        entries = [table[network] for table in tables if network in table]
        if len(entries) == len(tables):
            shared[network] = entries
    return shared


def _gigabits(mbps: int) -> str:
    return f"{mbps / 1000:g}"
