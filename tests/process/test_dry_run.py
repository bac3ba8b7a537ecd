"""`--dry-run --check` on this machine: the exact lines, no name of a run that is never made, and nothing left."""

from __future__ import annotations

import re
from pathlib import Path

from machines.launches import run_launch

CHECKED = re.compile(r"^launch: checked in .*$", re.MULTILINE)
SIZE = ("--hosts", "localhost", "--nproc", "2", "--no-python", "--no-check")


def test_the_whole_screen(tmp_path: Path) -> None:
    done = run_launch(*SIZE, "--dry-run", "--check", "true", cwd=tmp_path, code=0)
    assert CHECKED.sub("launch: checked", done.stderr) == (
        "launch: localhost is this machine; not using SSH\n"
        "launch: dry run of 1 host x 2 processes = 2 ranks\n"
        "launch: checked\n"
    )
    comment, line = done.stdout.splitlines()
    assert (comment, line.startswith(f"cd {tmp_path} && ")) == ("# node 0: localhost, ranks 0 to 1", True)
    assert list(tmp_path.iterdir()) == []
