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
_SHORT = re.compile(r"-[ditu]+")  # short options of `docker exec`, perhaps several in one word


def parse_entering(text: str) -> str:
    """Return the command as a shell's words; raise UsageError if the loader could not speak through it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{shown(text)} can't be read: {error}", _EXAMPLE) from None
    if not words or not text.isprintable():
        raise UsageError(f"must be a command, got {shown(text)}", _EXAMPLE)
    if {"exec", "run"}.isdisjoint(words) or not any(word.rpartition("/")[2] in _RUNTIMES for word in words[:4]):
        return shlex.join(words)
    flags = "".join(word for word in words if _SHORT.fullmatch(word))
    if "t" in flags or "--tty" in words:
        raise UsageError(f"{shown(text)} asks for a terminal, and launch has none there", "write -i instead of -it")
    if "i" not in flags and "--interactive" not in words:
        raise UsageError(f"{shown(text)} closes stdin, over which launch speaks to its helper", "add -i")
    return shlex.join(words)


def already_inside(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts as an agent starts processes there: it runs inside itself."""
    return tuple(replace(host, enter="") for host in hosts)
