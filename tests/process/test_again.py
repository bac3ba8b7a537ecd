"""launch again: the same command in the same directory, with the code of now; and the code of then, given back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from machines.launches import run_launch
from machines.repositories import make_repository, run_git

SCRIPT = """
echo "continues ${LAUNCH_AGAIN_OF:-nothing} in $PWD with $1 ${#API_TOKEN}"
exit ${CODE:-3}
"""


def call(folder: Path, *words: str, code: int = 0) -> str:
    done = run_launch(*words, cwd=folder, code=code)
    return done.stdout + done.stderr


def test_a_failed_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_repository(tmp_path / "r", "train.sh", ignore="/logs\n")
    (root / "train.sh").write_text(SCRIPT)
    (root / "launcher.toml").write_text("stop-timeout = 1\n")
    run_git(root, "commit", "-aqm", "second")
    options = ("--nproc", "1", "--cpu", "--no-check", "--no-python", "--env", "API_TOKEN=hunter2", "--notify", "true")
    call(root, "singlenode", *options, "sh", "train.sh", "a b", code=3)
    first = (root / "logs/latest").readlink().name

    (root / "train.sh").write_text(f"{SCRIPT}# changed\n")
    said = call(tmp_path, "again", "--notify", "true", code=2)
    assert "API_TOKEN is not set here" in said
    monkeypatch.setenv("API_TOKEN", "hunter")
    said = call(tmp_path, "again", code=2)
    assert f"as in launch again {first} --notify CMD" in said
    said = call(tmp_path, "again", first, "--notify", "true", code=3)
    assert f"launch: again run {first}, which failed: cd {root} && launch singlenode" in said
    assert f"continues {first} in {root} with a b 6" in said
    assert f"launch fetch --code {first} tells" in said
    assert json.loads((root / "logs/latest/run.json").read_text())["again_of"] == first

    said = call(tmp_path, "again", "--env", "CODE=0", "--notify", "true")
    assert f"which failed: cd {root}" in said and f"continues {first} in" in said
    said = call(tmp_path, "again", "--notify", "true", "--dry-run")
    assert "which finished" in said and "LAUNCH_AGAIN_OF" not in said
    assert "hunter" not in "".join(path.read_text("utf-8", "replace") for path in root.glob("logs/*/run.json"))

    commands = call(tmp_path, "fetch", "--code", first, "copy")
    for line in commands.splitlines():
        if line.startswith("  git "):
            subprocess.run(["sh", "-c", line], check=True, capture_output=True)
    assert (tmp_path / "copy/train.sh").read_text() == SCRIPT


def test_what_the_code_s_directory_had_is_not_lost_without_a_word(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "r", "train.sh", ignore="/logs\n")
    (root / "train.sh").write_text("cat results/step || mkdir -p results; echo 100 >results/step; exit 3")
    options = ("--hosts", "localhost", "--sync", "--nproc", "1", "--cpu", "--no-check", "--no-python")
    said = call(root, "run", *options, "sh", "train.sh", code=3)
    place = said.partition("the run wrote results/ next to its code, in ")[2].splitlines()[0]
    first = (root / "logs/latest").readlink().name
    said = call(root, "again", first, "--link", f"results={place}/results", code=3)
    assert "[localhost:0] 100" in said, said
