"""torchrun's page at the end of a good run: held back from the screen whole, and shown after all if the run failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines.logs import open_log

from launcher.output.lines import STDERR
from launcher.output.node_output import NodeOutput
from launcher.output.torchrun_exit_noise import MOST_BYTES, TorchrunExitNoise

# By torch 2.13, where the last torchrun reached its barrier and node 0's had gone.
PAGE = Path(__file__).with_name("seen_exit_race.txt").read_bytes()
WARNING = b"/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: 1 leaked semaphore\n"
OLD_API = b"torch.distributed.elastic.agent.server.api"
OLDEST = b"""\
ERROR:torch.distributed.elastic.agent.server.api:Error waiting on exit barrier. Elapsed: 0.01 seconds
Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/torch/distributed/elastic/agent/server/api.py", line 906, in _exit_barrier
    store_util.barrier(
RuntimeError: Connection reset by peer
"""
OLDER = b"".join(b"[2024-02-27 10:00:00,123] " + OLD_API + b": [ERROR] " + line + b"\n" for line in (
    b"Error waiting on exit barrier. Elapsed: 0.01 seconds", b"Traceback (most recent call last):",
    b"torch.distributed.DistNetworkError: Broken pipe", b"During handling of the above exception",
))  # fmt: skip


@pytest.mark.parametrize("page", [PAGE, OLDER, OLDEST, PAGE + PAGE])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_page_alone_is_held_back(page: bytes, size: int) -> None:
    """In blocks of any number of lines, as torchrun's pipe gives them."""
    lines = [*WARNING.splitlines(keepends=True), *page.splitlines(keepends=True), WARNING]
    race = TorchrunExitNoise()
    shown = b"".join(race.hold(b"".join(lines[at : at + size])) for at in range(0, len(lines), size))
    assert (shown, race.release(), race.release()) == (WARNING * 2, page, b"")


@pytest.mark.parametrize(
    "lines",
    [
        b"Traceback (most recent call last):\n  File x\nRuntimeError: no\n",
        b"frame #0: torch's own, of another error\n\n",
        b"my script says: Error waiting on exit barrier\n",
    ],
)
def test_what_is_not_known_is_shown(lines: bytes) -> None:
    assert TorchrunExitNoise().hold(lines) == lines


def test_no_more_is_held_than_a_page_needs() -> None:
    race = TorchrunExitNoise()
    endless = PAGE + b"frame #1: again\n" * MOST_BYTES
    shown = race.hold(endless)
    assert len(shown) + len(race.release()) == len(endless)
    assert len(shown) >= len(endless) - MOST_BYTES


@pytest.mark.parametrize("ended_well", [False, True])
def test_the_log_has_the_page_and_a_failed_run_shows_it_late(tmp_path: Path, *, ended_well: bool) -> None:
    path, shown = tmp_path / "node_0.log", list[bytes]()
    node = NodeOutput(
        "gpu1", open_log(path, lambda *_: None), lambda host, rank, stream, lines, at: shown.append(lines)
    )
    node.feed(0, STDERR, PAGE)  # a rank's own words are its own
    node.feed(None, STDERR, WARNING + PAGE[:-1])
    assert shown == [PAGE, WARNING]
    node.finish(ended_well=ended_well)
    assert shown == [PAGE, WARNING] + ([] if ended_well else [PAGE])
    assert path.read_bytes().count(b"\n") == (PAGE + WARNING + PAGE).count(b"\n")
