"""Read lists and ranges of host names such as `gpu[1-4],gpu7`, check the names, and fold them again for display."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable

from launcher.errors import UsageError

MAX_HOSTS = 65536
MAX_NAME_LENGTH = 253  # of a DNS name, RFC 1035
NAME_RULE = "use letters, digits, '.', '_' and '-', and begin with a letter, a digit or '_'"
NUMBER = re.compile(r"[0-9]{1,18}")  # int() of text refuses 4,300 digits with an exception of its own

_SHOWN_LENGTH = 100
_ELEMENT_OR_COMMA = re.compile(r"(?:[^, \t\r\n\[]|\[[^\]]*(?:\]|\Z))+|,")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_SPAN = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_HOST_AND_NUMBER = re.compile(r"(.+\]|[^:]+):([0-9]{1,18})")
_ZONE = re.compile(r"[A-Za-z0-9._-]*")
_FOREIGN_CHARACTER = re.compile(r"[^A-Za-z0-9._-]")
_FOLDABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_MISPLACED = {
    ",": "write one host or range per line",
    "/": "pass a file of hosts with --hostfile",
    "=": "write settings such as slots=8 after the name, in a hostfile",
    # ClusterShell's operators, and how Open MPI leaves a host out.
    **dict.fromkeys("!&^", "list the hosts to use, or leave some out with --exclude"),
}


def shown(text: str) -> str:
    """Quote text from outside for a message: cut to 100 characters, and control characters escaped."""
    return repr(text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "...")


def split_list(text: str) -> tuple[str, ...]:
    """Split at commas and whitespace outside brackets; raise UsageError for an empty element."""
    elements: list[str] = []
    after_comma = True
    for token in _ELEMENT_OR_COMMA.findall(text):
        if token != ",":
            elements.append(token)
        elif after_comma:
            raise _empty_name(text)
        after_comma = token == ","
    if elements and after_comma:
        raise _empty_name(text)
    return tuple(elements)


def expand_ranges(pattern: str) -> tuple[str, ...]:
    """Expand brackets in the order written, the last one varying fastest; raise UsageError for too many names."""
    pieces = _BRACKET.split(pattern)
    literals, brackets = pieces[::2], pieces[1::2]
    if any("[" in literal or "]" in literal for literal in literals):
        raise UsageError(f"{shown(pattern)} has an unmatched bracket", "write ranges as gpu[1-4,7]")
    spans = [[_parse_span(item, pattern) for item in inside.split(",")] for inside in brackets]
    _refuse_oversize(pattern, literals, spans)
    columns = [[literals[0]]]
    for column, literal in zip(spans, literals[1:], strict=True):
        columns.append([f"{number:0{width}d}" for low, high, width in column for number in range(low, high + 1)])
        columns.append([literal])
    return tuple("".join(parts) for parts in itertools.product(*columns))


def expand_names(pattern: str) -> tuple[str, ...]:
    """Read one list element, a name, a range or an IPv6 address with or without brackets, and check it."""
    if (address := ipv6_name(pattern)) is not None:
        return (address,)
    if pattern.count(":") > 1:
        raise UsageError(f"{shown(pattern)} isn't an IPv6 address", "write addresses as 2001:db8::1 or [2001:db8::1]")
    names = expand_ranges(pattern)
    for name in names:
        _check_name(name)
    return names


def split_number(text: str) -> tuple[str, str | None]:
    """Split `host:8` into the host and its number, or None; an IPv6 address has a number only after its brackets."""
    match = None if ipv6_name(text) is not None else _HOST_AND_NUMBER.fullmatch(text)
    return (match[1], match[2]) if match else (text, None)


def name_key(name: str) -> str:
    """Return a key that is the same for all spellings of a host: DNS and ssh ignore case.

    A host that is listed twice would become two nodes that share its GPUs.
    """
    return name.lower()


def ipv6_name(text: str) -> str | None:
    """Return an IPv6 address as ssh takes it, without brackets, or None for any other text."""
    if text.count(":") < 2:
        return None
    import ipaddress  # needs 3 ms, and few hosts are named so

    inner = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
    try:
        ipaddress.IPv6Address(inner)
    except ValueError:
        return None
    # ipaddress takes any text as a zone, and this one goes to ssh.
    return inner if _ZONE.fullmatch(inner.partition("%")[2]) else None


def fold_names(names: Iterable[str]) -> str:
    """Fold names for display, sorted, as gpu[1-4]; names that ClusterShell would misread are only listed."""
    listed = list(names)
    if len(listed) == 1:
        return listed[0]
    # '@' and '*' would query group sources, which can run commands; '!', '&' and '^' are operators.
    if not all(_FOLDABLE.fullmatch(name) for name in listed):
        return ",".join(listed)
    # ClusterShell takes 30 ms to import, and most commands fold nothing.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(listed, resolver=RESOLVER_NOGROUP))


def fold_numbers(numbers: Iterable[int]) -> str:
    """Fold numbers for display, in their order, as 0-3,6."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return ",".join(f"{low}-{high}" if low != high else str(low) for low, high in runs)


def _empty_name(text: str) -> UsageError:
    return UsageError(f"empty name in {shown(text)}", "remove the extra comma")


def _parse_span(item: str, pattern: str) -> tuple[int, int, int]:
    """Return both ends and their width, 0 if they are not padded: Slurm prints gpu01 to gpu100 as gpu[01-100]."""
    match = _SPAN.fullmatch(item)
    low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
    has_one_width = len(low) == len(high) or (len(low) < len(high) and high[0] != "0")  # what 1-04 means, nobody knows
    if int(low) > int(high) or not has_one_width:
        fix = "write ranges as gpu[1-4,7] or gpu[01-10], without spaces, the lower number first"
        raise UsageError(f"{shown(item)} in {shown(pattern)} is neither a number nor a range", fix)
    return int(low), int(high), len(low) if "0" in (low[0], high[0]) else 0


def _refuse_oversize(pattern: str, literals: list[str], brackets: list[list[tuple[int, int, int]]]) -> None:
    longest = sum(map(len, literals))
    longest += sum(max(max(width, len(str(high))) for _, high, width in spans) for spans in brackets)
    if longest > MAX_NAME_LENGTH:
        raise UsageError(f"{shown(pattern)} gives a name of {longest} characters; the limit is {MAX_NAME_LENGTH}")
    count = math.prod(sum(high - low + 1 for low, high, _ in spans) for spans in brackets)
    if count > MAX_HOSTS:
        raise UsageError(f"{shown(pattern)} gives {count} names; the limit is {MAX_HOSTS}")


def _check_name(name: str) -> None:
    if not name:
        raise UsageError("the host name is empty", NAME_RULE)
    if name[0] in "-.":
        raise UsageError(f"host name {shown(name)} begins with {shown(name[0])}", NAME_RULE)
    if foreign := _FOREIGN_CHARACTER.search(name):
        fix = _MISPLACED.get(foreign[0], NAME_RULE)
        raise UsageError(f"host name {shown(name)} contains {shown(foreign[0])}", fix)
