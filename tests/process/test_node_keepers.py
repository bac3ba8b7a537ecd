"""Guardian and supervisor are both killed, in both orders and at every step of the stop, and nobody else knows of it.

Who started the ranks then ends them: the shim of plain commands, a warm Python, or torchrun (here `stand_in/torch`,
which is imported in no time, and the real one where what counts is what it does).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path

import pytest
import test_node_warm
from machines.patience import NEVER_S
from machines.processes import is_alive, read_parent
from node_process import FORKS, IGNORES, STAND_IN, STOP_TIMEOUT_S, WAITS, Node, Nodes, python, shell
from test_node_torchrun import write_script

from launcher.node import messages

# Between both deaths: in them the survivor begins its stop, and ends it.
EVERY_PAIR = bool(os.environ.get("EVERY_PAIR"))
GAPS_S = (0, 0.006, 0.012, 0.02, 0.03, 0.05) if EVERY_PAIR else (0, 0.012, 0.05)

# The script of ranks 0 and 1: one obeys SIGTERM, and one ignores it.
TRAIN = """
    import os, signal, time
    if os.environ["LOCAL_RANK"] == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready pids", os.getpid(), flush=True)
    time.sleep(300)
"""
HAS_BARE_CHILD = TRAIN.replace(
    "    print(",
    """
    import subprocess
    bare = subprocess.Popen(["sleep", "300"], start_new_session=True, env={})
    print(""",
).replace("os.getpid(),", "os.getpid(), bare.pid,")

# It saves at SIGTERM once the test says go, if its data-loader worker lives.
SAVES = """
    import os, signal, sys, time
    from pathlib import Path
    place = Path(sys.argv[1])
    worker = os.fork()
    if worker == 0:
        time.sleep(300)
    def save(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("saving", flush=True)  # nobody reads that any more, and it must not fail
        (place / "saving").touch()
        while not (place / "go").exists():
            time.sleep(0.01)
        if os.waitpid(worker, os.WNOHANG) == (0, 0):
            (place / "saved").touch()
        os.kill(worker, signal.SIGKILL)
        os._exit(0)
    signal.signal(signal.SIGTERM, save)
    os.write(1, b"ready pids %d %d\\n" % (os.getpid(), worker))  # at once: soon nobody reads
    time.sleep(300)
"""


# A rank that SIGTERM ends at once, though what it has started saves, which takes longer than others get than ranks.
STARTS_TRAINER = """
    import os, signal, sys, time
    from pathlib import Path
    if os.fork():
        time.sleep(300)
    def save(*_):
        Path(sys.argv[1], "saving").touch()
        time.sleep(1.5)
        Path(sys.argv[1], "saved").touch()
        os._exit(0)
    signal.signal(signal.SIGTERM, save)
    print("ready pids", os.getpid(), flush=True)
    time.sleep(300)
"""


def start_commands(nodes: Nodes, folder: Path) -> Node:
    node = nodes.start()
    node.prepare()
    node.start_ready(shell(WAITS), shell(IGNORES), python(FORKS))
    return node


def start_torchrun(
    nodes: Nodes, folder: Path, code: str = TRAIN, nproc: int = 2, stop_timeout_s: float = STOP_TIMEOUT_S
) -> Node:
    node = nodes.start()
    env = {"PYTHONPATH": str(STAND_IN)}
    node.prepare(facts=True, pythons=[sys.executable], env=env, stop_timeout_s=stop_timeout_s)
    node.start_torchrun(write_script(folder, code), nproc)
    for rank in range(nproc):
        node.wait_for_output("ready", rank)
    return node


def start_warm(
    nodes: Nodes, folder: Path, code: str = TRAIN, nproc: int = 2, stop_timeout_s: float = STOP_TIMEOUT_S
) -> Node:
    node = test_node_warm.start(nodes, folder, code, str(folder), nproc=nproc, stop_timeout_s=stop_timeout_s)
    for rank in range(nproc):
        node.wait_for_output("ready", rank)
    return node


Start = Callable[..., Node]
STARTS, ORDERS = [start_commands, start_torchrun, start_warm], ["guardian", "supervisor"]
# Of each way to start one order, of each order one way at least.
PAIRS = [*product(STARTS, ORDERS)] if EVERY_PAIR else [*zip(STARTS, cycle(ORDERS), strict=False)]
any_program = pytest.mark.parametrize("start", [start_torchrun, start_warm])


def find_starter(node: Node) -> int:
    """Return the parent of rank 0."""
    return read_parent(node.pid_of(0))


def kill_keepers(node: Node, first: str, gap_s: float = 0) -> None:
    """Kill both, one after the other; either may have ended by itself."""
    for pid in sorted([node.supervisor, node.guardian.pid], reverse=first == "supervisor"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(gap_s)


def check_gone(node: Node, starter: int) -> None:
    node.wait_until_gone()
    node.wait_until(lambda: not is_alive(starter), what="who started the ranks is gone")
    assert not node.folder.exists()


@pytest.mark.parametrize(("start", "first"), PAIRS)
@pytest.mark.parametrize("moment", ["run", "save", "are killed"])
def test_while_the_ranks(nodes: Nodes, tmp_path: Path, start: Start, first: str, moment: str) -> None:
    """When they save, who has started them is held, and must not be held for ever."""
    gaps_s = GAPS_S[:1] if moment == "save" else GAPS_S
    started = [start(nodes, tmp_path) for _ in gaps_s]
    starters = list(map(find_starter, started))
    for node, gap_s in zip(started, gaps_s, strict=True):
        if moment == "save":
            node.send(messages.STOP, timeout_s=NEVER_S)
            node.wait_for(messages.EXIT, local_rank=0)
        elif moment == "are killed":
            node.send(messages.STOP, timeout_s=0)
            time.sleep(gap_s)
        kill_keepers(node, first, gap_s if moment == "run" else 0)
    for node, starter in zip(started, starters, strict=True):
        check_gone(node, starter)


def test_commands_may_save(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start()
    node.prepare(stop_timeout_s=NEVER_S)
    node.start_ready(python(SAVES, str(tmp_path)))
    check_saves(node, tmp_path, "supervisor")


def test_ranks_of_real_torchrun_may_save(nodes: Nodes, tmp_path: Path) -> None:
    """Also when it was held before, since another rank had failed."""
    pytest.importorskip("torch", reason="no torch: pip install torch")
    node = nodes.start()
    node.prepare(facts=True, pythons=[sys.executable], stop_timeout_s=NEVER_S)
    node.wait_for(messages.FACTS)
    node.start_torchrun(write_script(tmp_path, SAVES))
    for rank in range(2):
        node.wait_for_output("ready", rank)
    os.kill(node.pid_of(1), signal.SIGKILL)
    node.wait_for(messages.EXIT, local_rank=1)
    check_saves(node, tmp_path, "guardian")


@any_program
def test_what_has_lost_its_mark_is_ended(nodes: Nodes, tmp_path: Path, start: Start) -> None:
    node = start(nodes, tmp_path, HAS_BARE_CHILD)
    starter = find_starter(node)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # neither begins to stop the run, and so has the orphans
        for pid in (node.supervisor, node.guardian.pid):
            os.kill(pid, number)
    check_gone(node, starter)


@any_program
def test_what_a_rank_has_started_may_save_as_long(nodes: Nodes, tmp_path: Path, start: Start) -> None:
    check_saves(start(nodes, tmp_path, STARTS_TRAINER, 1, NEVER_S), tmp_path, "guardian")


def check_saves(node: Node, folder: Path, first: str) -> None:
    starter = find_starter(node)
    kill_keepers(node, first)
    node.wait_until((folder / "saving").exists)
    (folder / "go").touch()
    node.wait_until((folder / "saved").exists)
    check_gone(node, starter)


def test_the_kernel_kills_commands_when_nobody_is_left(nodes: Nodes) -> None:
    node = nodes.start()
    node.prepare()
    code = TRAIN.replace("LOCAL_RANK", "RANK")
    node.start_ready(*[python(code)] * 2, env={"RANK": "1"})
    keepers = [node.supervisor, node.guardian.pid, find_starter(node)]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them sees another die
        for pid in keepers:
            os.kill(pid, number)
    node.wait_until_gone()
    shutil.rmtree(node.folder)  # for `launch clean`: nobody could remove it


def test_the_shim_is_killed(nodes: Nodes) -> None:
    """Its commands die with it, and are told as they died, after it was named and as what follows from that."""
    node = nodes.start()
    node.prepare()
    node.start_ready(shell(WAITS), shell(IGNORES))
    os.kill(find_starter(node), signal.SIGKILL)
    assert node.wait_for_exits(2) == dict.fromkeys(range(2), (None, signal.SIGKILL))
    node.wait_for(messages.ENDED)
    assert node.stop() == []
    kinds = [message["type"] for message in node.messages if message["type"] in (messages.FAILED, messages.EXIT)]
    assert kinds == [messages.FAILED, messages.EXIT, messages.EXIT]
    failed = node.wait_for(messages.FAILED)
    assert failed["text"] == "the helper that starts the ranks was killed"
    assert failed["supervisor"] == {"code": None, "signal": signal.SIGKILL, "oom": None}
    assert [message["was_stopping"] for message in node.find(messages.EXIT)] == [True, True]


KILLED_STARTER = """
import os, sys
from launcher.node.processes.starter import Starter
Starter.report = lambda self, **fields: print(fields["status"], flush=True)
child = os.fork()
if child == 0:
    exec(sys.argv[1])
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
os.waitpid = lambda *_: os.kill(os.getpid(), 9)
Starter([], "", 0, -1).serve()
"""


@pytest.mark.parametrize(("end", "status"), [("os._exit(3)", 3 << 8), ("os.abort()", signal.SIGABRT)])
def test_an_end_is_told_though_the_starter_is_killed_as_it_reaps(end: str, status: int) -> None:
    run = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", sys.executable, "-c", KILLED_STARTER, end]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, int(done.stdout)) == (-signal.SIGKILL, status), done.stderr


def test_a_guardian_that_was_stopped_ends_with_the_run(nodes: Nodes) -> None:
    node = nodes.start()
    node.prepare()
    os.kill(node.guardian.pid, signal.SIGSTOP)
    assert node.stop() == []
    node.wait_until_gone()
