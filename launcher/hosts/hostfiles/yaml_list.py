"""Read a YAML list of hosts: each item is a hostfile line, or a mapping with name, slots, user, port and addr.

It reads PyYAML's events, not its values: events have line numbers, `022` stays as written, no object is constructed,
and deeper nesting ends the reading where it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from launcher.errors import HostfileError
from launcher.hosts.hostfiles.lines import Item
from launcher.hosts.ranges import shown

# Constructs whose missing end is noticed later, maybe much later: the line to correct is where they begin.
_OPEN = ("while parsing a flow", "while scanning a simple key", "while scanning a quoted scalar")
_FIX = "write a list: '- node1', or '- name: node1' with 'slots: 8' below it"


def is_yaml(lines: Sequence[str]) -> bool:
    """Tell whether the first line with content begins a YAML list: with `- ` or `---`, as no host name does."""
    content = (line.strip(" \t") for line in lines)
    first = next((line for line in content if line and not line.startswith("#")), "")
    return first.startswith(("- ", "---")) or first == "-"


def read_items(text: str, source: str) -> Iterator[Item]:
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
    return HostfileError(source, _line(event), "expected one list of hosts", _FIX)


def _read_mapping(yaml: Any, events: Iterator[Any], line: int, source: str) -> Item:
    words: list[str] = []
    for event in events:
        if isinstance(event, yaml.MappingEndEvent):
            break
        if not isinstance(event, yaml.ScalarEvent):
            fix = "use slots, user, port and addr, each with one value"
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
