"""What isn't sent, by the topmost directories in which nothing is, and how large it is if that is soon known."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.node.code.listing import parents
from launcher.sync.candidates import CACHE

MEASURE_S = 0.3


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One file or directory that stays on this machine; the name of a directory ends with a slash.

    size_bytes: None if it wasn't counted; if `is_partial`, there is more than that.
    """

    name: str
    reason: str
    size_bytes: int | None = None
    is_partial: bool = False


def gather(reasons: Mapping[str, str], sent: Iterable[str]) -> dict[str, str]:
    """Replace files by the topmost directory above them in which nothing is sent; its reason is the most common one."""
    busy = {folder for path in sent for folder in parents(path)}
    votes: dict[str, dict[str, int]] = {}
    for name, reason in reasons.items():
        above = [folder for folder in parents(name.rstrip("/")) if folder not in busy]
        counted = votes.setdefault(f"{above[-1]}/" if above else name, {})
        counted[reason] = counted.get(reason, 0) + 1
    return {name: max(counted, key=counted.__getitem__) for name, counted in sorted(votes.items())}


def measure(root: Path, reasons: Mapping[str, str]) -> tuple[LeftOut, ...]:
    """Find the sizes, of files first; after MEASURE_S, what isn't counted stays so. Caches aren't counted."""
    deadline = time.monotonic() + MEASURE_S
    ordered = sorted(reasons.items(), key=lambda item: (item[0].endswith("/"), item[0]))
    found = [
        LeftOut(name, reason, *((None, False) if reason == CACHE else _measure(root / name, deadline)))
        for name, reason in ordered
    ]
    return tuple(sorted(found, key=lambda each: each.name))


def _measure(path: Path, deadline: float) -> tuple[int | None, bool]:
    """Return the size of a file, or of all files below a directory, and whether there is more."""
    if time.monotonic() > deadline:
        return None, False
    try:
        found = path.lstat()
    except OSError:
        return None, False
    if not stat.S_ISDIR(found.st_mode):
        return found.st_size, False
    size, waiting = 0, [str(path)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:  # what is unreadable isn't counted
            for entry in entries:
                if time.monotonic() > deadline:
                    return (size, True) if size else (None, False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size, False
