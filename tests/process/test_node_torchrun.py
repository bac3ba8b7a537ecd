"""Ranks under torchrun: imported early, held at a bad end, and never trusted with the clean-up.

Two tests run the real one; in the others `stand_in/torch` takes its place, which is imported in no time.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S, NEVER_S
from machines.processes import is_alive, read_parent
from node_process import SAVES, STAND_IN, STDERR, STDOUT, Message, Node, Nodes, read_status
from test_node_ranks import NASTY

from launcher.node import messages

WAITS = """
import os, signal, time
print("ready pids", os.getpid(), flush=True)
time.sleep(300)
"""

# Ends as the file says that the test writes for its rank: "exit 3" or "kill 9".
OBEYS = """
import os, sys, time
print("ready pids", os.getpid(), flush=True)
order = sys.argv[1] + "/order." + os.environ["LOCAL_RANK"]
while not os.path.exists(order):
    time.sleep(0.01)
verb, number = open(order).read().split()
print("last words", end="", flush=True)
os.kill(os.getpid(), int(number)) if verb == "kill" else os._exit(int(number))
"""


@pytest.fixture
def node(nodes: Nodes) -> Node:
    """Return a node that has found a Python with torch, and imports the stand-in."""
    node = nodes.start()
    node.import_torchrun()
    return node


def write_script(folder: Path, code: str) -> list[str]:
    (folder / "train.py").write_text(textwrap.dedent(code))
    return [str(folder / "train.py"), str(folder)]


def start_ready(node: Node, argv: list[str], nproc: int = 2) -> None:
    node.start_torchrun(argv, nproc)
    for rank in range(nproc):
        node.wait_for_output("ready", rank)


def give_order(folder: Path, rank: int, order: str) -> None:
    (folder / "written").write_text(order)
    (folder / "written").rename(folder / f"order.{rank}")


def find_torchrun(node: Node) -> int:
    return read_parent(node.pid_of(0))


def is_held(torchrun: int) -> bool:
    """While it is held, torchrun does not listen to SIGTERM, which stops no process."""
    return bool(int(read_status(torchrun, "SigIgn"), 16) >> signal.SIGTERM - 1 & 1)


def test_the_environment_is_in_no_file(nodes: Nodes, tmp_path: Path) -> None:
    """Though it is larger than a pipe: a machine that loses power would keep it."""
    node = nodes.start()
    secrets = {f"SECRET_{number}": f"hush{number}" * 10_000 for number in range(20)}
    node.import_torchrun(**secrets)
    code = "import os; assert sum(map(len, os.environ.values())) > 1_000_000" + WAITS
    start_ready(node, write_script(tmp_path, code), 1)
    files = [path for path in node.folder.rglob("*") if path.is_file()]
    assert [path for path in files if b"hush" in path.read_bytes()] == []
    assert node.stop() == []


def test_a_fork_that_fails_later_is_reported(nodes: Nodes, tmp_path: Path) -> None:
    """The first Python has no torch; by the time that it says so, nothing can be started any more."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho started >&2\nwhile [ ! -e go ]; do sleep 0.01; done\n")
    python.chmod(0o755)
    node = nodes.start()
    node.prepare(facts=True, pythons=[str(python), sys.executable], env={})
    node.wait_for_output("started", None, STDERR)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path(f"/proc/{node.supervisor}/fd").iterdir()}
    lowest = next(number for number in range(1000) if number not in used)
    resource.prlimit(node.supervisor, resource.RLIMIT_NOFILE, (lowest + 1, most))  # one more, and a pipe has two
    (Path(f"/proc/{node.supervisor}/cwd").resolve() / "go").touch()
    assert node.wait_for(messages.FAILED)["text"] == "its helper failed: [Errno 24] Too many open files"
    assert node.wait_for(messages.CENSUS)["left"] == []


# ---- the real one ---------------------------------------------------------------------------------------------------


def start_real(nodes: Nodes, argv: list[str]) -> Node:
    pytest.importorskip("torch", reason="no torch: pip install torch")
    node = nodes.start()
    assert node.import_torchrun(sys.executable)["search"]["torch"]
    start_ready(node, argv)
    return node


def test_real_torchrun_brings_arguments_output_and_ends(nodes: Nodes, tmp_path: Path) -> None:
    """Also the end of a rank that it has reaped before the supervisor has looked."""
    code = """
import os, sys, time
rank = os.environ["RANK"]
os.write(2, b"ready\\r")
os.write(1, b"ready\\0" + b"\\0".join(map(os.fsencode, sys.argv[2:])) + b"\\xff" + rank.encode())
while not os.path.exists(sys.argv[1] + "/order." + rank):
    time.sleep(0.01)
"""
    node = start_real(nodes, [*write_script(tmp_path, code), *NASTY])
    rank = Path(f"/proc/{node.pid_of(1)}")
    os.kill(node.supervisor, signal.SIGSTOP)
    give_order(tmp_path, 1, "exit")  # it would end the other one if this failed
    node.wait_until(lambda: not rank.exists())
    os.kill(node.supervisor, signal.SIGCONT)
    assert node.wait_for_exits() == {1: (0, None)}
    give_order(tmp_path, 0, "exit")
    assert node.wait_for(messages.ENDED)["code"] == 0
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}
    for rank in (0, 1):
        assert node.output[rank, STDOUT] == b"\0".join([b"ready", *map(os.fsencode, NASTY)]) + b"\xff%d" % rank
        assert node.output[rank, STDERR] == b"ready\r"
    assert not node.output[None, STDOUT]
    assert node.stop() == []


def test_real_torchrun_is_held_when_a_rank_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    """Left alone it would kill the others with their workers; held, they can save."""
    node = start_real(nodes, write_script(tmp_path, SAVES))
    torchrun = find_torchrun(node)
    os.kill(node.pid_of(1), signal.SIGKILL)
    assert node.wait_for_exits() == {1: (None, signal.SIGKILL)}
    node.send(messages.STOP, timeout_s=NEVER_S)
    node.wait_until((tmp_path / "saving").exists)
    node.wait_until(lambda: is_held(torchrun))
    (tmp_path / "go").touch()
    assert node.wait_for(messages.CENSUS)["left"] == []
    assert node.wait_for_exits(2)[0] == (0, None)
    assert not any(map(is_alive, node.told_pids))
    assert b"ChildFailedError" not in node.output[None, STDERR]


# ---- beginnings -----------------------------------------------------------------------------------------------------


def test_the_import_runs_while_nodes_are_compared(nodes: Nodes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    node = nodes.start()
    node.import_torchrun(STAND_IN_GATE=str(gate))
    node.start_torchrun(write_script(tmp_path, WAITS))
    node.send(messages.ROUTE, master="127.0.0.1")
    node.wait_until(lambda: len(node.find(messages.ROUTED)) == 2)  # it answers meanwhile
    assert not node.find(messages.STARTED)
    gate.unlink()
    node.wait_for_output("ready", 1)


def test_a_torchrun_that_waits_for_its_order_is_ended(node: Node) -> None:
    assert node.stop(NEVER_S) == []
    node.wait_until_gone()


def test_a_torchrun_that_imports_is_ended(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    node = nodes.start()
    node.import_torchrun(STAND_IN_GATE=str(tmp_path / "gate"))
    assert node.stop(NEVER_S) == []


def test_a_torch_that_can_t_be_imported(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start()
    node.import_torchrun(STAND_IN_BROKEN="1")
    node.start_torchrun(write_script(tmp_path, WAITS))
    assert node.wait_for(messages.ENDED)["code"] == 1
    assert node.output[None, STDERR].endswith(b"ImportError: libcudart.so.13: cannot open shared object file\n")
    assert node.stop() == []


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_ranks_that_end_well(nodes: Nodes, any_python: str, old_python: str, tmp_path: Path) -> None:
    """In Python 3.8 as well, and with torch in another Python than the supervisor's."""
    node = nodes.start(python=any_python)
    node.import_torchrun(old_python, PYTHONPATH=str(STAND_IN))
    start_ready(node, write_script(tmp_path, OBEYS))
    give_order(tmp_path, 0, "exit 0")
    assert node.wait_for_exits() == {0: (0, None)}
    assert not node.find(messages.ENDED)
    give_order(tmp_path, 1, "exit 0")
    assert node.wait_for(messages.ENDED)["code"] == 0
    assert node.wait_for_exits(2)[1] == (0, None)
    assert node.output[1, STDOUT].endswith(b"\nlast words")


@pytest.mark.parametrize(("order", "end"), [("exit 255", (255, None)), ("kill 11", (None, 11))])
def test_how_a_rank_fails_is_known_and_torchrun_held(
    nodes: Nodes, any_python: str, tmp_path: Path, order: str, end: tuple[int | None, int | None]
) -> None:
    """By itself, before anybody could tell it."""
    node = nodes.start(python=any_python)
    node.import_torchrun()
    start_ready(node, write_script(tmp_path, OBEYS))
    torchrun = find_torchrun(node)
    os.kill(node.supervisor, signal.SIGSTOP)
    give_order(tmp_path, 1, order)
    node.wait_until(lambda: is_held(torchrun))
    os.kill(node.supervisor, signal.SIGCONT)
    exit: Message = node.wait_for(messages.EXIT)
    assert (exit["local_rank"], exit["code"], exit["signal"]) == (1, *end)
    assert 0 <= exit["age_s"] < DEADLINE_S
    assert node.output[1, STDOUT].endswith(b"\nlast words")
    assert is_alive(node.pid_of(0))
    assert node.stop(NEVER_S) == []
    assert not node.output[None, STDERR], "torchrun printed its page"


# ---- what dies ------------------------------------------------------------------------------------------------------


def test_torchrun_is_killed(node: Node, tmp_path: Path) -> None:
    start_ready(node, write_script(tmp_path, WAITS))
    os.kill(find_torchrun(node), signal.SIGKILL)
    assert node.wait_for(messages.ENDED)["signal"] == signal.SIGKILL
    assert all(map(is_alive, node.told_pids))
    assert node.stop(NEVER_S) == []
