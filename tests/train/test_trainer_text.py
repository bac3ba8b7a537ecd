"""The text: which one it is, that every rank maps the same one, and what rank 0 shares with the others."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from machines.patience import slowed

from launcher.distributed import World
from launcher.trainer import text
from launcher.trainer.options import ConfigError
from launcher.trainer.text import find_same, identify, load_text, open_text

WORLD = World(0, 1, 0, 1, torch.device("cpu"), "gloo", "single process")


def test_every_python_carries_a_text() -> None:
    topics = open_text("")
    assert len(topics) > 100_000
    assert b"assert" in bytes(topics)
    assert topics == open_text("")


def test_a_missing_text_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_text("no/such.txt", WORLD, None)
    assert str(caught.value) == "no/such.txt: No such file or directory (on rank 0's host)"


@pytest.mark.parametrize("content", [b"", b"abc", bytes(range(256)) * 10])
def test_the_text_is_mapped_and_may_be_a_part(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    loaded = load_text(str(path), WORLD, None)
    assert (loaded.dtype, loaded.device.type) == (torch.uint8, "cpu")
    assert bytes(loaded.tolist()) == content
    assert bytes(load_text(str(path), WORLD, None, most_bytes=2).tolist()) == content[:2]
    assert (str(path) in Path("/proc/self/maps").read_text()) is bool(content)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"from a pipe"))
    writer.start()
    assert bytes(load_text(str(tmp_path / "pipe"), WORLD, None).tolist()) == b"from a pipe"
    writer.join()
    assert find_same(str(tmp_path / "pipe"), 11, b"") is None  # no other rank opens it


def test_only_the_same_text_has_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small text is compared as a whole; of a large one samples, and the time of its last change."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, last in zip(paths, (b"x", b"y"), strict=True):
        path.write_bytes(b"a" * 1000 + last + b"b" * 1000)
        os.utime(path, ns=(1, 1))

    def same() -> bool:
        identity = identify(open_text(str(paths[0])), str(paths[0]))
        return find_same(str(paths[1]), 2001, identity) is not None

    assert not same()
    monkeypatch.setattr(text, "PROBES", 4)
    monkeypatch.setattr(text, "PROBE_BYTES", 10)
    assert same()  # none of the four samples has the byte in which they differ
    os.utime(paths[1], ns=(1, 2))
    assert not same()
    os.utime(paths[1], ns=(1, 1))
    paths[1].write_bytes(paths[1].read_bytes()[:-1] + b"c")
    os.utime(paths[1], ns=(1, 1))
    assert not same()


def test_ranks_share_with_rank_0(starter: Any, tmp_path: Path) -> None:
    content = "The text of rank 0, which takes several pieces."
    for rank in range(4):
        (tmp_path / f"node{rank}").mkdir()
    (tmp_path / "node0" / "text").write_text(content)
    (tmp_path / "node0" / "empty").touch()
    (tmp_path / "node1" / "text").hardlink_to(tmp_path / "node0" / "text")
    (tmp_path / "node2" / "text").write_text(content[::-1])
    (tmp_path / "copies").mkdir()
    script = str(Path(__file__).with_name("text_ranks.py"))
    limit_s = slowed(1)
    env = {"TMPDIR": str(tmp_path / "copies")}  # theirs alone: torch makes a directory there when it is imported
    ranks = starter.start_ranks(4, lambda rank: [script, str(limit_s)], env)
    for rank in ranks:
        assert (rank.wait(), rank.stderr) == (0, "")
    seen = [json.loads(rank.stdout) for rank in ranks]
    for name, expected in (("text", content), ("part", content[:20])):
        assert [one[name][0] for one in seen] == [expected] * 4
        inodes = [one[name][1:] for one in seen]  # of the nameless copies that each rank has mapped
        assert inodes[0] == inodes[1] == []
        assert len(inodes[2]) == 1
        assert inodes[2] == inodes[3]
    assert [one["topics"] for one in seen] == [True] * 4
    assert [one["empty"][0] for one in seen] == [""] * 4
    others = ["ConfigError: rank 0 could not continue"] * 3
    missing = "ConfigError: missing: No such file or directory (on rank 0's host)"
    assert [one["missing"] for one in seen] == [missing, *others]
    failed = ["MainRankError: rank 0 could not continue"] * 3
    assert [one["error"] for one in seen] == ["OSError: broken", *failed]
    assert [one["long"] for one in seen] == ["done"] * 4
    assert seen[0]["silent"] == ""
    for one in seen[1:]:  # a busy machine may let a rank look late
        given_up = re.fullmatch(r"RuntimeError: rank 0 has not responded for (\d+) s", one["silent"])
        assert given_up is not None and int(given_up[1]) >= round(limit_s), one
    nowhere = f"ConfigError: {socket.gethostname()}: [Errno 2] No such file or directory: '/nowhere'"
    assert [one["nowhere"] for one in seen] == [nowhere] * 4
    assert list((tmp_path / "copies").iterdir()) == []
