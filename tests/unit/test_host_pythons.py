"""What runs on hosts is imported by the Pythons that they may have: 3.8 and newer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from machines import host_imports
from machines.patience import DEADLINE_S
from machines.pythons import find_python

ROOT = Path(__file__).parents[2]
PYTHONS = {"own": sys.executable, **{version: found for version in ("3.8", "3.9") if (found := find_python(version))}}


@pytest.mark.linux
@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_everything_on_hosts_can_be_imported(python: str) -> None:
    argv = [python, "-B", "-I", host_imports.__file__, str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
