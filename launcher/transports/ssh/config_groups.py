"""Groups of hosts for which `ssh -G` gives the same answer but for HostName, so that it runs for one of each group.

Hosts get the same answer if they match the same patterns in all Host and Match lines, unless an option or a
`Match exec` has a token such as %h, or names are looked up (CanonicalizeHostname).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.transports.ssh.config_blocks import (
    expand_hostname,
    is_plain_hostname,
    matches_any,
    matches_host,
    parse_match,
)
from launcher.transports.ssh.config_lines import Line, every_line

Group = tuple[bool, ...]

# Criteria whose answer doesn't depend on the host's name; `host` and `originalhost` are compared, `exec` is looked at.
_SAME_FOR_ALL = ("all", "canonical", "final", "user", "localuser", "localnetwork", "tagged", "version", "sessiontype")
_COMPARED = {"host", "originalhost"}
# `ssh -G` prints them unchanged, and paramiko replaces their tokens for each host.
_UNEXPANDED = ("identityfile", "certificatefile", "proxycommand", "knownhostscommand", "globalknownhostsfile")


class Groups:
    """The groups into which the lines of all files divide hosts."""

    def __init__(self, files: Sequence[Sequence[Line]]) -> None:
        self._lines = tuple(every_line(files))
        self._is_alike = all(map(_is_alike, self._lines))
        self._hostnames = {"%h", *(line.words[0] for line in self._lines if line.keyword == "hostname")}

    def find(self, name: str) -> Group | None:
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


def _is_alike(line: Line) -> bool:
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
