"""How a run is ended on a node: whom SIGTERM reaches, how long it takes, and that nobody escapes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines.patience import NEVER_S
from machines.processes import is_alive
from node_process import FORKS, IGNORES, SAVES, STDOUT, WAITS, Node, Nodes, find_marked, python, shell

from launcher.node import messages

# ---- in time --------------------------------------------------------------------------------------------------------


def test_ranks_that_obey_are_gone_at_once(nodes: Nodes, any_python: str) -> None:
    node = nodes.start(python=any_python)
    node.prepare()
    node.start_ready(*[shell(WAITS)] * 4)
    assert node.stop(NEVER_S) == []
    assert node.wait_for_exits(4) == dict.fromkeys(range(4), (None, signal.SIGTERM))
    node.wait_until_gone()


def test_ranks_that_ignore_it_are_killed_when_the_time_is_up(node: Node) -> None:
    node.start_ready(*[shell(IGNORES)] * 2)
    began_at = time.monotonic()
    assert node.stop(0.3) == []
    assert time.monotonic() - began_at >= 0.3
    assert node.wait_for_exits(2) == dict.fromkeys(range(2), (None, signal.SIGKILL))


def test_one_that_ignores_it_does_not_keep_the_others(node: Node) -> None:
    node.start_ready(shell(IGNORES), shell(WAITS))
    node.send(messages.STOP, timeout_s=NEVER_S)
    node.wait_for(messages.EXIT, local_rank=1)
    assert is_alive(node.pid_of(0))
    assert node.stop(0) == []


def test_no_time_means_no_word(node: Node) -> None:
    node.start_ready(shell("trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.01; done"))
    assert node.stop(0) == []
    assert node.wait_for_exits() == {0: (None, signal.SIGKILL)}
    assert node.output[0, STDOUT] == b"ready\n"


# ---- whom ----------------------------------------------------------------------------------------------------------


def test_sigterm_goes_to_the_rank_alone(node: Node, tmp_path: Path) -> None:
    node.start_ready(python(SAVES, str(tmp_path)))
    rank, worker = node.told_pids
    node.send(messages.STOP, timeout_s=NEVER_S)
    node.wait_until((tmp_path / "saving").exists)
    assert is_alive(worker)
    (tmp_path / "go").touch()
    assert node.wait_for(messages.CENSUS)["left"] == []
    assert node.wait_for_exits() == {0: (0, None)}
    assert not is_alive(worker)
    assert rank == node.pid_of(0)


def test_a_trainer_below_a_shell_script_may_save_too(node: Node, tmp_path: Path) -> None:
    code = python(SAVES, str(tmp_path))
    node.start_ready(shell('"$@"; echo the script ends', *code))
    node.send(messages.STOP, timeout_s=NEVER_S)
    node.wait_until((tmp_path / "saving").exists)
    (tmp_path / "go").touch()
    assert node.wait_for(messages.CENSUS)["left"] == []


def test_what_a_rank_says_while_it_is_ended_comes(node: Node) -> None:
    node.start_ready(shell("trap 'seq 100000; exit 7' TERM; echo ready; while :; do sleep 0.01; done"))
    node.stop(NEVER_S)
    assert node.wait_for_exits() == {0: (7, None)}
    assert node.output[0, STDOUT].endswith(b"\n99999\n100000\n")


def test_a_rank_that_is_stopped_is_ended(node: Node) -> None:
    node.start_ready(shell(WAITS))
    os.kill(node.pid_of(0), signal.SIGSTOP)
    assert node.stop(NEVER_S) == []  # without waiting for all of that
    assert node.wait_for_exits() == {0: (None, signal.SIGTERM)}


# ---- nobody escapes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [0, 0.2])
def test_children_in_sessions_of_their_own_and_daemons(node: Node, timeout_s: float) -> None:
    node.start_ready(python(FORKS))
    pids = node.told_pids
    assert len(pids) == 4
    assert all(map(is_alive, pids))
    assert node.stop(timeout_s) == []
    assert not any(map(is_alive, pids))


def test_what_a_rank_left_when_it_ended_well(node: Node) -> None:
    node.start(python(FORKS.replace("time.sleep(300)", "")))
    node.wait_for_exits()
    _, *hidden = node.told_pids
    assert all(map(is_alive, hidden))
    assert node.stop() == []
    assert not any(map(is_alive, hidden))


def test_a_rank_that_starts_others_while_it_is_ended(node: Node) -> None:
    code = """
        import os, signal, subprocess, time
        def start_others(*_):
            others = [subprocess.Popen(["sleep", "300"], start_new_session=True) for _ in range(3)]
            os.write(1, b"pids %d %d %d\\n" % tuple(other.pid for other in others))  # print() may be under way
            os._exit(0)
        signal.signal(signal.SIGTERM, start_others)
        print("ready", flush=True)
        time.sleep(300)
    """  # a shell goes on before its child is another program, and what comes to that one in between is lost
    node.start_ready(python(code))
    assert node.stop(NEVER_S) == []
    assert len(node.told_pids) == 3, str(node)
    assert not any(map(is_alive, node.told_pids))


def test_what_is_started_while_the_rest_is_ended_hears_sigterm_too(node: Node) -> None:
    """Not only when the time to save is over."""
    code = """
        import os, signal, subprocess, time
        def start_another(*_):
            os.write(1, b"pids %d\\n" % subprocess.Popen(["sleep", "300"], start_new_session=True).pid)
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, start_another)
            print("ready", flush=True)
        time.sleep(300)
    """
    node.start_ready(python(code))
    assert node.stop(NEVER_S) == []
    (other,) = node.told_pids
    assert not is_alive(other)


def test_who_forks_faster_than_proc_can_be_read(node: Node, tmp_path: Path) -> None:
    """Two lines of processes that live for 0.7 ms each; while one of them goes on, the pipe has a writer."""
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    code = """
        import os, sys, time
        os.open(sys.argv[1], os.O_WRONLY)
        print("ready", flush=True)
        os.fork()
        while True:
            if os.fork():
                os._exit(0)
            time.sleep(0.0007)
    """
    node.start_ready(python(code, str(tmp_path / "alive")))
    node.wait_for_exits()
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    left = node.stop()
    is_gone = os.read(reader, 1) == b"" if not left else True
    os.close(reader)
    assert (left, is_gone) == ([], True)


def test_setproctitle_does_not_wipe_the_mark(node: Node) -> None:
    pytest.importorskip("setproctitle", reason="no setproctitle: pip install setproctitle")
    code = """
        import os, setproctitle, time
        setproctitle.setproctitle("trainer: " + "x" * 4000)
        print("ready pids", os.getpid(), flush=True)
        time.sleep(300)
    """
    _, _, text = python(code)
    node.start_ready([sys.executable, "-c", text])
    pid = node.pid_of(0)
    assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"trainer: xxx")
    assert find_marked(node.mark) == {pid}


# ---- strangers ------------------------------------------------------------------------------------------------------


def test_strangers_are_never_signalled(node: Node) -> None:
    """The same command line, a mark that only begins as ours, and our mark in another variable."""
    argv = shell(WAITS)
    envs = [{}, {"LAUNCH_MARK": node.mark + "0"}, {"LAUNCH_MARK": node.mark[:-1]}, {"XLAUNCH_MARK": node.mark}]
    strangers = [subprocess.Popen(argv, env={**os.environ, **env}, stdout=subprocess.DEVNULL) for env in envs]
    try:
        node.start_ready(argv)
        assert node.stop(0.1) == []
        node.end()
        assert [stranger.poll() for stranger in strangers] == [None] * len(envs)
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()


@pytest.mark.parametrize("is_supervisor_killed", [False, True])
def test_what_a_login_started_is_left_alone(nodes: Nodes, tmp_path: Path, is_supervisor_killed: bool) -> None:
    """The login's shell becomes the guardian, with the jobs that an rc file has put in the background."""
    script = (
        f"sh -c 'sleep 300 & echo $! >{tmp_path}/below; exec sleep 300' >/dev/null 2>&1 & echo $! >{tmp_path}/job; "
    )
    node = nodes.start(rc_file=script)
    node.prepare()
    node.start_ready(shell(WAITS))
    places = [tmp_path / name for name in ("job", "below")]
    node.wait_until(lambda: all(place.exists() and place.read_text().endswith("\n") for place in places), "the jobs")
    jobs = [int(place.read_text()) for place in places]
    try:
        if is_supervisor_killed:
            os.kill(node.supervisor, signal.SIGKILL)
            assert node.wait_for_guardian()["left"] == []
        else:
            assert node.stop() == []
        node.wait_until_gone()
        assert all(map(is_alive, jobs))
    finally:
        for pid in jobs:
            os.kill(pid, signal.SIGKILL)
