"""What is sent and what isn't, in words, and the refusal of too much. Pure."""

from __future__ import annotations

from launcher.errors import UsageError
from launcher.sync.candidates import CACHE
from launcher.sync.left_out import LeftOut
from launcher.sync.names import shown
from launcher.sync.selection import Selection
from launcher.sync.snapshot import Snapshot
from launcher.wording import count, size

_MOST_NAMES = 5
_MOST_LARGE = 3
_WORTH_SAYING_BYTES = 1_000_000


def describe(snapshot: Snapshot) -> str:
    """Return `212 files, 1.8 MB`."""
    return f"{count(snapshot.files, 'file')}, {size(snapshot.bytes_in_all)}"


def describe_left_out(selection: Selection) -> str:
    """Return `data/ 41 GB, .venv/ (git-ignored); .env (secrets)`, the largest first; caches aren't worth a word."""
    found = [each for each in selection.left_out if each.reason != CACHE]
    ordered = sorted(found, key=lambda each: -(each.size_bytes or 0))
    groups: dict[str, list[str]] = {}
    for each in ordered[:_MOST_NAMES]:
        groups.setdefault(each.reason, []).append(_describe_one(each))
    texts = [f"{', '.join(names)} ({reason})" for reason, names in groups.items()]
    more = len(ordered) - _MOST_NAMES
    return "; ".join(texts) + (f" and {more} more" if more > 0 else "")


def refuse_large(selection: Selection, limit_bytes: int) -> None:
    """Raise UsageError if more than the limit would be sent, naming what is largest; nothing was read for that yet."""
    total = sum(selection.sizes)
    if total <= limit_bytes:
        return
    parts = sorted(_split(selection).items(), key=lambda item: (-item[1], item[0]))[:_MOST_LARGE]
    named = ", ".join(f"{shown(name)} {size(bytes_in_all)}" for name, bytes_in_all in parts)
    raise UsageError(
        f"{shown(selection.root)} has {size(total)} to send, more than {size(limit_bytes)}: {named}",
        "leave them out with .gitignore or .launchignore, or pass --sync-limit SIZE",
    )


def _describe_one(each: LeftOut) -> str:
    if each.size_bytes is None or each.size_bytes < _WORTH_SAYING_BYTES:
        return shown(each.name)
    return f"{shown(each.name)} {'over ' if each.is_partial else ''}{size(each.size_bytes)}"


def _split(selection: Selection) -> dict[str, int]:
    """Return the bytes of each file and directory right below the root.

    A directory most of whose bytes are in one file isn't there, but this file is.
    """
    folders: dict[str, list[tuple[int, str]]] = {}
    for path, size_bytes in zip(selection.paths, selection.sizes, strict=True):
        top, slash, _ = path.partition("/")
        folders.setdefault(top + slash, []).append((size_bytes, path))
    parts = {}
    for name, files in folders.items():
        (largest, path), in_all = max(files), sum(size_bytes for size_bytes, _ in files)
        is_one = largest * 2 > in_all
        parts[path if is_one else name] = largest if is_one else in_all
    return parts
