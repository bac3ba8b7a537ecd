"""The text with which launch's code begins in the Python of the ranks, run as Python's site module runs it."""

from __future__ import annotations

import importlib
import marshal
import os
import subprocess
import sys
from pathlib import Path

import pytest

import launcher
from launcher.node import archive
from launcher.node.programs import entry
from launcher.transports.archives import pack_node


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


def test_a_python_that_is_too_old_has_no_torch() -> None:
    """As 3.6, which many systems have as their first; it could not even read the rest, and would say so at length."""
    text = "import sys; sys.version_info = (3, 6, 8)\n" + Path(entry.__file__).read_text("utf-8")
    read_end, write_end = os.pipe()
    argv = ["bash", "-c", f'exec 3>&{write_end}; exec "$@"', "bash", sys.executable, "-c", text, "torchrun", "1"]
    done = subprocess.run(argv, pass_fds=[write_end], capture_output=True, text=True, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr, os.read(read_end, 100)) == (0, "", b'{"torch": null}\n')
    os.close(read_end)


def test_a_module_is_borrowed_and_nothing_else_of_the_archive_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has a `launcher` of its own, as this test has."""
    code = Path(archive.__file__).read_bytes(), pack_node().content, b"of another Python", {}
    (tmp_path / "code").write_bytes(marshal.dumps(code))
    importlib.import_module("launcher.node.processes.starter")
    modules, finders, path = dict(sys.modules), list(sys.meta_path), list(sys.path)
    with (tmp_path / "code").open("rb") as file:
        monkeypatch.setattr(entry, "CODE_FD", file.fileno())
        borrowed = entry.borrow("torchrun")
    assert borrowed.starter is not modules["launcher.node.processes.starter"]
    assert (sys.meta_path, sys.path) == (finders, path)
    assert sys.modules["launcher"] is launcher
    own = {name: each for name, each in modules.items() if name.startswith("launcher")}
    assert {name: each for name, each in sys.modules.items() if name.startswith("launcher")} == own
