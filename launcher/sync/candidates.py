"""Which files a directory has to send: git says so, also of a directory that is in no repository.

Everything here is names; whether there is a file of that name on the disk is for `selection` to see.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from launcher.node.code.listing import parents
from launcher.sync.git import Repository, find_repository, list_names
from launcher.sync.launchignore import exclude_options, read_patterns, seen_from_above, seen_from_inside

# Why something isn't sent; what git tracks is sent nevertheless, and a line of `.launchignore` overrides the names.
IGNORED = "git-ignored"
LAUNCHIGNORE = ".launchignore"
CACHE = "cache"
ENVIRONMENT = "virtual environment"
SECRETS = "secrets"
STAYING = "logs"

CACHES = (
    "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox",
    "node_modules", "*.egg-info", ".hg", ".svn",
)  # fmt: skip
SECRET_FILES = (".env", ".env.*", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk")
PATTERNS = (*SECRET_FILES, *(f"{name}/" for name in CACHES))  # as a .gitignore file would have them

_GITLINK = "160000"  # the mode of a submodule


@dataclass(frozen=True, slots=True)
class Candidates:
    """The names below one directory, with `/` between their parts.

    names: files and links that may be sent; left_out: what is not sent, a directory with a slash at its end, and the
    reason; uninitialized: submodules without files.
    """

    names: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    uninitialized: set[str] = field(default_factory=set)

    def add_below(self, folder: str, other: Candidates) -> None:
        """Add what was found in a directory below this one."""
        self.names.update(f"{folder}/{name}" for name in other.names)
        self.left_out.update({f"{folder}/{name}": reason for name, reason in other.left_out.items()})
        self.uninitialized.update(f"{folder}/{name}" for name in other.uninitialized)


def find_candidates(root: Path, place: Repository | None) -> Candidates:
    """List what the directory has to send, as git has it; raise UsageError.

    place: the repository that it belongs to; without one it is listed as if it were one, of which nothing is tracked.
    """
    patterns = read_patterns(root)
    if place is not None:
        return _list(root, patterns, prefix=place.prefix)
    with tempfile.TemporaryDirectory(prefix="launch-git-") as empty:
        list_names(root, "init", "-q", "--bare", "--template=", empty)
        return _list(root, patterns, (f"--git-dir={empty}", f"--work-tree={root}"))


def _list(folder: Path, patterns: Sequence[str], repository: Sequence[str] = (), prefix: str = "") -> Candidates:
    """Ask git about a directory, and about each repository in it, whose untracked files git doesn't list.

    patterns: of `.launchignore`; repository: options that name another one than that of the directory; prefix: the way
    to the directory from the root of its repository.
    """
    found = Candidates()
    above = seen_from_above(patterns, prefix)
    own, excludes = exclude_options(above), exclude_options((*PATTERNS, *above))
    omitted = set(list_names(folder, *repository, "ls-files", "-z", "-c", "-i", *own)) if own else set[str]()
    found.left_out.update(dict.fromkeys(omitted, LAUNCHIGNORE))
    inner: list[str] = []
    for line in list_names(folder, *repository, "ls-files", "-z", "-s"):
        facts, _, name = line.partition("\t")
        if name not in omitted:
            (inner.append if facts.startswith(_GITLINK) else found.names.add)(name)
    others = list_names(folder, *repository, "ls-files", "-z", "-o", "--exclude-standard", *excludes)
    environments = _find_environments(others)
    found.left_out.update(dict.fromkeys(environments, ENVIRONMENT))
    for name in others:
        if not any(f"{parent}/" in environments for parent in parents(name.rstrip("/"))):
            (inner.append if name.endswith("/") else found.names.add)(name.rstrip("/"))
    found.left_out.update(_list_ignored(folder, repository, excludes))
    for name in inner:
        _add_repository(found, folder, name, seen_from_inside(patterns, name))
    return found


def _find_environments(names: Sequence[str]) -> set[str]:
    """Return the virtual environments, of venv or of conda, among untracked files."""
    ends = ("/pyvenv.cfg", "/conda-meta/history")
    return {f"{name.removesuffix(end)}/" for name in names for end in ends if name.endswith(end)}


def _list_ignored(folder: Path, repository: Sequence[str], excludes: Sequence[str]) -> Mapping[str, str]:
    """Return what isn't tracked and isn't sent, and why."""
    command = (*repository, "ls-files", "-z", "-o", "-i", "--directory", "--exclude-standard")
    options = {IGNORED: [], CACHE: exclude_options(PATTERNS), LAUNCHIGNORE: excludes}
    listed = {why: set(list_names(folder, *command, *words, is_complete=False)) for why, words in options.items()}
    reasons = {}
    for name in listed[LAUNCHIGNORE]:
        ways = {name, *(f"{parent}/" for parent in parents(name.rstrip("/")))}
        reason = next(why for why, names in listed.items() if not ways.isdisjoint(names))
        by_name = classify(name)
        reasons[name] = reason if reason == IGNORED and by_name != CACHE else by_name or reason
    return reasons


def _add_repository(found: Candidates, folder: Path, name: str, patterns: Sequence[str]) -> None:
    path = folder / name
    place = find_repository(path) if os.path.lexists(path / ".git") else None
    if place is None or place.prefix:  # an empty .git leads git to the repository above
        found.uninitialized.add(name)
    else:
        found.add_below(name, _list(path, patterns))


def classify(name: str) -> str | None:
    """Return why a file or directory is left out by its name alone; None for any other name."""
    last = name.rstrip("/").rpartition("/")[2]
    if name.endswith("/") and any(fnmatchcase(last, pattern) for pattern in CACHES):
        return CACHE
    return SECRETS if any(fnmatchcase(last, pattern) for pattern in SECRET_FILES) else None
