"""What a node tells of the directory in which the ranks save, and of those above it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from node_process import Node, Nodes

from launcher.node import messages, system
from launcher.node.system import find_kind


@pytest.fixture
def node(nodes: Nodes) -> Node:
    node = nodes.start()
    node.prepare()
    return node


def share(node: Node, folder: Path | str, workdir: Path | None = None) -> list[Any]:
    before = len(node.find(messages.SHARED))
    node.send(messages.SHARE, folder=str(folder), workdir=str(workdir) if workdir else None)
    node.wait_until(lambda: len(node.find(messages.SHARED)) > before, "an answer")
    answer = node.find(messages.SHARED)[-1]
    assert answer["kernel"] == system.boot_id()
    return list(answer["levels"])


def levels_of(folder: Path) -> list[Any]:
    return [[there.stat().st_dev, there.stat().st_ino, find_kind(str(there))] for there in (folder, *folder.parents)]


def test_a_directory_that_is_there(node: Node, tmp_path: Path) -> None:
    saves = tmp_path / "saves"
    saves.mkdir()
    assert share(node, saves) == share(node, "saves", workdir=tmp_path) == levels_of(saves)
    assert share(node, "~/saves") == [None, *levels_of(node.home)]
    assert share(node, "/proc/")[0][2] == "proc"
    assert list(saves.iterdir()) == []


def test_a_directory_that_does_not_exist_yet(node: Node, tmp_path: Path) -> None:
    assert share(node, tmp_path / "run" / "checkpoints") == [None, None, *levels_of(tmp_path)]


def test_where_a_link_leads_counts(node: Node, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "saves").symlink_to("there/run")
    assert share(node, tmp_path / "saves") == [None, *levels_of(tmp_path / "there")]
