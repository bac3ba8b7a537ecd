"""Which files show that a checkpoint was saved."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from launcher.node.facts.checkpoints import has_save, look


def write(path: Path, age_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (time.time() - age_s,) * 2)


@pytest.mark.parametrize(
    ("name", "age_s", "counts"),
    [
        ("step_10/model.pt", 90, True),
        ("model.pt", 90, True),
        ("model.pt", 30, False),  # it may be the reason for the failure
        ("model.pt", 300, False),  # of an earlier attempt
        (".model.pt", 90, False),
        ("model.pt.tmp", 90, False),
        (".step_10/model.pt", 90, False),
    ],
)
def test_a_file_counts(tmp_path: Path, name: str, age_s: float, *, counts: bool) -> None:
    write(tmp_path / name, age_s)
    assert has_save(str(tmp_path), time.time() - 200, 60) is counts


def test_a_directory_that_is_missing_has_none(tmp_path: Path) -> None:
    assert look(str(tmp_path / "missing"), 0, 0) == {"has_saved": False, "is_missing": True}
    assert look(str(tmp_path), 0, 0) == {"has_saved": False, "is_missing": False}
