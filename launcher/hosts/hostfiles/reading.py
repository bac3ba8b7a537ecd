"""Read hosts from a list or a hostfile, in the order written; every error has the file, the line and the value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.errors import HostfileError, UsageError
from launcher.hosts.host import Host
from launcher.hosts.hostfiles.lines import HostfileEntry, parse_line, parse_list
from launcher.hosts.ranges import MAX_HOSTS, name_key, shown

MAX_FILE_BYTES = 8 << 20  # 128 bytes for each of MAX_HOSTS; /dev/zero has no end
MAX_LINE_LENGTH = 65536  # enough for a Slurm list of several thousand names

_COMMENT = re.compile(r"#|(?:^|(?<=[ \t]))//")  # Open MPI's second kind of comment follows a space
_INCLUDE = re.compile(r"#include[ \t]+[^ \t]+[ \t]*")


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
    for number, line in _read_lines(lines, source):
        place = f"{source}:{number}"
        with _located(source, number):
            for entry in parse_line(line):
                gathered.add(entry, place, place)
    if not gathered.named:
        raise HostfileError(source, None, "names no host", "write one per line, as in: node1 slots=8")
    return gathered.hosts()


def _read_lines(lines: Sequence[str], source: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines, without comments; raise HostfileError where pdsh would include a file."""
    for number, line in enumerate(lines, start=1):
        if _INCLUDE.fullmatch(line):
            fix = "list its hosts here; if this is a comment, put a space after '#' (pdsh needs it)"
            raise HostfileError(source, number, f"{shown(line)}: included files are not read", fix)
        if content := _COMMENT.split(line, maxsplit=1)[0].strip(" \t"):
            yield number, content


@contextmanager
def _located(source: str, line: int | None) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise HostfileError(source, line, error.message, error.fix) from None
