"""Collect the output of each host, to show equal output of several hosts once at the end.

Memory is bounded, whatever hosts print. Of a host that prints more than its share only the first lines are kept, and a
digest of all of it: hosts are folded only if everything was equal, including what was left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.wording import count

MOST_BYTES = 64 << 20  # of all hosts together
_LEAST_BYTES = 16 << 10  # of each, however many there are


class FoldedOutput:
    """The output of one host: all of it, or its first lines and how many more there were."""

    def __init__(self, most_bytes: int) -> None:
        self.left_out = 0  # lines
        self._most_bytes = most_bytes
        self._kept = bytearray()
        self._digest = hashlib.blake2b()

    def add(self, lines: bytes) -> None:
        """Add whole lines."""
        self._digest.update(lines)
        room = 0 if self.left_out else self._most_bytes - len(self._kept)
        end = len(lines) if len(lines) <= room else lines.rfind(b"\n", 0, room) + 1
        self._kept += lines[:end]
        self.left_out += lines.count(b"\n", end)

    def digest(self) -> bytes:
        """Return bytes that are equal only for equal output; empty if there was none."""
        return self._digest.digest() if self._kept or self.left_out else b""

    def text(self) -> bytes:
        """Return the text to show, with a line that says how many were left out."""
        mark = f"launch: {count(self.left_out, 'line')} left out here\n".encode() if self.left_out else b""
        return bytes(self._kept) + mark


@dataclass(frozen=True, slots=True)
class SameOutput:
    """Hosts that printed the same output."""

    hosts: tuple[str, ...]
    text: bytes
    left_out: int  # lines


def make_folds(hosts: Sequence[str]) -> dict[str, FoldedOutput]:
    """Return one FoldedOutput per host, in host order; together they hold about MOST_BYTES."""
    share = max(_LEAST_BYTES, MOST_BYTES // max(1, len(hosts)))
    return {host: FoldedOutput(share) for host in hosts}


def group(folds: Mapping[str, FoldedOutput]) -> list[SameOutput]:
    """Return the groups of hosts that printed the same, in the order of their first hosts, without silent hosts."""
    hosts: dict[bytes, list[str]] = {}
    for host, output in folds.items():
        if digest := output.digest():
            hosts.setdefault(digest, []).append(host)
    found = []
    for names in hosts.values():
        first = folds[names[0]]
        found.append(SameOutput(tuple(names), first.text(), first.left_out))
    return found
