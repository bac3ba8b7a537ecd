"""What `launch attach` says beside the lines of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines.example_run import ExampleRun

from launcher.cli.attach import attach


def test_attach_names_the_controller_as_the_user_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = ExampleRun().write(tmp_path)
    attach(run, host="gpu7")
    title = f"run {run.id} ({run.name})" if run.name else f"run {run.id}"
    assert f"launch: {title}, which gpu7 controlled, has ended" in capfd.readouterr().err
