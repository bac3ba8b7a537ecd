"""A host as the user names it, and the filters that choose among hosts and their GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

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
from launcher.wording import nearest

_LISTED_LENGTH = 300  # a fix with more names than that hides what it points at


@dataclass(frozen=True, slots=True)
class Host:
    """One host as the user named it. None: the user did not say, so ssh_config or the node decides."""

    name: str  # what ssh is given, and what output shows; an IPv6 address stands without brackets
    user: str | None = None
    port: int | None = None
    address: str | None = None  # the IP by which the other nodes reach it (data network)
    slots: int | None = None  # processes (GPUs) it offers
    gpus: tuple[int, ...] | None = None  # chosen by --include or --exclude, in the order written
    source: str = ""  # "hostfiles/two:3" or "--hosts", for error messages
    dialect: str = field(default="", compare=False)  # of that source, to show; says nothing of the host


# What --include or --exclude says per host (by key): the GPUs, or None for the whole host.
_Choice = dict[str, tuple[int, ...] | None]


def select_hosts(
    hosts: Sequence[Host], include: str | None, exclude: str | None, num_nodes: int | None
) -> tuple[Host, ...]:
    """Apply --include or --exclude, then take the first num_nodes; the order stays that of hosts."""
    selected = tuple(hosts)
    if include is not None and exclude is not None:
        fix = "--include names all that is wanted, --exclude all that is not: give one of them"
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
        raise UsageError(f"--num-nodes wants {num_nodes} hosts, there are {len(selected)}", _known(selected))
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
                raise UsageError(f"host {shown(name)} is named twice")
            if name_key(name) not in known:
                raise _unknown_host(name, hosts, has_at="@" in text)
            choice[name_key(name)] = gpus
    return choice


def _parse_part(part: str) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    name, colon, listed = part.rpartition(":")
    if not colon or ipv6_name(part) is not None:
        name, colon = part, ""
    if len(split_list(name)) > 1:
        raise UsageError(f"{shown(name)} is no single host", "join hosts by '@', GPUs by ',': gpu1@gpu2:0,1")
    return expand_names(name), _parse_gpus(part, listed) if colon else None


def _parse_gpus(part: str, listed: str) -> tuple[int, ...]:
    gpus: list[int] = []
    for item in listed.split(","):
        if not NUMBER.fullmatch(item.strip(" \t")):
            fix = "after ':' stand GPU numbers; join hosts by '@': gpu1:0,1@gpu2:0"
            raise UsageError(f"a GPU in {shown(part)} must be a number, got {shown(item)}", fix)
        if int(item) in gpus:
            raise UsageError(f"GPU {int(item)} stands twice in {shown(part)}")
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
        raise UsageError(f"no host is left of {len(hosts)}", _known(hosts))
    return tuple(kept)


def _with_gpus(host: Host, gpus: tuple[int, ...]) -> Host:
    offered = _offered_gpus(host)
    for gpu in gpus:
        if offered is not None and gpu not in offered:
            fix = f"it has slots={host.slots} ({host.source})"
            raise UsageError(f"host {shown(host.name)} offers no GPU {gpu}", fix)
    return replace(host, gpus=gpus, slots=len(gpus))


def _without_gpus(host: Host, gpus: tuple[int, ...]) -> tuple[Host, ...]:
    offered = _offered_gpus(host)
    if offered is None:
        fix = f"give slots= in a hostfile, or name the others: --include {host.name}:1,2,3"
        raise UsageError(f"how many GPUs host {shown(host.name)} has is not known ({host.source})", fix)
    _with_gpus(host, gpus)
    rest = tuple(gpu for gpu in offered if gpu not in gpus)
    return (_with_gpus(host, rest),) if rest else ()


def _offered_gpus(host: Host) -> Sequence[int] | None:
    if host.gpus is not None:
        return host.gpus
    return None if host.slots is None else range(host.slots)


def _unknown_host(name: str, hosts: tuple[Host, ...], *, has_at: bool) -> UsageError:
    near = nearest(name, (host.name for host in hosts))
    fix = f"did you mean {near!r}?" if near else _known(hosts)
    if has_at:
        fix = "; ".join(filter(None, (fix, "'@' joins hosts here, names carry no user")))
    return UsageError(f"no host {shown(name)} in the list", fix)


def _known(hosts: tuple[Host, ...]) -> str:
    folded = fold_names(host.name for host in hosts)
    return f"the hosts are {folded}" if len(folded) <= _LISTED_LENGTH else ""
