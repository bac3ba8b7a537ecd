"""The names of files: how a message shows them, and which two of them would be one file on some disks. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from launcher.errors import UsageError
from launcher.node.code.listing import parents

_MAX_SHOWN = 200  # characters


def shown(name: str | Path) -> str:
    """Return a name as part of one line; one with a newline or a byte that is no UTF-8 is quoted, with escapes."""
    text = str(name)
    text = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    return text if text.isprintable() else repr(text)


def listed_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names as `a, b, c and 7 more`."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(map(shown, ordered[:most])) + more


def refuse_clashes(paths: Iterable[str]) -> None:
    """Raise UsageError if two paths, or the directories above them, differ only in case or in Unicode normal form.

    The disks of Macs, and Linux directories with case folding, keep only one of them.
    """
    spelled: dict[str, str] = {}
    for path in paths:
        for part in (path, *parents(path)):
            known = spelled.setdefault(_fold(part), part)
            if known != part:
                kind = "case" if known.lower() == part.lower() else "the form of their letters (NFC and NFD)"
                raise UsageError(
                    f"{shown(known)} and {shown(part)} differ only in {kind}: some disks keep only one of them",
                    "rename one of them, or leave it out with .launchignore",
                )
            if known is not part:
                break  # this directory was seen, and so were those above it


def _fold(name: str) -> str:
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())
