"""`launch` as most tests start it: forked by a Python that has imported it, which takes a third of the time.

Tests of the start itself, of terminals, and of what a process may use, start the program in `PROGRAM`.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from launcher.cli.main import OWNER
from machines.patience import DEADLINE_S
from machines.warm import WarmProcess, WarmPython, write_client

PROGRAM = Path(sys.executable).with_name("launch")


def start_launch(
    *words: str, cwd: Path, stdout: IO[bytes], stderr: IO[bytes], env: Mapping[str, str] | None = None,
    program: str = PROGRAM.name, stdin: int | None = None,
) -> WarmProcess:  # fmt: skip
    """Start `launch` with these words, or another program that is installed with it."""
    python, _ = _warm_launch()
    argv = [str(PROGRAM.with_name(program)), *words]
    return python.start(argv, env or os.environ, cwd, stdout, stderr, program, stdin)


def run_launch(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None, code: int | None = None, stdin: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `launch` until it exits, with this code if one is given; return its output as text."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = start_launch(*words, cwd=cwd, stdout=stdout, stderr=stderr, env=env, stdin=stdin)
        try:
            exit_code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        texts = [os.pread(file.fileno(), 1 << 30, 0).decode("utf-8", "backslashreplace") for file in (stdout, stderr)]
        assert code in (None, exit_code), "".join(texts)
        return subprocess.CompletedProcess([str(PROGRAM), *words], exit_code, *texts)


def hurried(times: Mapping[str, float]) -> list[str]:
    """Return the words that start `launch` with other constants, by their names: `launcher.cli.stop._UNHEARD_S`."""
    lines = ["import importlib", "from launcher.cli.main import main"]
    for name, seconds in times.items():
        module, _, constant = name.rpartition(".")
        lines.append(f"importlib.import_module({module!r}).{constant} = {seconds}")
    return [sys.executable, "-c", "; ".join([*lines, "main()"])]


def write_python(path: Path) -> Path:
    """Write what `import launcher` may take for its Python: it forks `launch`, and its parent is then who forks it."""
    python, _ = _warm_launch()
    return write_client(path, python.place, f"{OWNER}={python.pid}")


@functools.cache
def _warm_launch() -> tuple[WarmPython, tempfile.TemporaryDirectory[str]]:
    folder = tempfile.TemporaryDirectory()
    return WarmPython(Path(folder.name), "warm_launch"), folder
