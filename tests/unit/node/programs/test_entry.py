"""The text with which launch's code begins in the Python of the ranks, run as Python's site module runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.node.programs import entry


@pytest.mark.parametrize(("purpose", "code", "said"), [(entry.WARM, 1, ""), (entry.STACKS, 0, "the script\n")])
def test_only_a_warm_python_ends_where_there_is_no_code(tmp_path: Path, purpose: str, code: int, said: str) -> None:
    """It would run the script as no rank; for the stacks of a rank, nothing else is needed."""
    folder = tmp_path / f"{purpose}-1"
    folder.mkdir()
    (folder / "sitecustomize.py").write_bytes(Path(entry.__file__).read_bytes())
    (tmp_path / "script.py").write_text("print('the script')")
    env = {**os.environ, "PYTHONPATH": str(folder)}
    argv = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, said)
    assert ("Bad file descriptor" in done.stderr) == (code == 1)
