"""Whether two nodes share a directory: the file of the first one, who sees it, and that it never stays."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from node_process import Node, Nodes

from launcher.node import messages

NAME = ".launch-1234"


def share(
    node: Node, folder: Path | str, up: int | None, workdir: Path | None = None
) -> tuple[int | None, bool | None]:
    """Ask a node; return how far up its file is, and whether it is there."""
    before = len(node.find(messages.SHARED))
    node.send(messages.SHARE, folder=str(folder), workdir=str(workdir) if workdir else None, name=NAME, up=up)
    node.wait_until(lambda: len(node.find(messages.SHARED)) > before, "an answer")
    answer = node.find(messages.SHARED)[-1]
    return answer["up"], answer["is_there"]


@pytest.fixture
def pair(nodes: Nodes) -> tuple[Node, Node]:
    first, second = nodes.start(), nodes.start()
    for node in (first, second):
        node.prepare()
    return first, second


def test_a_directory_that_is_shared_and_one_that_is_not(pair: tuple[Node, Node], tmp_path: Path) -> None:
    first, second = pair
    (tmp_path / "saves").mkdir()
    assert share(first, tmp_path / "saves", None) == (0, True)
    assert (tmp_path / "saves" / NAME).stat().st_size == 0
    assert share(second, "saves", 0, workdir=tmp_path) == (None, True)
    assert share(second, "saves", 0) == (None, False)  # below its home directory
    first.start(["/bin/sh", "-c", "exit 0"])
    first.wait_until(lambda: not [*(tmp_path / "saves").iterdir()], "the file is gone")


def test_a_directory_that_does_not_exist_yet(pair: tuple[Node, Node], tmp_path: Path) -> None:
    first, second = pair
    (tmp_path / "saves").mkdir()
    assert share(first, tmp_path / "saves" / "run" / "checkpoints", None) == (2, True)
    assert share(second, tmp_path / "saves" / "run" / "checkpoints", 2) == (None, True)
    assert share(second, tmp_path / "other" / "run" / "checkpoints", 2) == (None, False)
    assert first.stop() == []
    assert [*(tmp_path / "saves").iterdir()] == []


def test_where_nothing_can_be_written_nothing_is_known(pair: tuple[Node, Node]) -> None:
    assert share(pair[0], "/proc/saves", None) == (None, None)


@pytest.mark.parametrize("keepers", ["supervisor", "guardian", "both", "supervisor beside a guardian that hangs"])
def test_the_file_outlives_nobody(pair: tuple[Node, Node], tmp_path: Path, keepers: str) -> None:
    first, _ = pair
    assert share(first, tmp_path, None) == (0, True)
    if keepers.endswith("hangs"):
        first.guardian.send_signal(signal.SIGSTOP)
        os.kill(first.supervisor, signal.SIGKILL)
        first.wait_until(lambda: not (tmp_path / NAME).exists(), "the file is gone")
        first.guardian.send_signal(signal.SIGCONT)
        first.wait_until_gone()
        return
    for name, pid in (("supervisor", first.supervisor), ("guardian", first.guardian.pid)):
        if keepers in (name, "both"):
            os.kill(pid, signal.SIGKILL)
    if keepers == "guardian":
        first.hang_up()
    first.wait_until(lambda: not (tmp_path / NAME).exists(), "the file is gone")
    first.wait_until_gone()
    shutil.rmtree(first.folder, ignore_errors=True)  # with both of them killed it stays, for `launch clean`
