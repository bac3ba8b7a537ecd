"""Compare the Python files beside and below the script, which every host reads from its own disk.

Hosts with the same files have one hash in common; only one host of each hash is asked which files it has. The script
itself is compared in `comparison`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.hosts.ranges import fold_names
from launcher.preflight.comparison import group_hosts, has_majority
from launcher.preflight.findings import NOTE, WARNING, CheckedHost, Finding
from launcher.wording import listed

MOST_ASKED = 16  # hosts
_FEW = 3  # files that are named
_MOST_LETTERS = 100  # of a path
_FIX = "copy the same code to all hosts, or pass --sync"


@dataclass(frozen=True, slots=True)
class _Group:
    """Hosts with the same files; `files` is None if they are not known."""

    hosts: tuple[str, ...]
    files: Mapping[str, str] | None


def choose_asked(hashes: Mapping[int, str]) -> list[int]:
    """Return which nodes to ask for their files: one of each hash, of the most frequent ones; none if all are equal."""
    ordered = list(group_hosts(hashes).values())
    return [group[0] for group in ordered[:MOST_ASKED]] if len(ordered) > 1 else []


def check(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Yield which files differ on which hosts; if no version is in the majority, no host is blamed."""
    for node in nodes:
        if node.fact.checks and not node.fact.checks.code_is_complete:
            text = "its Python files are not compared: there are too many, or reading them took too long"
            yield Finding((node.name,), text, "", NOTE)
    hashes = {node.name: node.fact.checks.code_hash for node in nodes if node.fact.checks}
    by_hash = group_hosts({name: found for name, found in hashes.items() if found is not None})
    if len(by_hash) < 2:
        return
    known = {node.name: node.fact.code_files for node in nodes if node.fact.code_files is not None}
    groups = [
        _Group(tuple(names), next((known[name] for name in names if name in known), None)) for names in by_hash.values()
    ]
    usual, *others = groups
    if has_majority(by_hash):
        for group in others:
            text = _compare(group, usual, "the others" if len(groups) == 2 else "most hosts")
            yield from [Finding(group.hosts, text, _FIX, WARNING)] if text else []
    elif text := _compare_all(groups):
        yield Finding(tuple(name for group in groups for name in group.hosts), text, _FIX, WARNING)


def _compare(group: _Group, usual: _Group, others: str) -> str:
    """Return how a group differs from the usual one; empty if the files have become equal since they were hashed."""
    if group.files is None or usual.files is None:
        return f"its Python files differ from {others}"
    mine, theirs = group.files, usual.files
    differing = sorted(path for path in mine if path in theirs and mine[path] != theirs[path])
    missing, extra = sorted(theirs.keys() - mine.keys()), sorted(mine.keys() - theirs.keys())
    every = [*differing, *missing, *extra]
    if len(every) > _FEW:
        kinds = [(missing, "missing"), (extra, f"not on {others}")]
        counted = ", ".join(f"{len(paths)} {word}" for paths, word in kinds if paths)
        return f"{_name_first(every)} differ from {others}" + (f" ({counted})" if counted else "")
    parts = [f"{_name(differing, 'differs', 'differ')} from {others}"] if differing else []
    parts += [_name(missing, "is missing", "are missing")] if missing else []
    parts += [f"{_name(extra, 'is', 'are')} not on {others}"] if extra else []
    return ", ".join(parts)


def _compare_all(groups: Sequence[_Group]) -> str:
    """Return which files are not the same in all groups."""
    if any(group.files is None for group in groups):
        return "their Python files are not the same"
    every = [(group.hosts, group.files or {}) for group in groups]
    paths = sorted({path for _, files in every for path in files})
    lacking = {path: [name for hosts, files in every if path not in files for name in hosts] for path in paths}
    missing = {path: names for path, names in lacking.items() if names}
    differing = [path for path in paths if path not in missing and len({files[path] for _, files in every}) > 1]
    found = [*differing, *missing]
    if len(found) > _FEW:
        counted = f" ({len(missing)} missing on some)" if missing else ""
        return f"{_name_first(found)} are not the same{counted}"
    parts = [_name(differing, "is not the same", "are not the same")] if differing else []
    parts += [f"{_shorten(path)} is missing on {fold_names(names)}" for path, names in missing.items()]
    return ", ".join(parts)


def _name_first(paths: Sequence[str]) -> str:
    named = paths[: _FEW - 1]
    return f"{', '.join(map(_shorten, named))} and {len(paths) - len(named)} more files"


def _name(paths: Sequence[str], one: str, many: str) -> str:
    return f"{listed(map(_shorten, paths))} {one if len(paths) == 1 else many}"


def _shorten(path: str) -> str:
    return path if len(path) <= _MOST_LETTERS else f"...{path[3 - _MOST_LETTERS :]}"
