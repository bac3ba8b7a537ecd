"""Write the HostFailures of hosts that can't be used as lines for the screen, grouped by reason.

Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launcher.errors import HostFailure
from launcher.hosts.ranges import fold_names
from launcher.wording import count

_ADDRESS = "\0"


def failure_lines(failures: Sequence[HostFailure]) -> list[str]:
    """Return a heading, then for each reason the hosts, the text and the fix; return [] if there is no failure.

    A host may fail more than once: one that controls a run and has ranks of it is logged in to for each.
    """
    if not failures:
        return []
    lines = [f"launch: {count(len({failure.host for failure in failures}), 'host')} can't be used:"]
    for names, text, fix in fold_failures(failures):
        lines += [f"  {fold_names(names)}: {text}"] + ([f"    fix: {fix}"] if fix else [])
    return lines


def fold_failures(failures: Sequence[HostFailure]) -> Iterator[tuple[list[str], str, str]]:
    """Yield the hosts, the text and the fix for each reason.

    Failures that differ only in the host's address share a reason: its text names all addresses, its fix the first.
    """
    folded: dict[tuple[str, str], list[HostFailure]] = {}
    for failure in failures:
        folded.setdefault((_generic(failure.text, failure), _generic(failure.fix, failure)), []).append(failure)
    for (text, fix), alike in folded.items():
        names = list(dict.fromkeys(failure.host for failure in alike))
        addresses = fold_names(dict.fromkeys(failure.address for failure in alike))
        yield names, text.replace(_ADDRESS, addresses), _example(fix, alike)


def _generic(words: str, failure: HostFailure) -> str:
    """Replace the host's address with a placeholder, so that the texts of several hosts can be equal."""
    if not failure.address:
        return words
    return re.sub(rf"(?<![\w.-]){re.escape(failure.address)}(?!\w|-|\.\w)", _ADDRESS, words)


def _example(fix: str, alike: Sequence[HostFailure]) -> str:
    """Fill in the first address: a command to copy can name only one."""
    addresses = list(dict.fromkeys(failure.address for failure in alike))
    if len(addresses) > 1:
        fix = re.sub(rf"({_ADDRESS}[^;]*)", rf"\1 (and likewise for {len(addresses) - 1} more)", fix, count=1)
    return fix.replace(_ADDRESS, addresses[0])
