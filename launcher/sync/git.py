"""Ask git about one directory: which repository contains it, and which files git lists there.

That there is no repository is a value. Every other failure of git is an error, above all its refusal of a repository
that belongs to another user (`safe.directory`): without git's answer `launch` would send what the repository ignores.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.escapes import one_line, shown

# Set by a git that started `launch` through a hook or an alias: they name its repository, not the code's.
_OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX")
# It writes nothing, not even the index, starts no daemon, and its messages are those that are matched below. It fetches
# nothing: what is missing in a partial clone would come from a program that the repository's configuration names. The
# second variable says the same to a git that doesn't know the first.
COMMAND = (
    "env", *(word for name in _OTHER_REPOSITORY for word in ("-u", name)), "LC_ALL=C",
    "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=", "git", "--no-optional-locks", "-c", "core.fsmonitor=false",
)  # fmt: skip

_OUTSIDE = "not a git repository (or any"  # without the parenthesis it is a damaged repository
_NOT_FOUND = 127  # from env
_NO_DEVELOPER_TOOLS = ("xcode-select:", "xcrun:")  # on a Mac /usr/bin/git is there even if git isn't
_TRUST = re.compile(r"git config --global --add safe\.directory .+")
_UNREAD = re.compile(r"warning: could not open directory '(.*)': (.+)")
_MAX_LINE = 300  # characters of git's message


@dataclass(frozen=True, slots=True)
class Repository:
    """The repository that contains a directory; `prefix` is the way from its root to there, as `a/b`, or empty."""

    root: Path
    prefix: str


def find_repository(folder: Path) -> Repository | None:
    """Return the repository to which a directory belongs, if any; raise UsageError if git fails or refuses to answer.

    A directory that the repository ignores doesn't belong to it: git would list none of its files.
    """
    root, prefix = (ask_git(folder, "rev-parse", word) for word in ("--show-toplevel", "--show-prefix"))
    if root is None or prefix is None:
        return None
    found = Repository(Path(root.removesuffix("\n")), prefix.removesuffix("\n").rstrip("/"))
    return None if found.prefix and is_ignored(found.root, found.prefix) else found


def list_names(folder: Path, *words: str, is_complete: bool = True) -> list[str]:
    """Return what a git command prints between NULs, relative to the directory; raise UsageError without an answer.

    is_complete: whether it is an error if git can't read a directory there.
    """
    output = ask_git(folder, *words, is_complete=is_complete)
    if output is None:
        raise UsageError(f"{shown(folder)}: it is not in a git repository any more")
    return output.split("\0")[:-1]


def is_ignored(folder: Path, name: str) -> bool:
    """Tell whether git ignores a name, whether it exists or not; that of a directory ends with a slash."""
    return _run(folder, "check-ignore", "-q", "--", f"./{name}").returncode == 0


def ask_git(folder: Path, *words: str, is_complete: bool = True) -> str | None:
    """Run git in a directory and return what it prints, with bytes that are no UTF-8 as surrogates.

    None: there is no repository.
    """
    done = _run(folder, *words)
    complaint = os.fsdecode(done.stderr).strip()
    if done.returncode == 0:
        if is_complete and (unread := _UNREAD.search(complaint)):
            raise UsageError(
                f"{shown(folder)}: git can't open the directory {shown(unread[1])}: {unread[2]}",
                "leave it out with .gitignore or .launchignore, or make it readable",
            )
        return os.fsdecode(done.stdout)
    if done.returncode == _NOT_FOUND or complaint.startswith(_NO_DEVELOPER_TOOLS):
        raise UsageError("git isn't installed on this machine; it says which files --sync sends", "install git")
    if _OUTSIDE in complaint:
        return None
    if "safe.directory" in complaint:
        trust = _TRUST.search(complaint)
        fix = trust[0] if trust else f"git config --global --add safe.directory {folder}"
        raise UsageError(f"git refuses {shown(folder)}: it belongs to another user", one_line(fix, _MAX_LINE))
    last = complaint.rpartition("\n")[2] or f"exit code {done.returncode}"
    command = next(word for word in words if not word.startswith("-"))
    raise UsageError(f"{shown(folder)}: git {command} failed: {one_line(last, _MAX_LINE)}")


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    argv = [*COMMAND, "-C", str(folder), *words]
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:  # too many processes or too little memory, or patterns beyond what argv can have
        raise UsageError(f"can't start git: {error.strerror}") from None
