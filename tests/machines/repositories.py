"""Directories of code for tests, with git and without."""

from __future__ import annotations

import subprocess
from pathlib import Path

_GIT = (
    "git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always",
    "-c", "init.defaultBranch=main", "-c", "advice.addEmbeddedRepo=false", "-c", "init.templateDir=",
)  # fmt: skip


def run_git(folder: Path, *words: str) -> None:
    subprocess.run([*_GIT, "-C", folder, *words], check=True, capture_output=True)


def write_files(folder: Path, *names: str) -> None:
    """Write each file, with its name as its content, and its directories; a name with a slash at its end is one."""
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(name.encode("utf-8", "surrogateescape"))


def make_repository(folder: Path, *tracked: str, ignore: str = "") -> Path:
    """Make a repository with one commit of these files, and of a `.gitignore` with these lines, if there are any."""
    folder.mkdir(parents=True, exist_ok=True)
    run_git(folder, "init", "-q")
    (folder / ".git" / "info").mkdir(exist_ok=True)  # of git's template; its sample hooks would only be copied
    write_files(folder, *tracked)
    if ignore:
        (folder / ".gitignore").write_text(ignore)
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder
