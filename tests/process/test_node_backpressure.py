"""A launcher that reads slowly, or no more: the node's memory stays small, and no rank hangs for ever."""

from __future__ import annotations

import time
from pathlib import Path

from machines.patience import NEVER_S, long_enough, slowed
from node_process import STDOUT, Node, Nodes, python, read_status, shell, wait_until

from launcher.node import messages

FLOOD_BYTES = 60_000_000
PEAK_KIB = 40_000


def count_written(pid: int) -> int:
    """Return how many bytes a process has written so far."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def beat(node: Node) -> bool:
    """Renew the lease while we wait for something."""
    node.send(messages.BEAT)
    return True


def wait_until_stuck(node: Node, pid: int, *, beating: bool = False) -> None:
    """Wait until a process that floods has written nothing more for a while, and read nothing meanwhile."""
    seen, since = -1, 0.0

    def is_stuck() -> bool:
        nonlocal seen, since
        if beating:
            beat(node)
        written = count_written(pid)
        if written != seen:
            seen, since = written, time.monotonic()
        return written > 0 and time.monotonic() - since > 0.3

    wait_until(is_stuck)


def read_peak_kib(pid: int) -> int:
    return int(read_status(pid, "VmHWM").split()[0])


def test_a_reader_that_rests_loses_nothing(nodes: Nodes) -> None:
    """Longer than the node's patience, while our beats go on; its own come again afterwards."""
    node, silence_s = nodes.start(), slowed(1.5)
    node.prepare(silence_s=silence_s)
    node.start(["head", "-c", str(FLOOD_BYTES), "/dev/zero"], shell("seq 1000"))
    wait_until_stuck(node, node.pid_of(0), beating=True)
    awake_at = time.monotonic() + silence_s
    wait_until(lambda: beat(node) and time.monotonic() > awake_at)
    assert count_written(node.pid_of(0)) < FLOOD_BYTES / 2
    assert read_peak_kib(node.supervisor) < PEAK_KIB
    node.wait_until(lambda: beat(node) and len(node.find(messages.EXIT)) == 2)
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}
    assert len(node.output[0, STDOUT]) == FLOOD_BYTES
    assert node.output[1, STDOUT].count(b"\n") == 1000
    beats = len(node.find(messages.BEAT))
    node.send(messages.BEAT)
    node.wait_until(lambda: len(node.find(messages.BEAT)) > beats)
    assert read_peak_kib(node.supervisor) < PEAK_KIB
    assert node.stop() == []


def test_a_reader_that_rests_can_stop_the_run(node: Node) -> None:
    node.start(["yes"], ["yes"])
    wait_until_stuck(node, node.pid_of(0))
    node.send(messages.STOP, timeout_s=NEVER_S)
    assert node.wait_for(messages.CENSUS)["left"] == []


SAYS_MUCH_AT_THE_END = """
    import os, signal, sys, time
    def save(*_):
        os.write(1, bytes(3_000_000))
        open(sys.argv[1], "w").close()
        os._exit(0)
    signal.signal(signal.SIGTERM, save)
    os.write(2, b"ready pids %d\\n" % os.getpid())
    while True:
        os.write(1, bytes(1 << 20))
"""


def start_flood(node: Node, saved: str) -> None:
    node.start(python(SAYS_MUCH_AT_THE_END, saved))
    wait_until_stuck(node, node.pid_of(0), beating=True)


def test_a_launcher_that_dies_while_much_is_waiting(nodes: Nodes, tmp_path: Path) -> None:
    """What its ranks say goes nowhere then, so that they come to their end."""
    node = nodes.start()
    node.prepare(stop_timeout_s=NEVER_S)
    start_flood(node, str(tmp_path / "saved"))
    node.stdout.close()
    node.hang_up()
    node.wait_until_gone()
    assert (tmp_path / "saved").exists()


def test_a_launcher_that_freezes_while_much_is_waiting(nodes: Nodes, tmp_path: Path) -> None:

    def attempt(silence_s: float) -> tuple[Node, Path]:
        node, saved = nodes.start(), tmp_path / f"saved {silence_s}"
        node.prepare(silence_s=silence_s, stop_timeout_s=NEVER_S)
        start_flood(node, str(saved))
        return node, saved

    node, saved = long_enough(attempt, 1)
    wait_until(lambda: not node.living())
    assert saved.exists()


def test_a_launcher_that_reads_no_more_but_lives_sees_the_supervisor_end_the_run(node: Node) -> None:
    """The far end of stdout is closed, and stdin is not: nothing to write to, but still somebody to obey."""
    node.start_ready(shell("echo ready; exec yes"))
    node.stdout.close()
    pid = node.pid_of(0)
    written = count_written(pid)
    wait_until(lambda: count_written(pid) > written + (8 << 20))
    node.send(messages.STOP, timeout_s=0)
    wait_until(lambda: not node.living())
