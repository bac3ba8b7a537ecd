"""What ssh_config sets for a host: its Host and Match blocks, and the options in those that apply.

`Match exec`, `canonical`, `final` and anything else that depends on more than the files is left to `ssh -G`. Hosts for
which that gives the same answer but for HostName form a group, so that it runs for one of each group.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from launcher.hosts.host import Host
from launcher.transports.ssh.config_lines import OPTIONS, ConfigLine, LeftToSsh, WrongLine, every_line
from launcher.transports.ssh.known_hosts import matches
from launcher.transports.ssh.openssh_config import read_seconds, split_jump

Options = dict[str, "str | list[str]"]  # by their names in lower case; those of COLLECTED as a list

COLLECTED = {"identityfile", "certificatefile"}  # every value counts, not the first alone

_MATCH_WORD = re.compile(r"""("[^"\\]*"|[^\s"'=\\]+)(?:=|[ \t]+|$)""")
_WITHOUT_ARGUMENT = ("all", "canonical", "final")
_FLAG = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
_SWITCH = {"yes": "true", "true": "true", "no": "false", "false": "false"}
# What `ssh -G` prints for each value that an option may have.
_CHOICES = {
    "identitiesonly": _FLAG,
    "gssapiauthentication": _FLAG,
    "pubkeyauthentication": {**_SWITCH, "unbound": "unbound", "host-bound": "host-bound"},
    "stricthostkeychecking": {**_SWITCH, "off": "false", "ask": "ask", "accept-new": "accept-new"},
}
_KNOWN_HOSTS = ("userknownhostsfile", "globalknownhostsfile")
# What launcher.transports.ssh.known_hosts_paths expands in a path; and in other values, what every OpenSSH expands.
_PATH = re.compile(r"(?:[^%$]|\$(?!\{)|%[%hknprilLdu])*")
_HOSTNAME = re.compile(r"(?:[^%]|%[%h])*")
_JUMPS = re.compile(r"""[^\s"'\\\[\]/#,]+(?:,[^\s"'\\\[\]/#,]+)*""")
_MAX_PORT = 65535
_NONE = "none"
_ASK = "install openssh-client, so that `launch` can run `ssh -G`"

HostGroup = tuple[bool, ...]  # of hosts for which `ssh -G` gives the same answer
# Criteria whose answer doesn't depend on the host's name; `host` and `originalhost` are compared, `exec` is looked at.
_SAME_FOR_ALL = ("all", "canonical", "final", "user", "localuser", "localnetwork", "tagged", "version", "sessiontype")
_COMPARED = {"host", "originalhost"}
# `ssh -G` prints them unchanged; their tokens are replaced later, for each host.
_UNEXPANDED = ("identityfile", "certificatefile", "proxycommand", "knownhostscommand", "globalknownhostsfile")


@dataclass(frozen=True, slots=True)
class Criterion:
    """One condition of a Match line, such as `!user root`."""

    name: str
    argument: str
    is_negated: bool

    @property
    def is_empty(self) -> bool:
        """Tell whether the argument is missing, as in `user ""`."""
        return not self.argument and self.name not in _WITHOUT_ARGUMENT


class Blocks:
    """The lines of all files, in the order in which ssh reads them."""

    def __init__(self, files: Sequence[Sequence[ConfigLine]]) -> None:
        self.files = files
        self._left = next(filter(None, map(_find_fault, every_line(files))), None)

    def read(self, host: Host) -> Options:
        """Return the options for a host, always with its hostname; raise LeftToSsh.

        A user and a port that are given with the host override all files, like ssh's own `-l` and `-p`.
        """
        if self._left is not None:
            raise LeftToSsh(self._left.message, self._left.fix)
        named = {"user": host.user, "port": host.port}
        reading = _Reading(host.name, {key: str(value) for key, value in named.items() if value is not None})
        for file in self.files:
            reading.walk(file, is_active=True)
        proxy = [reading.proxy] if reading.proxy is not None and reading.proxy[1] != _NONE else []
        return {**reading.options, **dict(proxy), "hostname": reading.hostname.lower()}


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Tell whether a name matches one of these patterns, and none of those that begin with `!`."""
    has_matched = False
    for pattern in patterns:
        if matches(name, pattern.removeprefix("!")):
            if pattern.startswith("!"):
                return False
            has_matched = True
    return has_matched


def matches_host(pattern_list: str, name: str) -> bool:
    """Tell whether a host matches the patterns of `Match host` and `Match originalhost`."""
    return matches_any(pattern_list.lower().split(","), name.lower())


def is_plain_hostname(value: str) -> bool:
    """Tell whether a HostName has only tokens that every version of OpenSSH accepts there."""
    return _HOSTNAME.fullmatch(value) is not None


def expand_hostname(value: str, name: str) -> str:
    """Return a HostName with its tokens replaced."""
    return re.sub("%[%h]", lambda found: name if found[0] == "%h" else "%", value)


@cache
def parse_match(value: str) -> tuple[Criterion, ...]:
    """Return the conditions of a Match line; none if versions of OpenSSH read it differently."""
    words = []
    position = 0
    while position < len(value) and value[position] != "#":
        found = _MATCH_WORD.match(value, position)
        if found is None:
            return ()
        words.append(found[1].strip('"'))
        position = found.end()
    criteria = []
    rest = iter(words)
    for word in rest:
        name = word.removeprefix("!").lower()
        argument = "" if name in _WITHOUT_ARGUMENT else next(rest, None)
        if argument is None:
            return ()
        criteria.append(Criterion(name, argument, word.startswith("!")))
    return tuple(criteria)


@dataclass(slots=True)
class _Reading:
    """What has been read for one host so far; the first value of an option counts."""

    name: str
    options: Options = field(default_factory=dict)
    proxy: tuple[str, str] | None = None  # ProxyJump and ProxyCommand are one option: the first of them counts

    @property
    def hostname(self) -> str:
        """Return the HostName if one was set, or else the name."""
        return expand_hostname(str(self.options.get("hostname", "%h")), self.name)

    def walk(self, lines: Iterable[ConfigLine], *, is_active: bool) -> None:
        """Read the lines of a file. A block ends with its file, so an Include doesn't affect the lines after it."""
        for line in lines:
            if line.keyword == "host":
                is_active = matches_any(line.words, self.name)
            elif line.keyword == "match":
                is_active = self._matches(line)
            elif is_active and line.keyword == "include":
                for file in line.files:
                    self.walk(file, is_active=True)
            elif is_active:
                self._take(line)

    def _matches(self, line: ConfigLine) -> bool:
        criteria = parse_match(line.value)
        answers: dict[str, Callable[[str], bool]] = {
            "all": lambda _: True,
            "host": lambda patterns: matches_host(patterns, self.hostname),
            "originalhost": lambda patterns: matches_host(patterns, self.name),
            "user": lambda patterns: matches_any(patterns.split(","), str(self.options.get("user") or _own_user())),
            "localuser": lambda patterns: matches_any(patterns.split(","), _own_user()),
        }
        if any(each.name in answers and answers[each.name](each.argument) == each.is_negated for each in criteria):
            return False
        if not criteria or any(each.name not in answers for each in criteria):
            raise LeftToSsh(f"{line.place}: only ssh can tell whether `Match {line.value}` applies", _ASK)
        return True

    def _take(self, line: ConfigLine) -> None:
        """Take the option of a line that applies, if it isn't set yet."""
        options = self.options
        if line.keyword in ("proxyjump", "proxycommand"):
            if self.proxy is None:
                self.proxy = line.keyword, _READERS[line.keyword](line)
            elif (*self.proxy, line.keyword) == ("proxyjump", _NONE, "proxycommand"):
                # According to the manual it is ignored; OpenSSH 9.2 uses it.
                raise LeftToSsh(f"{line.place}: only ssh can tell whether it counts after `ProxyJump none`", _ASK)
        elif line.keyword in COLLECTED:
            paths = options.setdefault(line.keyword, [])
            assert isinstance(paths, list)
            if (path := _read_word(line)) not in paths:
                paths.append(path)
        elif line.keyword not in options:
            value = _READERS.get(line.keyword, _read_word)(line)
            if (line.keyword, value) != ("connecttimeout", _NONE):  # which leaves it unset
                options[line.keyword] = value


def _own_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        text = f"passwd has no entry for user id {os.getuid()}, whose name Match needs"
        raise LeftToSsh(text, "add an entry") from None


def _find_fault(line: ConfigLine) -> LeftToSsh | None:
    """Return why a line leaves all hosts to ssh, even those to which its block doesn't apply; None if it doesn't."""
    if line.keyword == "match":
        criteria = parse_match(line.value)
        if any(each.is_empty for each in criteria) or any(each.name == "all" for each in criteria[:-1]):
            return _wrong(line)
        if any(each.name == "final" for each in criteria) or (not criteria and "final" in line.value.lower()):
            # ssh reads its files a second time then, for the HostName that it has found.
            return LeftToSsh(f"{line.place}: only ssh can tell what `Match final` changes", _ASK)
    elif line.keyword in OPTIONS:
        try:
            _READERS.get(line.keyword, _read_word)(line)
        except WrongLine as wrong:
            return wrong
        except LeftToSsh:
            return None
    return None


def _wrong(line: ConfigLine) -> WrongLine:
    return WrongLine(f"{line.place}: {line.keyword} can't be {line.value!r}", "correct that line")


def _unexpanded(line: ConfigLine) -> LeftToSsh:
    return LeftToSsh(f"{line.place}: {line.keyword}: only ssh can expand {line.value}", _ASK)


def _read_word(line: ConfigLine) -> str:
    word, *more = line.words
    if more:
        raise _wrong(line)
    if "%" in word and line.keyword in ("user", "hostkeyalias", "identityagent"):
        raise _unexpanded(line)
    return word


def _read_choice(line: ConfigLine) -> str:
    value = _CHOICES[line.keyword].get(_read_word(line).lower())
    if value is None:
        raise _wrong(line)
    return value


def _read_hostname(line: ConfigLine) -> str:
    if not is_plain_hostname(word := _read_word(line)):
        raise _unexpanded(line)
    return word


def _read_port(line: ConfigLine) -> str:
    word = _read_word(line)
    if not _is_port(word):
        raise _wrong(line)
    return str(int(word))


def _is_port(word: str) -> bool:
    return word.isascii() and word.isdecimal() and 0 < int(word) <= _MAX_PORT


def _read_time(line: ConfigLine) -> str:
    word = _read_word(line)
    seconds = read_seconds(word)
    if seconds is None and word != _NONE:
        raise _wrong(line)
    return word if seconds is None else str(int(seconds))


def _read_paths(line: ConfigLine) -> str:
    """Return the paths as launcher.transports.ssh.known_hosts_paths takes them: in quotes if they contain spaces."""
    if len(line.words) > 1 and _NONE in map(str.lower, line.words):
        raise _wrong(line)
    if line.keyword == "userknownhostsfile" and not all(map(_PATH.fullmatch, line.words)):
        raise _unexpanded(line)
    return " ".join(f'"{word}"' if " " in word else word for word in line.words)


def _read_command(line: ConfigLine) -> str:
    value = line.value.lstrip(" \t=")
    return _NONE if value.lower() == _NONE else value


def _read_jumps(line: ConfigLine) -> str:
    value, comment, _ = line.value.lstrip(" \t=").partition("#")
    value = value.strip()
    is_none = value.lower() == _NONE
    if not _JUMPS.fullmatch(value) or (is_none and comment):  # for OpenSSH 9.2 that is a host called none
        raise LeftToSsh(f"{line.place}: proxyjump: only ssh can read {line.value}", _ASK)
    if not all(_is_port(split_jump(jump)[2] or "22") for jump in value.split(",")):
        raise _wrong(line)
    return _NONE if is_none else value


def _read_canonical(line: ConfigLine) -> str:
    if _read_word(line).lower() not in ("no", "false"):
        raise LeftToSsh(f"{line.place}: only ssh can look up canonical names", _ASK)
    return "no"


_READERS: dict[str, Callable[[ConfigLine], str]] = {
    **dict.fromkeys(_CHOICES, _read_choice),
    **dict.fromkeys(_KNOWN_HOSTS, _read_paths),
    "hostname": _read_hostname,
    "port": _read_port,
    "proxyjump": _read_jumps,
    "proxycommand": _read_command,
    "connecttimeout": _read_time,
    "knownhostscommand": _read_command,
    "canonicalizehostname": _read_canonical,
}


class Groups:
    """The groups into which the lines of all files divide hosts.

    Hosts get the same answer if they match the same patterns in all Host and Match lines, unless an option or a
    `Match exec` has a token such as %h, or names are looked up (CanonicalizeHostname).
    """

    def __init__(self, files: Sequence[Sequence[ConfigLine]]) -> None:
        self._lines = tuple(every_line(files))
        self._is_alike = all(map(_is_alike, self._lines))
        self._hostnames = {"%h", *(line.words[0] for line in self._lines if line.keyword == "hostname")}

    def find(self, name: str) -> HostGroup | None:
        """Return the group of a host; None if ssh must be run for this host."""
        return tuple(self._compare(name)) if self._is_alike else None

    def find_hostname(self, name: str, asked: str, its_hostname: str) -> str | None:
        """Return the HostName of a host, from ssh's answer for another one of its group; None if that leaves doubt."""
        values = [value for value in self._hostnames if expand_hostname(value, asked).lower() == its_hostname]
        found = {expand_hostname(value, name).lower() for value in values}
        if len(found) != 1:
            return None
        hostname = found.pop()
        # With `Match final`, and in `Match host`, blocks apply to HostName as well.
        return hostname if self.find(hostname) == self.find(its_hostname) else None

    def _compare(self, name: str) -> Iterator[bool]:
        for line in self._lines:
            if line.keyword == "host":
                yield matches_any(line.words, name)
            elif line.keyword == "match":
                for each in parse_match(line.value):
                    if each.name in _COMPARED:
                        yield matches_host(each.argument, name)


def _is_alike(line: ConfigLine) -> bool:
    """Tell whether a line has the same effect on all hosts that match the same patterns."""
    if line.keyword == "match":
        criteria = parse_match(line.value)
        return bool(criteria) and all(
            "%" not in each.argument if each.name == "exec" else each.name in {*_SAME_FOR_ALL, *_COMPARED}
            for each in criteria
        )
    if line.keyword == "canonicalizehostname":
        return line.words[0].lower() in ("no", "false")
    if line.keyword == "hostname":
        return is_plain_hostname(line.words[0])
    return line.keyword in _UNEXPANDED or "%" not in line.value
