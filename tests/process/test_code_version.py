"""The commit of the user's code in run.json: asked of the real git, beside the run."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from machines.patience import slowed
from machines.processes import is_alive, wait_until

from launcher.job.job import DEFAULT_PROGRAM, Job, Program, ProgramKind
from launcher.output.run_folder import RunRecord, create_record
from launcher.runs import code_version
from launcher.runs.code_version import find_code, find_version, keep_code_version
from launcher.runs.run_json import CodeVersion

SCRIPT = Program(ProgramKind.SCRIPT, "src/train.py")
MODULE = Program(ProgramKind.MODULE, "pkg.train")
COMMAND = Program(ProgramKind.COMMAND, "sh", ("-c", "exit"))


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project with one commit; its script lies in a folder of it."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text("print(1)\n")
    (folder / ".gitignore").write_text("outputs\n")
    git(folder, "init", "--quiet", ".")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def fake_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def no_complaint(path: Path, error: OSError) -> None:
    raise AssertionError(error)


def make_record(folder: Path) -> RunRecord:
    return create_record(folder / "logs", datetime.now(), no_complaint)


@pytest.mark.parametrize(
    ("program", "workdir", "folder"),
    [
        (SCRIPT, "/w", "/w/src"),
        (Program(ProgramKind.SCRIPT, "/code/train.py"), "/w", "/code"),
        (MODULE, "/w", "/w"),
        (COMMAND, "/w", "/w"),
        (Program(ProgramKind.COMMAND, "./run.sh"), "/w", "/w"),
        (DEFAULT_PROGRAM, "/w", None),
        (COMMAND, None, None),
    ],
)
def test_where_the_code_is(program: Program, workdir: str | None, folder: str | None) -> None:
    assert find_code(Job(program, workdir=workdir)) == (folder and Path(folder))


def test_a_commit_and_what_differs_from_it(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    clean = CodeVersion(commit, False, 0, 0)
    (repository / "outputs").mkdir()
    (repository / "outputs" / "model.pt").touch()  # ignored
    assert find_version(repository / "src") == clean
    (repository / "logs").mkdir()
    (repository / "logs" / "run.json").touch()  # our own logs make no code dirty
    assert find_version(repository / "src") == replace(clean, untracked_files=1)
    (repository / "src" / "train.py").write_text("print(2)\n")
    assert find_version(repository / "src") == CodeVersion(commit, True, 1, 1)


def test_where_git_knows_nothing(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_version(tmp_path / "no such folder") is None
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "--quiet", ".")
    assert find_version(tmp_path / "empty") is None  # no commit yet
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own switch: "dubious ownership"
    assert find_version(repository) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_version(repository) is None


def test_a_git_that_hangs_is_ended(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it has started: a filter of git-lfs, say."""
    fake_git(tmp_path, f"sleep 300 & echo $! $$ >>{tmp_path}/pids; wait", monkeypatch)
    monkeypatch.setattr(code_version, "ANSWER_S", slowed(1))
    record, pids = make_record(tmp_path), tmp_path / "pids"
    with keep_code_version(Job(SCRIPT, workdir=str(repository)), record, lambda version: None):
        record.update({"plan": 1})
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))
    assert "commit" not in (record.folder / "run.json").read_text()


def test_a_status_that_takes_too_long(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(tmp_path, 'case "$*" in *rev-parse*) echo abc;; *) exec sleep 300;; esac', monkeypatch)
    monkeypatch.setattr(code_version, "ANSWER_S", slowed(2))
    assert find_version(repository) == CodeVersion("abc", None, None, None)
