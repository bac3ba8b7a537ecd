"""What a logout takes from a detached run; a stand-in for busctl answers as systemd-logind would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.runs.execution import warn_of_logout

AGENT = {"SSH_CONNECTION": "192.0.2.7 50000 192.0.2.1 22", "SSH_AUTH_SOCK": "/tmp/agent"}


@pytest.fixture(autouse=True)
def _no_logind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(("variables", "restarts", "is_told"), [
    (AGENT, 3, True), (AGENT, 0, False), ({"SSH_AUTH_SOCK": "/tmp/agent"}, 3, False), ({}, 3, False),
])  # fmt: skip
def test_an_agent_that_came_with_the_login(variables: dict[str, str], restarts: int, is_told: bool) -> None:
    assert any("SSH agent" in line for line in warn_of_logout(variables, restarts, has_agents=False)) is is_told


@pytest.mark.parametrize(("answer", "is_told"), [("b true", True), ("b false", False), ("", False)])
def test_a_system_that_ends_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, is_told: bool
) -> None:
    (tmp_path / "busctl").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (tmp_path / "busctl").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert any("loginctl enable-linger" in line for line in warn_of_logout({}, 0, has_agents=False)) is is_told
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert warn_of_logout({}, 0, has_agents=False) == [], "logind spares root"


@pytest.mark.parametrize(
    ("answer", "uid", "is_told"), [("b true", 65534, True), ("b false", 65534, False), ("b true", 0, False)]
)
def test_a_system_that_removes_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, uid: int, is_told: bool
) -> None:
    (tmp_path / "busctl").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (tmp_path / "busctl").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert any("(RemoveIPC)" in line for line in warn_of_logout({}, 3, has_agents=True)) is is_told
