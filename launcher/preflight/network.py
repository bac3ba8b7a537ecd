"""Check whether the nodes can reach each other, and whether they have the interfaces that the user named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.hosts.host import Host
from launcher.job.facts import NodeFacts, Probe
from launcher.job.job import Job
from launcher.node.messages import NOT_TRIED
from launcher.preflight.findings import WARNING, CheckedHost, Finding

_FEW = 4  # pairs that are named one by one
_MOST_NAMES = 32  # of interfaces, in a fix
_OPEN = "open TCP between the hosts"
_OPEN_ALL = "open all TCP ports between the hosts: some are open, but NCCL and gloo use any free one"


def check(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Yield which node can't reach which, and which interfaces are missing."""
    for node in nodes:
        yield from _check_interfaces(node)
        if len(nodes) > 1:
            yield from _check_loopback(node)
        if any(probe.error == NOT_TRIED for probe in _tried(node)):
            fix = "check its load and free memory"
            yield Finding((node.name,), "its connections to the others could not be tested in time", fix, WARNING)
    failed = [
        (node, probe)
        for node in nodes
        for probe in _tried(node)
        if probe.error is not None and probe.error != NOT_TRIED
    ]
    for node, probe in failed:
        if probe.is_master:
            place = f"{probe.address} port {probe.port}"
            if node is nodes[0]:
                fix = "set addr= to its own address, at which it can reach itself"
                yield Finding((node.name,), f"can't reach itself at {place}: {_lowered(probe.error)}", fix)
            else:
                text = f"can't reach node 0 ({probe.host}) at {place}: {_lowered(probe.error)}"
                yield Finding((node.name,), text, _OPEN)
    yield from _check_ring(nodes, [(node, probe) for node, probe in failed if not probe.is_master])


def _tried(node: CheckedHost) -> tuple[Probe, ...]:
    return node.fact.probes.tried if node.fact.probes is not None else ()


def _check_ring(nodes: Sequence[CheckedHost], failed: list[tuple[CheckedHost, Probe]]) -> Iterator[Finding]:
    """Yield which nodes can't reach a free port of the next node.

    If the port of node 0 is open and these are not, a firewall allows only listed ports.
    """
    masters = [probe for node in nodes for probe in _tried(node) if probe.is_master]
    fix = _OPEN_ALL if masters and all(probe.error is None for probe in masters) else _OPEN
    if len(failed) > _FEW:
        node, probe = failed[0]
        example = f"{node.name} to {probe.host}, {probe.address} port {probe.port}: {_lowered(probe.error)}"
        names = tuple(node.name for node, _ in failed)
        yield Finding(names, f"can't reach a free port of the next host (for example, {example})", fix)
        return
    for node, probe in failed:
        text = f"can't reach {probe.host} at {probe.address} port {probe.port}: {_lowered(probe.error)}"
        yield Finding((node.name,), text, fix)


def _lowered(error: str | None) -> str:
    text = error or ""
    return text[:1].lower() + text[1:]


def _check_interfaces(node: CheckedHost) -> Iterator[Finding]:
    """Check the interfaces named by GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME.

    gloo takes a list of names; NCCL a list of prefixes, exact names after `=`, or exclusions after `^`.
    """
    there = list(dict.fromkeys(name for name, _ in node.fact.addresses))
    if not there:
        return
    names = ", ".join(there[:_MOST_NAMES]) + (", ..." if len(there) > _MOST_NAMES else "")
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = node.job.env.get(variable)
        if not value:
            continue
        fix = f"unset {variable} to use each host's own interface, or choose from {names}"
        if variable.startswith("GLOO") and value.startswith(("^", "=")):
            text = f"GLOO_SOCKET_IFNAME takes plain interface names, got {value!r}"
            yield Finding((node.name,), text, f"choose from {names}")
        elif variable.startswith("GLOO") and (missing := [name for name in value.split(",") if name not in there]):
            text = f"has no interface {missing[0]}, named by GLOO_SOCKET_IFNAME={value}"
            yield Finding((node.name,), text, fix)
        elif not any(_is_meant(variable, value, name) for name in there):
            yield Finding((node.name,), f"{variable}={value} matches no interface", fix)


def _check_loopback(node: CheckedHost) -> Iterator[Finding]:
    """Find an NCCL_SOCKET_IFNAME that excludes some interfaces, but not lo.

    NCCL connects over the first interface that it may use, which then is lo (findInterfaces in its socket.cc).
    """
    value = node.job.env.get("NCCL_SOCKET_IFNAME", "")
    if node.job.wants_gpus and value.startswith("^") and matches(value, "lo") and not node.fact.is_on_loopback:
        text = f"NCCL_SOCKET_IFNAME={value} allows lo, which reaches no other host"
        yield Finding((node.name,), text, f"exclude lo as well: {value},lo")


def data_address(job: Job, fact: NodeFacts) -> str | None:
    """Return the address at which the ranks on a node are reached.

    It is that of the interface that the user named, or else that of the route to node 0.
    """
    variable = "NCCL_SOCKET_IFNAME" if job.wants_gpus else "GLOO_SOCKET_IFNAME"
    setting = job.env.get(variable)
    if setting:
        for interface, address in fact.addresses:
            if interface == "lo" and not fact.is_on_loopback:
                continue  # no other host could reach it there; _check_loopback reports that
            if ":" not in address and _is_meant(variable, setting, interface):
                return address
    return fact.route.address if fact.route is not None else None


def _is_meant(variable: str, setting: str, interface: str) -> bool:
    return matches(setting, interface) if variable.startswith("NCCL") else interface in setting.split(",")


def matches(setting: str, interface: str) -> bool:
    """Tell whether NCCL would use an interface with this value of NCCL_SOCKET_IFNAME."""
    names = setting.lstrip("^=").split(",")
    if setting.startswith(("=", "^=")):
        is_named = interface in names
    else:
        is_named = any(interface.startswith(name) for name in names)
    return is_named != setting.startswith("^")


def is_reached_on_loopback(host: Host, fact: NodeFacts) -> bool:
    """Tell whether it stands for a host of its own on this machine, as those of `launch demo` do."""
    return (host.address or fact.ssh_address or "").startswith("127.")


def _is_beside(fact: NodeFacts, first: NodeFacts) -> bool:
    is_same_machine = fact.machine is not None and fact.machine == first.machine
    return is_same_machine or (fact.ssh_address or "").startswith("127.")


def find_unreachable_master(hosts: Sequence[Host], facts: Sequence[NodeFacts], master: str) -> list[Finding]:
    """Return a finding if node 0 is known only by a loopback address and other nodes are on other machines.

    Those could not reach it, and would hang.
    """
    if len(hosts) < 2 or not master.startswith("127."):
        return []
    outside = [host.name for host, fact in zip(hosts[1:], facts[1:], strict=True) if not _is_beside(fact, facts[0])]
    if not outside:
        return []
    text = f"node 0 ({hosts[0].name}) is known only by its loopback address {master}"
    return [Finding(tuple(outside), text, "set addr=IP in the hostfile to its address on the data network")]
