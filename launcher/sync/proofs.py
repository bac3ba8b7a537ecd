"""What follows from the last words of the nodes: which have the code, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.job.tree import Tree
from launcher.node import messages
from launcher.preflight.findings import WARNING, Finding
from launcher.session.connection import Event
from launcher.wording import listed

_MOST_NAMES = 3
_CACHE_FIX = "choose another directory there with --env XDG_CACHE_HOME=DIR"
_DISK_FIX = "look for a program that writes there, or for a damaged disk; launch clean --code removes it"


def find_problem(tree: Tree, host: str, answer: Event | None, *, is_check: bool) -> Finding | None:
    """Return what is wrong with the code of a host; None if it has proved that it has this tree.

    answer: its last word; None if there was none. is_check: it was asked only to compare.
    """
    if answer is None:
        return Finding((host,), "no other host has filled the cache directory that it shares")
    fields = answer.fields
    if answer.kind == messages.UNPLACED:
        fix = f"free space there, or {_CACHE_FIX}" if fields["is_full"] else _CACHE_FIX
        return Finding((host,), fields["text"], fix if fields["is_disk"] else "")
    if fields["hash"] == tree.hash and fields["path"]:
        return None
    names = _name_some(fields["wrong"], fields["wrong_count"])
    if is_check:
        verb = "differs" if fields["wrong_count"] == 1 else "differ"
        text = f"{names} {verb} from what is here" if names else "no code was sent there yet"
        return Finding((host,), text, "send it: launch sync")
    return Finding((host,), f"its copy of {names} differs" if names else f"its code isn't {tree.name}", _DISK_FIX)


def find_warnings(tree: Tree, host: str, answer: Event) -> Iterator[Finding]:
    """Yield what is doubtful about the code of a host that has the tree."""
    fields = answer.fields
    if fields["repaired"]:
        verb = "was" if len(fields["repaired"]) == 1 else "were"
        change = f"{_name_some(fields['repaired'])} had changed in the run's directory, and {verb} restored"
        yield Finding((host,), f"{change} (what was there is kept as NAME.replaced-...)", "", WARNING)
    if fields["extras"]:
        verbs = ("was", "is") if len(fields["extras"]) == 1 else ("were", "are")
        text = "{0} {1} not sent, but {2} in the run's directory and can be imported"
        text = text.format(_name_some(fields["extras"]), *verbs)
        yield Finding((host,), text, "", WARNING)
    for link in tree.links:
        if link.is_filled and link.name in fields["empty"]:
            fix = f"copy the files there, or link another directory: --link {link.name}=DIR"
            text = f"{link.target} is empty; here {link.name}/ has files, which aren't sent"
            yield Finding((host,), text, fix, WARNING)
        if link.name in fields["unmade"]:
            text = f"can't make {link.target}, so {link.name}/ stays in this run's copy of the code"
            yield Finding((host,), text, f"link another directory: --link {link.name}=DIR", WARNING)


def _name_some(paths: Sequence[str], total: int = 0) -> str:
    """Return `a.py, b.py and c.py`, or `a.py, b.py, c.py and 7 more`; total: if not all are among these."""
    if not paths:
        return ""
    more = max(total, len(paths)) - _MOST_NAMES
    return listed([*paths[:_MOST_NAMES], *([f"{more} more"] if more > 0 else [])])
