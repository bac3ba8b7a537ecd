"""A host as the user named it, and the filters that select hosts and their GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from launcher.errors import UsageError
from launcher.hosts.ranges import (
    NUMBER,
    expand_names,
    fold_names,
    ipv6_name,
    name_key,
    shown,
    split_list,
)
from launcher.wording import count, nearest

SSH_PORT = 22
MAX_SLOTS = 1024  # GPUs or processes of a host: far beyond any machine; it limits what a typo costs
_LISTED_LENGTH = 300  # a fix with more names than that hides what it points at


@dataclass(frozen=True, slots=True)
class Host:
    """One host as the user named it; None: not specified, so ssh_config or the host decides."""

    name: str  # what ssh gets, and what output shows; an IPv6 address has no brackets
    user: str | None = None
    port: int | None = None
    address: str | None = None  # the IP address at which the other hosts reach it (data network)
    slots: int | None = None  # processes (GPUs) it offers
    enter: str = ""  # the shell words that start a program inside of its container, see hosts.entering
    is_spare: bool = False  # it takes the place of a host that fails
    gpus: tuple[int, ...] | None = None  # chosen by --include or --exclude, in the order written
    source: str = ""  # "hostfiles/two:3" or "--hosts", for error messages


# What --include or --exclude lists for each host (by key): its GPUs, or None for the whole host.
_Choice = dict[str, tuple[int, ...] | None]


def part_spares(hosts: Sequence[Host], spares: int | None) -> tuple[tuple[Host, ...], tuple[Host, ...]]:
    """Return the hosts of a run and its spares: the last ones, or those that the hostfile marks; keep the order."""
    marked = [host for host in hosts if host.is_spare]
    if spares is not None and marked:
        text = f"--spares and {shown('spare')} in {marked[0].source} both choose the spares"
        raise UsageError(text, "use only one of them")
    last = len(hosts) - (spares or 0)
    found = tuple(marked) or tuple(hosts[max(last, 0) :])
    kept = tuple(host for host in hosts if host not in found)
    found = tuple(replace(host, is_spare=True) for host in found)
    if not kept:
        raise UsageError("all hosts are spares, so none is left to run on", "name more hosts, or fewer spares")
    return kept, found


def select_hosts(
    hosts: Sequence[Host], include: str | None, exclude: str | None, num_nodes: int | None
) -> tuple[Host, ...]:
    """Apply --include or --exclude, then take the first num_nodes; keep the order of hosts."""
    selected = tuple(hosts)
    if include is not None and exclude is not None:
        fix = "list the hosts to use with --include, or those to leave out with --exclude"
        raise UsageError("--include and --exclude can't be given together", fix)
    if include is not None:
        with _of_option("--include"):
            selected = _include(selected, _parse_filter(include, selected))
    if exclude is not None:
        with _of_option("--exclude"):
            selected = _exclude(selected, _parse_filter(exclude, selected))
    if num_nodes is None:
        return selected
    if num_nodes < 1:
        raise UsageError(f"--num-nodes must be at least 1, got {num_nodes}")
    if num_nodes > len(selected):
        fix = "lower it, or name more hosts" + _known(selected, say=" than ")
        raise UsageError(f"--num-nodes {num_nodes}: only {count(len(selected), 'host')} to choose from", fix)
    return selected[:num_nodes]


@contextmanager
def _of_option(option: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", error.fix) from None


def _parse_filter(text: str, hosts: tuple[Host, ...]) -> _Choice:
    elements = split_list(text)
    if not elements:
        raise UsageError("names no host", _known(hosts))
    # Colons of an IPv6 address name no GPU, so `::1,::2` is a plain list.
    is_deepspeed = "@" in text or any(":" in element and ipv6_name(element) is None for element in elements)
    parts = text.split("@") if is_deepspeed else elements
    choice: _Choice = {}
    known = {name_key(host.name) for host in hosts}
    for part in parts:
        names, gpus = _parse_part(part.strip(" \t\r\n"))
        for name in names:
            if name_key(name) in choice:
                raise UsageError(f"host {shown(name)} is named twice", "name each host once, with all its GPUs")
            if name_key(name) not in known:
                raise _unknown_host(name, hosts, has_at="@" in text)
            choice[name_key(name)] = gpus
    return choice


def _parse_part(part: str) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    name, colon, listed = part.rpartition(":")
    if not colon or ipv6_name(part) is not None:
        name, colon = part, ""
    if len(split_list(name)) > 1:
        fix = "separate hosts with '@' and GPUs with ',': gpu1@gpu2:0,1"
        raise UsageError(f"{shown(name)} isn't a single host", fix)
    return expand_names(name), _parse_gpus(part, listed) if colon else None


def _parse_gpus(part: str, listed: str) -> tuple[int, ...]:
    gpus: list[int] = []
    for item in listed.split(","):
        if not NUMBER.fullmatch(item.strip(" \t")):
            fix = "write GPU numbers after ':', and separate hosts with '@': gpu1:0,1@gpu2:0"
            raise UsageError(f"a GPU in {shown(part)} must be a number, got {shown(item)}", fix)
        if int(item) >= MAX_SLOTS:
            raise UsageError(f"GPU {int(item)} in {shown(part)} is above {MAX_SLOTS - 1}", "write the number of a GPU")
        if int(item) in gpus:
            raise UsageError(f"GPU {int(item)} is listed twice in {shown(part)}")
        gpus.append(int(item))
    return tuple(gpus)


def _include(hosts: tuple[Host, ...], choice: _Choice) -> tuple[Host, ...]:
    kept = [(host, choice[name_key(host.name)]) for host in hosts if name_key(host.name) in choice]
    return tuple(host if gpus is None else _with_gpus(host, gpus) for host, gpus in kept)


def _exclude(hosts: tuple[Host, ...], choice: _Choice) -> tuple[Host, ...]:
    kept: list[Host] = []
    for host in hosts:
        if name_key(host.name) not in choice:
            kept.append(host)
        elif gpus := choice[name_key(host.name)]:
            kept.extend(_without_gpus(host, gpus))
    if not kept:
        raise UsageError(f"it leaves 0 of {count(len(hosts), 'host')}", _known(hosts, say="keep at least one of "))
    return tuple(kept)


def _with_gpus(host: Host, gpus: tuple[int, ...]) -> Host:
    offered = _offered_gpus(host)
    for gpu in gpus:
        if offered is not None and gpu not in offered:
            text = f"host {shown(host.name)} offers no GPU {gpu}: slots={host.slots} ({host.source})"
            raise UsageError(text, "choose a lower number, or raise slots=")
    return replace(host, gpus=gpus, slots=len(gpus))


def _without_gpus(host: Host, gpus: tuple[int, ...]) -> tuple[Host, ...]:
    offered = _offered_gpus(host)
    if offered is None:
        fix = f"set slots= in a hostfile, or list the GPUs to keep: --include {host.name}:1,2,3"
        raise UsageError(f"the number of GPUs of host {shown(host.name)} is unknown ({host.source})", fix)
    _with_gpus(host, gpus)
    rest = tuple(gpu for gpu in offered if gpu not in gpus)
    return (_with_gpus(host, rest),) if rest else ()


def _offered_gpus(host: Host) -> Sequence[int] | None:
    if host.gpus is not None:
        return host.gpus
    return None if host.slots is None else range(host.slots)


def _unknown_host(name: str, hosts: tuple[Host, ...], *, has_at: bool) -> UsageError:
    near = nearest(name, (host.name for host in hosts))
    fix = f"write {near!r}" if near else _known(hosts)
    if has_at:
        fix = "; ".join(filter(None, (fix, "'@' separates hosts here, so write names without a user")))
    return UsageError(f"no host {shown(name)} in the list", fix)


def _known(hosts: tuple[Host, ...], *, say: str = "choose from ") -> str:
    folded = fold_names(host.name for host in hosts)
    return say + folded if len(folded) <= _LISTED_LENGTH else ""
