"""What a Tab offers beside what click itself knows: files, the hosts of ~/.ssh/config, and the runs of this machine.

The names are other people's text, in files that `launch` didn't write, and a shell puts them into a line as they are.
So only those are offered that need no quoting in any shell and move no cursor, which all names that `launch` accepts
do. No host is contacted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]*")
_SAFE_START = re.compile(r"[\w.:@,/+\[\]-]*", re.ASCII)  # of a list: `$(x),gp` would lose its quotes
_HOST_LINE = re.compile(r"^[ \t]*host[ \t=]+(.+)$", re.IGNORECASE | re.MULTILINE)


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer files."""
    return [CompletionItem(incomplete, type="file")]


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names and ids of the runs in this machine's list, the newest first."""
    from launcher.runs.run_list import RunList

    runs = RunList.of_user(os.environ).read_all()
    return _offer([word for run in runs for word in (run.name, run.id) if word], incomplete)


def complete_hosts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the hosts that ~/.ssh/config names."""
    start = incomplete[: max(map(incomplete.rfind, ",@")) + 1]
    named = re.split("[,@]", start)
    return _offer((start + name for name in _read_ssh_config() if name not in named), incomplete, start)


def _read_ssh_config() -> Iterator[str]:
    """Yield the words of its Host lines; patterns are no safe names."""
    try:
        text = Path("~/.ssh/config").expanduser().read_text("utf-8", "replace")
    except (OSError, RuntimeError):  # there is none, or no home directory
        return
    for names in _HOST_LINE.findall(text):
        yield from names.split()


def _offer(words: Iterable[str], incomplete: str, start: str = "") -> list[CompletionItem]:
    """Return the safe words that begin as what is typed; start: what they have in common, a part of a list."""
    if not _SAFE_START.fullmatch(start):
        return []
    begun = (word for word in dict.fromkeys(words) if word.startswith(incomplete))
    return [CompletionItem(word) for word in begun if _SAFE_NAME.fullmatch(word, len(start))]
