"""Hosts as the user names them: lists, hostfiles in our dialect (DeepSpeed's is part of it), and filters.

A hostfile line is `[user@]NAME-or-range [slots=N] [user=U] [port=P] [addr=IP]  # comment`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from launcher.errors import HostfileError, UsageError
from launcher.host_ranges import (
    MAX_HOSTS,
    expand_names,
    expand_ranges,
    fold_names,
    ipv6_name,
    shown,
    split_list,
)

__all__ = ["Host", "parse_hostfile", "parse_hosts", "read_hostfile", "select_hosts"]
__all__ += ["expand_ranges", "fold_names"]

MAX_PORT = 65535
MAX_SLOTS = 65536  # far beyond any machine, and what a slip of the finger may cost in memory

_KEYS = ("slots", "user", "port", "addr")
_KEYS_HINT = "the settings are slots=, user=, port= and addr="
_LISTED_LENGTH = 300  # a hint with more names than that hides what it hints at
_BLANKS = re.compile(r"[ \t]+")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_NUMBER = re.compile(r"[0-9]{1,18}")  # int() of text refuses 4,300 digits with an exception of its own


@dataclass(frozen=True, slots=True)
class Host:
    """Hold one host as it was named; None means that nothing was said and ssh_config or the node decides."""

    name: str  # what ssh is given, and what output shows; an IPv6 address stands without brackets
    user: str | None = None
    port: int | None = None
    address: str | None = None  # the IP by which the other nodes reach it (data network)
    slots: int | None = None  # processes (GPUs) it offers
    gpus: tuple[int, ...] | None = None  # chosen by --include or --exclude, in the order written
    source: str = ""  # "hostfiles/two:3" or "--hosts", for error messages


# What --include or --exclude says per host (by key): the GPUs, or None for the whole host.
_Choice = dict[str, tuple[int, ...] | None]
# Hosts by key, in the order written, each with the words that named it.
_Named = dict[str, tuple[Host, str]]


def parse_hosts(text: str, source: str = "--hosts") -> tuple[Host, ...]:
    """Read a list as --hosts takes it, by commas or white space; raise HostfileError without a line."""
    named: _Named = {}
    with _located(source, None):
        for element in split_list(text):
            _add(named, _parse_element(element, source), shown(element))
        if not named:
            raise UsageError("names no host", "give at least one, as in node1,node2")
    return tuple(host for host, _ in named.values())


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Read a hostfile that was named; raise HostfileError where it is missing or is no UTF-8 text."""
    source = str(path) if str(path).isprintable() else repr(str(path))
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise HostfileError(source, None, "no such hostfile", "check the path given to --hostfile") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise HostfileError(source, None, f"can't be read: {reason}") from None
    try:
        text = content.decode("utf-8-sig")  # Windows editors put a byte order mark in front
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise HostfileError(source, line, f"byte 0x{byte:02x} is not UTF-8", "save the file as UTF-8") from None
    return parse_hostfile(text, source)


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """Read the text of a hostfile; raise HostfileError with the source and the line."""
    named: _Named = {}
    # Not splitlines(): it splits at form feeds and U+2028 too, and the numbers would not be an editor's.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        content = line.partition("#")[0].strip(" \t")
        if not content:
            continue
        place = f"{source}:{number}"
        with _located(source, number):
            _add(named, _parse_line(content, place), place)
    if not named:
        raise HostfileError(source, None, "names no host", "write one per line, as in: node1 slots=8")
    return tuple(host for host, _ in named.values())


def select_hosts(
    hosts: Sequence[Host], include: str | None, exclude: str | None, num_nodes: int | None
) -> tuple[Host, ...]:
    """Apply --include or --exclude, then take the first num_nodes; the order stays that of hosts."""
    selected = tuple(hosts)
    if include is not None and exclude is not None:
        hint = "--include names all that is wanted, --exclude all that is not: give one of them"
        raise UsageError("--include and --exclude can't be given together", hint)
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
def _located(source: str, line: int | None) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise HostfileError(source, line, error.message, error.hint) from None


@contextmanager
def _of_option(option: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", error.hint) from None


def _key(name: str) -> str:
    # DNS and ssh ignore case; Node1 and node1 as two nodes would be two sets of ranks on the same GPUs.
    return name.lower()


def _add(named: _Named, hosts: tuple[Host, ...], place: str) -> None:
    if len(named) + len(hosts) > MAX_HOSTS:
        raise UsageError(f"more than {MAX_HOSTS} hosts")
    for host in hosts:
        first = named.setdefault(_key(host.name), (host, place))
        if first[0] is not host:
            raise UsageError(f"host {shown(host.name)} is named twice, by {first[1]} and by {place}")


def _parse_element(text: str, source: str) -> tuple[Host, ...]:
    user, at, pattern = text.rpartition("@")
    checked = _check_user(user) if at else None
    return tuple(Host(name, user=checked, source=source) for name in expand_names(pattern))


def _parse_line(content: str, place: str) -> tuple[Host, ...]:
    target, *words = _BLANKS.split(content)
    hosts = _parse_element(target, place)
    if re.search(r"[ \t]=|=[ \t]", content):
        joined = "=".join(part.strip(" \t") for part in content.split("="))
        raise UsageError(f"no spaces around '=', got {shown(content)}", f"write {shown(joined)}")
    settings = _parse_settings(words)
    if (user := settings.get("user")) is not None and hosts[0].user is not None:
        raise UsageError(f"user is given twice, by {shown(target)} and by {shown(f'user={user}')}")
    if (address := settings.get("addr")) is not None and len(hosts) > 1:
        hint = "give each of them a line with its own addr="
        raise UsageError(f"addr= is the address of one host, {shown(target)} is {len(hosts)}", hint)
    said = Host(
        "",
        user=hosts[0].user if user is None else _check_user(user),
        port=_parse_bounded("port", settings.get("port"), MAX_PORT),
        address=None if address is None else _parse_address(address),
        slots=_parse_bounded("slots", settings.get("slots"), MAX_SLOTS),
        source=place,
    )
    return tuple(replace(said, name=host.name) for host in hosts)


def _parse_settings(words: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            hint = f"write one host or range per line; {_KEYS_HINT}"
            raise UsageError(f"expected key=value, got {shown(word)}", hint)
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, 1)
            raise UsageError(f"unknown key {shown(key)}", f"did you mean '{near[0]}'?" if near else _KEYS_HINT)
        if key in settings:
            raise UsageError(f"{key} is given twice, {shown(settings[key])} and {shown(value)}")
        settings[key] = value
    return settings


def _parse_bounded(key: str, value: str | None, high: int) -> int | None:
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        raise UsageError(f"{key} must be a number, got {shown(value)}")
    if not 1 <= int(value) <= high:
        raise UsageError(f"{key} must be between 1 and {high}, got {value}")
    return int(value)


def _parse_address(value: str) -> str:
    if (address := ipv6_name(value)) is not None:
        return address
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise UsageError(f"addr must be an IP address, got {shown(value)}", "as in addr=10.0.0.1") from None


def _check_user(user: str) -> str:
    if _USER.fullmatch(user):
        return user
    hint = "letters, digits, '.', '_' and '-' stand here; ssh_config takes any user"
    raise UsageError(f"{shown(user)} is no user name", hint)


def _parse_filter(text: str, hosts: tuple[Host, ...]) -> _Choice:
    elements = split_list(text)
    if not elements:
        raise UsageError("names no host", _known(hosts))
    # Colons of an IPv6 address name no GPU, so `::1,::2` is a plain list.
    is_deepspeed = "@" in text or any(":" in element and ipv6_name(element) is None for element in elements)
    parts = text.split("@") if is_deepspeed else elements
    choice: _Choice = {}
    known = {_key(host.name) for host in hosts}
    for part in parts:
        names, gpus = _parse_part(part.strip(" \t\r\n"))
        for name in names:
            if _key(name) in choice:
                raise UsageError(f"host {shown(name)} is named twice")
            if _key(name) not in known:
                raise _unknown_host(name, hosts, has_at="@" in text)
            choice[_key(name)] = gpus
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
        if not _NUMBER.fullmatch(item.strip(" \t")):
            hint = "after ':' stand GPU numbers; join hosts by '@': gpu1:0,1@gpu2:0"
            raise UsageError(f"a GPU in {shown(part)} must be a number, got {shown(item)}", hint)
        if int(item) in gpus:
            raise UsageError(f"GPU {int(item)} stands twice in {shown(part)}")
        gpus.append(int(item))
    return tuple(gpus)


def _include(hosts: tuple[Host, ...], choice: _Choice) -> tuple[Host, ...]:
    kept = [(host, choice[_key(host.name)]) for host in hosts if _key(host.name) in choice]
    return tuple(host if gpus is None else _with_gpus(host, gpus) for host, gpus in kept)


def _exclude(hosts: tuple[Host, ...], choice: _Choice) -> tuple[Host, ...]:
    kept: list[Host] = []
    for host in hosts:
        if _key(host.name) not in choice:
            kept.append(host)
        elif gpus := choice[_key(host.name)]:
            kept.extend(_without_gpus(host, gpus))
    if not kept:
        raise UsageError(f"no host is left of {len(hosts)}", _known(hosts))
    return tuple(kept)


def _with_gpus(host: Host, gpus: tuple[int, ...]) -> Host:
    offered = _offered_gpus(host)
    for gpu in gpus:
        if offered is not None and gpu not in offered:
            hint = f"it has slots={host.slots} ({host.source})"
            raise UsageError(f"host {shown(host.name)} offers no GPU {gpu}", hint)
    return replace(host, gpus=gpus, slots=len(gpus))


def _without_gpus(host: Host, gpus: tuple[int, ...]) -> tuple[Host, ...]:
    offered = _offered_gpus(host)
    if offered is None:
        hint = f"give slots= in a hostfile, or name the others: --include {host.name}:1,2,3"
        raise UsageError(f"how many GPUs host {shown(host.name)} has is not known ({host.source})", hint)
    _with_gpus(host, gpus)
    rest = tuple(gpu for gpu in offered if gpu not in gpus)
    return (_with_gpus(host, rest),) if rest else ()


def _offered_gpus(host: Host) -> Sequence[int] | None:
    if host.gpus is not None:
        return host.gpus
    return None if host.slots is None else range(host.slots)


def _unknown_host(name: str, hosts: tuple[Host, ...], *, has_at: bool) -> UsageError:
    near = get_close_matches(name, [host.name for host in hosts], 1)
    hint = f"did you mean {near[0]!r}?" if near else _known(hosts)
    if has_at:
        hint = "; ".join(filter(None, (hint, "'@' joins hosts here, names carry no user")))
    return UsageError(f"no host {shown(name)} in the list", hint)


def _known(hosts: tuple[Host, ...]) -> str:
    folded = fold_names(host.name for host in hosts)
    return f"the hosts are {folded}" if len(folded) <= _LISTED_LENGTH else ""
