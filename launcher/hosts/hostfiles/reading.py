"""Read hosts from a list or a hostfile, in the order written; every error has the file, the line and the value.

A hostfile may be a YAML list, each item of which is a line or a mapping with name, slots, user, port, addr and enter.
PyYAML's events are read, not its values: events have line numbers, `022` stays as written, no object is constructed,
and deeper nesting ends the reading where it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.errors import HostfileError, UsageError
from launcher.hosts.host import Host
from launcher.hosts.hostfiles.lines import HostfileEntry, Item, parse_item, parse_list
from launcher.hosts.ranges import MAX_HOSTS, name_key, shown

MAX_FILE_BYTES = 8 << 20  # 128 bytes for each of MAX_HOSTS; /dev/zero has no end
MAX_LINE_LENGTH = 65536  # enough for a Slurm list of several thousand names

_COMMENT = re.compile(r"#|(?:^|(?<=[ \t]))//")  # Open MPI's second kind of comment follows a space
_INCLUDE = re.compile(r"#include[ \t]+[^ \t]+[ \t]*")

# A list, in either style, or a mapping, which is refused.
_YAML_START = re.compile(r"-(?: |$)|---|[{]|\[[ \t]*(?:$|[\"'{])|\[[A-Za-z_][^\]]*,|[\w.-]+:(?:[ \t]+[\[{].*)?$")

# Constructs whose missing end is noticed later, maybe much later: the line to correct is where they begin.
_OPEN = ("while parsing a flow", "while scanning a simple key", "while scanning a quoted scalar")
_FIX = "write a list: '- node1', or '- name: node1' with 'slots: 8' below it"


@dataclass(slots=True)
class _Gathered:
    """The hosts read so far, by key: each with its name, settings, source, and the text that named it."""

    named: dict[str, tuple[str, Host, str, str]] = field(default_factory=dict)

    def add(self, entry: HostfileEntry, source: str, words: str) -> None:
        if len(self.named) + len(entry.names) > MAX_HOSTS:
            raise UsageError(f"more than {MAX_HOSTS} hosts")
        for name in entry.names:
            mine = (name, entry.said, source, words)
            first = self.named.setdefault(name_key(name), mine)
            if first is not mine:
                # One line per process, as PBS writes and Open MPI counts them, looks the same as a mistake.
                fix = "list each host once" + (", with slots=N for N processes" if words == source else "")
                raise UsageError(f"host {shown(name)} is named twice, by {first[3]} and by {words}", fix)

    def hosts(self) -> tuple[Host, ...]:
        return tuple(replace(said, name=name, source=source) for name, said, source, _ in self.named.values())


def parse_hosts(text: str, source: str = "--hosts", *, are_logins: bool = False) -> tuple[Host, ...]:
    """Read a list in the format of --hosts (commas or whitespace); raise HostfileError without a line number.

    are_logins: as for parse_list.
    """
    gathered = _Gathered()
    with _located(source, None):
        for entry in parse_list(text, are_logins=are_logins):
            gathered.add(entry, source, shown(entry.text))
        if not gathered.named:
            raise UsageError("names no host", "give at least one, as in node1,node2")
    return gathered.hosts()


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Read a hostfile; raise HostfileError if it is missing or isn't UTF-8 text."""
    source = str(path) if str(path).isprintable() else repr(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise HostfileError(source, None, "no such hostfile", "check the path given to --hostfile") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise HostfileError(source, None, f"can't be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise HostfileError(source, None, f"more than {MAX_FILE_BYTES >> 20} MiB, too large for a hostfile")
    try:
        text = content.decode("utf-8-sig")  # Windows editors put a byte order mark in front
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise HostfileError(source, line, f"byte 0x{byte:02x} is not UTF-8", "save the file as UTF-8") from None
    return parse_hostfile(text, source)


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """Read the text of a hostfile; raise HostfileError with the source and the line."""
    # Not splitlines(): it splits at form feeds and U+2028 too, and the numbers would not be an editor's.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_LENGTH:
            message = f"a line of {len(line)} characters; the limit is {MAX_LINE_LENGTH}"
            raise HostfileError(source, number, message, "write one host or range per line")
    gathered = _Gathered()
    for item in _read_items("\n".join(lines), source) if _is_yaml(lines) else _read_lines(lines, source):
        place = f"{source}:{item.line}"
        with _located(source, item.line):
            for entry in parse_item(item):
                gathered.add(entry, place, place)
    if not gathered.named:
        raise HostfileError(source, None, "names no host", "write one per line, as in: node1 slots=8")
    return gathered.hosts()


def _read_lines(lines: Sequence[str], source: str) -> Iterator[Item]:
    """Yield the lines without comments; raise HostfileError for a line by which pdsh would include another file."""
    for number, line in enumerate(lines, start=1):
        if _INCLUDE.fullmatch(line):
            fix = "list its hosts here; if this is a comment, put a space after '#' (pdsh needs it)"
            raise HostfileError(source, number, f"{shown(line)}: included files are not read", fix)
        if content := _COMMENT.split(line, maxsplit=1)[0].strip(" \t"):
            yield Item(number, content)


@contextmanager
def _located(source: str, line: int | None) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise HostfileError(source, line, error.message, error.fix) from None


def _is_yaml(lines: Sequence[str]) -> bool:
    """Tell whether the first line with content begins YAML, of which JSON is a part, as no host name does."""
    content = (line.strip(" \t") for line in lines)
    first = next((line for line in content if line and not line.startswith("#")), "")
    return _YAML_START.match(first) is not None


def _read_items(text: str, source: str) -> Iterator[Item]:
    """Yield the items; raise HostfileError if the text isn't a YAML list or PyYAML is missing."""
    try:
        import yaml
    except ImportError:
        fix = "run pip install PyYAML, or write one host per line without '- '"
        raise HostfileError(source, None, "a YAML list, but this Python has no PyYAML", fix) from None

    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        yield from _read_document(yaml, events, source)
    except yaml.MarkedYAMLError as error:
        raise HostfileError(source, _line_of(error, text), f"not YAML: {_printable(error.problem)}", _FIX) from None
    except yaml.YAMLError as error:  # a character that YAML doesn't allow; the error has no line
        raise HostfileError(source, None, f"not YAML: {_printable(error)}") from None


def _read_document(yaml: Any, events: Iterator[Any], source: str) -> Iterator[Item]:
    frame = (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.SequenceStartEvent)
    for kind, event in zip(frame, events, strict=False):  # frame first, so that zip takes no event too many
        if not isinstance(event, kind):
            raise _no_host(event, source)
    for event in events:
        if isinstance(event, yaml.SequenceEndEvent):
            break
        if isinstance(event, yaml.MappingStartEvent):
            yield _read_mapping(yaml, events, _line(event), source)
        elif isinstance(event, yaml.ScalarEvent) and event.value.strip():
            yield Item(_line(event), event.value)
        else:
            raise _no_host(event, source)
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            raise _no_host(event, source)


def _line_of(error: Any, text: str) -> int | None:
    """Return the line to correct; for an error at the end of the text, that is its last line."""
    is_open = (error.context or "").startswith(_OPEN) and error.context_mark is not None
    mark = error.context_mark if is_open else error.problem_mark
    return min(int(mark.line) + 1, text.rstrip().count("\n") + 1) if mark is not None else None


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _no_host(event: Any, source: str) -> HostfileError:
    got = ", got a YAML or JSON mapping" if "Mapping" in type(event).__name__ else ""
    return HostfileError(source, _line(event), f"expected one list of hosts{got}", _FIX)


def _read_mapping(yaml: Any, events: Iterator[Any], line: int, source: str) -> Item:
    words: list[str] = []
    for event in events:
        if isinstance(event, yaml.MappingEndEvent):
            break
        if not isinstance(event, yaml.ScalarEvent):
            fix = "use slots, user, port, addr and enter, each with one value"
            raise HostfileError(source, _line(event), "a setting must have one value", fix)
        words.append(event.value)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    names = [value for key, value in pairs if key == "name"]
    if len(names) != 1:
        known = shown(", ".join(words[::2]))
        raise HostfileError(source, line, f"a host must have one name, got the keys {known}", "write '- name: node1'")
    return Item(line, names[0], tuple(pair for pair in pairs if pair[0] != "name"))


def _printable(problem: object) -> str:
    words = " ".join(str(problem).split())
    return words if words.isprintable() and len(words) <= 200 else shown(words)
