"""A node whose launcher, supervisor or guardian is lost ends its run by itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.patience import NEVER_S, slowed
from machines.processes import is_alive, read_parent, send_signal
from node_process import FORKS, IGNORES, SAVES, STDOUT, WAITS, Node, Nodes, python, shell

from launcher.node import messages

RANKS = (shell(WAITS), shell(IGNORES), python(FORKS))


def check_gone(node: Node) -> None:
    """Wait until nothing runs any more, the hidden children of ranks included."""
    assert node.told_pids
    node.wait_until_gone()


def check_census(node: Node, reason: str) -> None:
    census = node.wait_for(messages.CENSUS)
    assert census == {"type": "census", "left": [], "reason": reason, "files": 0}
    told = [message["type"] for message in node.messages if message["type"] in (messages.FAILED, messages.EXIT)]
    assert told == [messages.FAILED, messages.EXIT], "the exits that follow from it must not look like the cause"
    assert node.find(messages.FAILED) == [{"type": "failed", "text": reason}]
    check_gone(node)
    assert node.stderr == f"stopping the run: {reason}\n"


def start_ready_beating(node: Node, *argvs: list[str]) -> None:
    """Start ranks and wait until each is ready; the lease is as long as ever then."""
    node.start(*argvs)
    ranks = range(len(argvs))
    node.wait_until(lambda: node.send(messages.BEAT) or all(b"ready" in node.output[rank, STDOUT] for rank in ranks))


# ---- the launcher ---------------------------------------------------------------------------------------------------


# ---- a machine that sleeps ------------------------------------------------------------------------------------------

# Stands for suspend: the clock that counts it jumps, time.monotonic() does not.
SLEEPS = """\
import os, sys, time
read = time.clock_gettime
def clock_gettime(clock):
    return read(clock) + (3600 if clock == time.CLOCK_BOOTTIME and os.path.exists("{slept}") else 0)
time.clock_gettime = clock_gettime
exec(sys.argv[1])
"""


def make_sleeper(folder: Path) -> str:
    """Return a Python whose machine has slept for an hour once the file `slept` is there."""
    (folder / "sleeps.py").write_text(SLEEPS.format(slept=folder / "slept"))
    program = folder / "sleeper"
    # Called as `python -X utf8 -ISc CODE`.
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -X utf8 -IS {folder}/sleeps.py "$4"\n')
    program.chmod(0o700)
    return str(program)


def test_a_node_that_slept_ends_the_run(nodes: Nodes, tmp_path: Path) -> None:
    """Nobody has talked to it for an hour, though it was awake for less than the silence that it allows.

    Its ranks are killed at once: by now the run may have been started again elsewhere, on the same checkpoints.
    """
    node = nodes.start(python=make_sleeper(tmp_path))
    silence_s = slowed(5)
    assert node.prepare(silence_s=silence_s, stop_timeout_s=NEVER_S)["sleeps_along"] is False
    start_ready_beating(node, python(SAVES, str(tmp_path)))
    node.send(messages.ROUTE, master="127.0.0.1")
    node.wait_for(messages.ROUTED)  # so all that was sent is read: nothing renews the lease any more
    heard_at = time.monotonic()
    (tmp_path / "slept").touch()
    check_gone(node)
    assert time.monotonic() - heard_at < silence_s
    assert not (tmp_path / "saving").exists()
    assert node.stderr == f"stopping the run: no heartbeat from the launch host for {silence_s:g} s\n"


def test_a_node_that_sleeps_while_its_ranks_save_kills_them(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start(python=make_sleeper(tmp_path))
    node.prepare(silence_s=NEVER_S)
    start_ready_beating(node, python(SAVES, str(tmp_path)))
    node.send(messages.STOP, timeout_s=NEVER_S)
    node.wait_until((tmp_path / "saving").exists)
    (tmp_path / "slept").touch()
    check_gone(node)


# ---- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "whom"), [(signal.SIGTERM, "supervisor"), (signal.SIGHUP, "guardian")])
def test_a_polite_signal_ends_the_run(node: Node, number: int, whom: str) -> None:
    node.start_ready(shell(WAITS))
    os.kill(node.supervisor if whom == "supervisor" else node.guardian.pid, number)
    check_census(node, reason=f"its helper got signal {number:d}")


def test_ctrl_c_is_the_launcher_s_to_handle(node: Node) -> None:
    node.start_ready(shell(WAITS))
    for pid in (node.supervisor, node.guardian.pid):
        os.kill(pid, signal.SIGINT)
    assert node.stop() == []
    assert node.stderr == ""


# ---- supervisor and guardian ----------------------------------------------------------------------------------------


def test_the_supervisor_is_killed(node: Node) -> None:
    node.start_ready(*RANKS)
    os.kill(node.supervisor, signal.SIGKILL)
    death = {"code": None, "signal": signal.SIGKILL}
    first = node.wait_for_guardian(messages.FAILED)
    assert first == {"type": "failed", "text": "its helper died", "supervisor": death}
    assert node.wait_for_guardian() == {"type": "census", "left": [], "supervisor": death}
    check_gone(node)
    assert node.guardian.returncode == 1
    assert not node.find(messages.CENSUS)


def test_the_supervisor_is_killed_before_it_knows_of_a_run(nodes: Nodes) -> None:
    node = nodes.start()
    children = Path(f"/proc/{node.guardian.pid}/task/{node.guardian.pid}/children")

    seen = [""]

    def is_supervisor() -> bool:  # it stays, unlike what looks whether the code is here
        time.sleep(0.1)
        seen.append(children.read_text())
        return bool(seen[-1]) and seen[-1] == seen[-2]

    node.wait_until(is_supervisor)
    os.kill(int(seen[-1]), signal.SIGKILL)
    assert node.wait_for_guardian()["left"] == []


def test_the_supervisor_is_killed_while_it_ends_the_run(node: Node) -> None:
    node.start_ready(shell(IGNORES))
    node.send(messages.STOP, timeout_s=NEVER_S)
    node.wait_for_output("ready")
    os.kill(node.supervisor, signal.SIGKILL)
    assert node.wait_for_guardian()["left"] == []
    check_gone(node)


def test_a_rank_may_save_when_the_supervisor_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start()
    node.prepare(stop_timeout_s=NEVER_S)
    node.start_ready(python(SAVES, str(tmp_path)))
    _, worker = node.told_pids
    os.kill(node.supervisor, signal.SIGKILL)
    node.wait_until((tmp_path / "saving").exists)
    assert is_alive(worker)
    (tmp_path / "go").touch()
    check_gone(node)


# ---- a second look --------------------------------------------------------------------------------------------------


def sweep(
    nodes: Nodes, lost: Node, wait_s: float, during: Callable[[], object] = lambda: None, **fields: object
) -> list[object]:
    """Look for what is left of a lost node over a new connection, its folder too; return what could not be ended."""
    sweeper = nodes.start(mark=lost.mark)
    sweeper.prepare(lost_folder=str(lost.folder), **fields)
    sweeper.send(messages.STOP, timeout_s=0, wait_s=wait_s)
    during()
    left: list[object] = sweeper.wait_for(messages.CENSUS)["left"]
    assert not any(map(is_alive, lost.told_pids)), "the census came too early"
    assert not lost.folder.exists()
    sweeper.end()
    return left


def test_a_sweep_ends_all_helpers_that_are_suspended(nodes: Nodes) -> None:
    """The one that starts the ranks has no mark: a fork shows the environment of what it was forked from."""
    node = nodes.start()
    keepers = node.prepare()["keepers"]
    node.start_ready(shell(IGNORES))
    helpers = [read_parent(node.pid_of(0)), node.supervisor, node.guardian.pid]
    for pid in helpers:
        send_signal(pid, signal.SIGSTOP)
    assert sweep(nodes, node, wait_s=0.1, lost_keepers=keepers) == []
    node.wait_until(lambda: not any(map(is_alive, helpers)))


def test_a_sweep_waits_for_the_first_supervisor_s_stop(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start()
    node.prepare(stop_timeout_s=NEVER_S)
    node.start_ready(shell(f"trap 'while ! [ -e {tmp_path}/go ]; do sleep 0.01; done; echo saved >{tmp_path}/it; exit' "
                           "TERM; echo ready pids $$; while :; do sleep 0.01; done"))  # fmt: skip
    node.hang_up()
    assert sweep(nodes, node, wait_s=NEVER_S, during=(tmp_path / "go").touch) == []
    assert (tmp_path / "it").read_text() == "saved\n"
