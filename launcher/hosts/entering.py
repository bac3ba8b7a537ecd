"""The command that starts a program inside of a container on a host, or as another user: `docker exec -i train`.

It stands before the command line of the loader, so everything of `launch` on that host runs there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.hosts.ranges import shown

_EXAMPLE = "write it as in 'docker exec -i train'"
_RUNTIMES = ("docker", "podman", "nerdctl")


def parse_entering(text: str) -> str:
    """Return the command as a shell's words; raise UsageError if the loader could not speak through it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{shown(text)} can't be read: {error}", _EXAMPLE) from None
    if not words or not text.isprintable():
        raise UsageError(f"must be a command, got {shown(text)}", _EXAMPLE)
    flags = _read_flags(words)
    if flags is not None and "t" in flags:
        raise UsageError(f"{shown(text)} asks for a terminal, and launch has none there", "leave out -t")
    if flags is not None and "i" not in flags:
        raise UsageError(f"{shown(text)} closes stdin, over which launch speaks to its helper", "add -i after exec")
    return shlex.join(words)


def _read_flags(words: Sequence[str]) -> set[str] | None:
    """Return the switches of `docker exec`, as `i` and `t`; None if it is another command."""
    names = [word.rpartition("/")[2] for word in words]
    place = next((index for index, name in enumerate(names) if name in _RUNTIMES), len(words))
    while place + 1 < len(words) and words[place + 1].startswith("-"):  # such as --host=ADDRESS
        place += 1
    if words[place + 1 : place + 2] != ["exec"]:
        return None
    rest = words[place + 2 :]
    found = {letter for word in rest if re.fullmatch("-[A-Za-z]+", word) for letter in word[1:]}
    return found | {name[2] for name in ("--interactive", "--tty") if name in rest or f"{name}=true" in rest}


def already_inside(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts as an agent starts processes there: it runs inside itself."""
    return tuple(replace(host, enter="") for host in hosts)
