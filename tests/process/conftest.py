"""Nodes for the tests of this folder; each must leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from machines.pythons import find_python
from node_process import Node, Nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as ends:
        yield Nodes(tmp_path, ends)


@pytest.fixture
def node(nodes: Nodes) -> Node:
    """Return a node that is prepared, with short times."""
    node = nodes.start()
    node.prepare()
    return node


@pytest.fixture
def old_python() -> str:
    """Return the oldest Python that a node may have, or our own where there is none."""
    return find_python("3.8") or sys.executable


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that take `any_python` in our own Python and in a 3.8, where there is one."""
    if "any_python" in metafunc.fixturenames:
        old = find_python("3.8")
        pythons = [pytest.param(sys.executable, id="own"), *([pytest.param(old, id="3.8")] if old else [])]
        metafunc.parametrize("any_python", pythons)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a fake tool, given as a shell script, on a PATH that has no real one."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n# A fake.\nPATH=/usr/bin:/bin\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return put
