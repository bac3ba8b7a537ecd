"""What people type in a checkout without a cluster: train.py, requirements.txt and scripts/test_distributed.sh."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S
from machines.repositories import make_repository

ROOT = Path(__file__).parents[2]


def test_train_py_is_the_built_in_trainer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert end.value.code == 0
    assert {"--config", "--distributed-backend", "--save-dir"} <= set(re.findall(r"--[\w-]+", said))


@pytest.mark.skipif(find_spec("torch") is None, reason="no torch: pip install torch")
def test_the_example_trains_alone_with_a_copy_of_distributed_py(tmp_path: Path) -> None:
    (tmp_path / "mine" / "launcher").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "train_distributed_example.py", tmp_path / "mine" / "train.py")
    shutil.copy(ROOT / "launcher" / "distributed.py", tmp_path / "mine" / "launcher")
    words = ("--epochs", "1", "--data_size", "64", "--save", "out/saved")
    packages = os.pathsep.join(path for path in sys.path if not (Path(path) / "launcher").exists())
    done = subprocess.run(
        [sys.executable, "-S", "mine/train.py", *words],  # -S: without the launcher that is installed here
        env={**os.environ, "PYTHONPATH": packages}, cwd=tmp_path, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["saved out/saved/step_00000002.pt"]), done.stderr
    assert "batch size 32 per rank, 32 in all, learning rate 0.001, epochs 1" in done.stdout.splitlines()
    with zipfile.ZipFile(tmp_path / "out" / "saved" / "step_00000002.pt") as saved:
        (pickled,) = (saved.read(name) for name in saved.namelist() if name.endswith("/data.pkl"))
    assert all(key in pickled for key in (b"model", b"optimizer", b"position"))


def test_requirements_point_at_what_is_there() -> None:
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    extras = re.findall(r"^(\w+) = \[.*\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert lines == ["-c constraints.txt", "-e .[torch,yaml]"]
    assert {"torch", "yaml"} <= set(extras)
    assert (ROOT / "constraints.txt").exists()


def test_git_ignores_what_training_writes_in_a_checkout(tmp_path: Path) -> None:
    make_repository(tmp_path, ignore=(ROOT / ".gitignore").read_text())
    written = [
        "data/tinyshakespeare.txt", "outputs/model.pt", "logs/node_0.log", "checkpoints/step_00000384.pt",
        "examples/checkpoints/step_00000384.pt",
        "examples/train_distributed_7.out", "scripts/slurm/logs/slurm-7.out",
    ]  # fmt: skip
    done = subprocess.run(
        ["git", "-C", tmp_path, "check-ignore", *written], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == written


@pytest.mark.parametrize(
    ("gpus", "words", "typed"),
    [
        (0, [], ["2"]),
        (4, [], ["4"]),
        (4, ["--cpu"], ["2", "--cpu"]),
        (4, ["--hosts", "a,b", "--name", "x"], ["2", "--hosts", "a,b", "--name", "x"]),
        (4, ["--name", "x"], ["4", "--name", "x"]),
        (4, ["3"], ["3"]),
        (4, ["--cpu", "3"], ["--cpu", "3"]),
        (4, ["--help"], ["--help"]),
    ],
)
def test_the_number_of_processes_may_be_left_out(tmp_path: Path, gpus: int, words: list[str], typed: list[str]) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    lines = "".join(f"echo 'GPU {gpu}: H200 (UUID: GPU-{gpu})'\n" for gpu in range(gpus)) or "exit 9\n"
    for name, text in (("test-distributed", 'printf "%s\\n" "$@"\n'), ("nvidia-smi", lines)):
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [str(tmp_path / "scripts" / "test_distributed.sh"), *words], capture_output=True, text=True,
        env={"PATH": f"{folder}:{os.environ['PATH']}"}, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    said = f"scripts/test_distributed.sh: N is {typed[0]}\n" if typed != words else ""
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, typed, said)
