"""Read hosts from a list or a hostfile, in the order written; every error has the file, the line and the value.

Hostfiles are those of other launchers, and `launch`'s own. A line means the same whichever tool it was written for; a
line that two tools read differently is an error. So there is one grammar:

    [user@]NAME-or-range[:N] key=value ... [spare]  one host or range with settings,
    [user@]NAME-or-range[:N] [, ][user@]NAME ...    or one or more without, separated by commas or spaces

Ambiguous text is an error: `host 8`, and N where neither `MOST_SLOTS` nor the ports that anybody uses for SSH say what
it is: `host:8` means slots, as for mpirun, `host:2222` the SSH port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.errors import HostfileError, UsageError
from launcher.hosts.entering import parse_entering
from launcher.hosts.host import MAX_SLOTS, SSH_PORT, Host
from launcher.hosts.ranges import MAX_HOSTS, NUMBER, expand_names, ipv6_name, name_key, shown, split_list, split_number
from launcher.wording import nearest

MAX_FILE_BYTES = 8 << 20  # 128 bytes for each of MAX_HOSTS; /dev/zero has no end
MAX_LINE_LENGTH = 65536  # enough for a Slurm list of several thousand names

_COMMENT = re.compile(r"#|(?:^|(?<=[ \t]))//")  # Open MPI's second kind of comment follows a space
_INCLUDE = re.compile(r"#include[ \t]+[^ \t]+[ \t]*")
MAX_PORT = 65535
MOST_SLOTS = 64  # after a colon
FIRST_PORT = 1024  # after a colon; below, other services have theirs

# Open MPI's other spellings of these settings; the source is hostfile_lex.l of PRRTE.
_COUNTS = ("slots", "cpu", "count")
_MAXIMA = [word for one in _COUNTS for word in (f"max_{one}", f"max-{one}", f"{one}_max", f"{one}-max")]
SPELLINGS = {
    **dict.fromkeys(("cpu", "count"), "slots"),
    **dict.fromkeys(("username", "user-name", "user_name"), "user"),
    **dict.fromkeys(_MAXIMA, "max_slots"),
}
_KEYS = ("slots", "user", "port", "addr", "enter")
_KEYS_FIX = "use slots=, user=, port=, addr= or enter="
_SPARE = "spare"  # the only setting without a value
# A name, or a setting, whose value may be in quotes.
# Spaces before a `=` are tried from their first one alone, or a line of spaces would take seconds.
_WORD = re.compile(r"""(?:[^ \t"'=]|"[^"]*"|'[^']*'|(?:(?<![ \t])[ \t]+)?=[ \t]*)+""")
_QUOTED = re.compile(r"""(["'])((?:(?!\1).)*)\1""")
_MARKED = re.compile(rf"[^, \t]+[ \t]+{_SPARE}")
_RANGE = re.compile(r"\[[^\[\]:]*\]")  # an IPv6 address has brackets and colons
# A line of an Ansible inventory, whose sections could be read as ranges.
_INVENTORY = re.compile(r"\[[A-Za-z_][\w.:-]*\]|.*[ \t]ansible_\w+[ \t]*=.*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class HostfileEntry:
    """One host or range as written."""

    text: str
    names: tuple[str, ...]
    said: Host  # the settings of each of them, without its name


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


# ---- one line --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Setting:
    key: str  # as `launch` spells it
    value: str
    text: str  # as it was written


def parse_line(text: str) -> Iterator[HostfileEntry]:
    """Yield the hosts of a line without its comment; raise UsageError if it is wrong or ambiguous."""
    if _INVENTORY.fullmatch(text):
        fix = "list its hosts, one per line: ansible all -i FILE --list-hosts"
        raise UsageError(f"{shown(text)} is a line of an Ansible inventory, not of a hostfile", fix)
    if "=" in text or _MARKED.fullmatch(text):
        target, *words = _split_words(text)
        yield _parse_host(target, [_split_setting(word) for word in words])
    else:
        yield from parse_list(text)


def parse_list(content: str, *, are_logins: bool = False) -> Iterator[HostfileEntry]:
    """Yield the hosts of a list without settings, one at a time: a line can name more than memory holds.

    are_logins: they run no ranks, so the N of `host:N` is a port.
    """
    targets = split_list(content)
    _refuse_numbers(content, targets)
    for target in targets:
        yield _parse_host(target, (), is_login=are_logins)


def _split_words(text: str) -> list[str]:
    """Return the words of a line, each setting without spaces around its `=`."""
    if _WORD.sub("", text).strip(" \t"):
        raise UsageError(f"{shown(text)} has a quote that isn't closed", "close it")
    parts = (word.partition("=") for word in _WORD.findall(text))
    return [key.rstrip(" \t") + equals + value.lstrip(" \t") for key, equals, value in parts]


def _parse_host(target: str, pairs: Sequence[tuple[str, str]], *, is_login: bool = False) -> HostfileEntry:
    names, settings = _parse_target(target, is_login=is_login)
    settings += [_read_setting(key, value) for key, value in pairs]
    by_key: dict[str, _Setting] = {}
    for setting in settings:
        first = by_key.setdefault(setting.key, setting)
        if first is not setting:
            raise UsageError(f"{setting.key} is given twice, by {shown(first.text)} and by {shown(setting.text)}")
    values = {key: setting.value for key, setting in by_key.items()}
    if "addr" in values and len(names) > 1:
        fix = "give each host its own line with its own addr="
        raise UsageError(f"addr= is the address of one host, but {shown(target)} names {len(names)}", fix)
    said = Host(
        "",
        user=_parse_user(values.get("user")),
        port=_parse_bounded("port", values.get("port"), MAX_PORT),
        address=_parse_address(values.get("addr")),
        slots=_parse_slots(values.get("slots"), values.get("max_slots")),
        enter=_parse_enter(values.get("enter")),
        is_spare=_parse_spare(values.get(_SPARE)),
    )
    return HostfileEntry(target, names, said)


def _parse_target(target: str, *, is_login: bool) -> tuple[tuple[str, ...], list[_Setting]]:
    user, at, rest = target.rpartition("@")
    if at and not user:
        raise UsageError(f"{shown(target)} is a ClusterShell group", f"list its hosts: nodeset -e {shown(target)}")
    pattern, number = split_number(rest)
    settings = [_Setting("user", user, target)] if at else []
    if number is not None:
        settings.append(_Setting("port" if is_login else _read_colon(target, number), number, target))
    return expand_names(pattern), settings


def _read_colon(target: str, number: str) -> str:
    """Return what the N of `host:N` is; raise UsageError if it may be either."""
    count = int(number[:6])  # nobody means more
    if count == SSH_PORT or count >= FIRST_PORT:
        return "port"
    if count <= MOST_SLOTS:
        return "slots"
    fix = f"in a hostfile, write slots={number} or port={number} after the name"
    raise UsageError(f"{shown(target)} is ambiguous: {number} slots or SSH port {number}?", fix)


def _refuse_numbers(content: str, targets: Sequence[str]) -> None:
    """Raise UsageError for `gpu1 8`, in which 8 is no host: with commas it would be a list."""
    if "," not in _RANGE.sub("", content) and (number := next(filter(NUMBER.fullmatch, targets[1:]), None)):
        text = f"{shown(content)} is ambiguous: is {number} a number of slots, a port or a host?"
        raise UsageError(text, f"write slots={number} or port={number}")


def _split_setting(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if word == _SPARE:
        return _SPARE, "true"
    if not equals:
        fix = f"write one host or range per line; for settings, {_KEYS_FIX}"
        raise UsageError(f"expected key=value, got {shown(word)}", fix)
    return key, value


def _read_setting(spelling: str, value: str) -> _Setting:
    key = SPELLINGS.get(spelling, spelling)
    if key not in (*_KEYS, "max_slots", _SPARE):
        near = nearest(key, _KEYS)
        raise UsageError(f"unknown key {shown(spelling)}", f"write '{near}'" if near else _KEYS_FIX)
    return _Setting(key, value, f"{spelling}={value}")


def _parse_slots(slots: str | None, most: str | None) -> int | None:
    """Return the slots; a maximum alone sets them, as for Open MPI, and slots above the maximum are an error."""
    count, limit = _parse_bounded("slots", slots, MAX_SLOTS), _parse_bounded("max_slots", most, MAX_SLOTS)
    if count is not None and limit is not None and limit < count:
        raise UsageError(f"max_slots={limit} is less than slots={count}", "keep slots= alone, with the number you want")
    return limit if count is None else count


def _parse_spare(value: str | None) -> bool:
    if value not in (None, "true", "false"):
        raise UsageError(f"spare must be true or false, got {shown(str(value))}", f"write {_SPARE} alone")
    return value == "true"


def _parse_bounded(key: str, value: str | None, high: int) -> int | None:
    if value is None:
        return None
    if not NUMBER.fullmatch(value):
        raise UsageError(f"{key} must be a number, got {shown(value)}")
    if not 1 <= int(value) <= high:
        raise UsageError(f"{key} must be between 1 and {high}, got {value}")
    return int(value)


def _parse_address(value: str | None) -> str | None:
    if value is None:
        return None
    import ipaddress  # needs 3 ms, and few lines have addr=

    try:
        return ipv6_name(value) or str(ipaddress.IPv4Address(value))
    except ValueError:
        raise UsageError(f"addr must be an IP address, got {shown(value)}", "write it as in addr=10.0.0.1") from None


def _parse_enter(value: str | None) -> str:
    if value is None:
        return ""
    quoted = _QUOTED.fullmatch(value)
    try:
        return parse_entering(quoted[2] if quoted is not None else value)
    except UsageError as error:
        raise UsageError(f"enter: {error.message}", error.fix) from None


def _parse_user(user: str | None) -> str | None:
    if user is None or _USER.fullmatch(user):
        return user
    fix = "use letters, digits, '.', '_' and '-', or set any user in ssh_config"
    raise UsageError(f"{shown(user)} isn't a user name", fix)
