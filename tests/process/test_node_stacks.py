"""Stacks of living ranks: by a signal to a rank that is ready for it, and never to one that is not."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from machines.processes import is_alive, read_state
from node_process import STAND_IN, STDERR, Message, Node, Nodes, read_status, shell, wait_until

from launcher.diagnosis.stacks import parse_stack
from launcher.node import messages
from launcher.node.processes import stacks
from launcher.node.programs.entry import SIGNAL

NO_OPTION = "the run was started with --no-stacks"

HANGS = """
    import os, time
    def wait_for_ever():
        print("ready pids", os.getpid(), flush=True)
        time.sleep(300)
    def step():
        wait_for_ever()
    step()
"""
CALLS = ["wait_for_ever", "step", "<module>"]

# Holds the GIL in a C call, so that no handler written in Python would ever run.
HANGS_IN_C = """
    import ctypes, os
    read, nothing_comes, buffer = ctypes.PyDLL(None).read, os.pipe()[0], ctypes.create_string_buffer(1)
    def wait_for_ever():
        print("ready pids", os.getpid(), flush=True)
        read(nothing_comes, buffer, 1)
    def step():
        wait_for_ever()
    step()
"""

# posix_spawn suspends us, in state D, until its child has opened all it shall; nobody opens the other end of a FIFO.
HANGS_IN_THE_KERNEL = """
    import os, sys
    fifo = sys.argv[1] + "/fifo"
    os.mkfifo(fifo)
    print("ready pids", os.getpid(), flush=True)
    os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)])
"""

TELLS_SITE = """
    import os, sys
    module = sys.modules.get("sitecustomize")
    print("ready pids", os.getpid(), flush=True)
    print(os.environ["PYTHONPATH"].split(":")[1:], [path for path in sys.path if "launch-test" in path], flush=True)
    folder = os.path.basename(os.path.dirname(module.__file__)).partition("-")[0]
    print(getattr(module, "USERS", None), folder, flush=True)
    import time
    time.sleep(300)
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    return link_python(tmp_path, sys.executable)


@pytest.fixture
def node(nodes: Nodes) -> Node:
    return start_node(nodes)


def start_node(nodes: Nodes, python: str = sys.executable, **env: str) -> Node:
    """Start a node with these variables for its ranks; python: what runs the supervisor."""
    node = nodes.start(python=python)
    node.prepare(env=env)
    return node


def link_python(folder: Path, python: str) -> str:
    path = folder / "bin" / "python3"
    path.parent.mkdir()
    path.symlink_to(Path(python).resolve())
    return str(path)


def program(python: str, code: str, *args: str) -> list[str]:
    return [python, "-c", textwrap.dedent(code), *args]


def ask(node: Node, number: int, count: int = 1) -> list[Message]:
    """Return what the ranks answer, by local rank."""
    node.send(messages.STACKS, number=number)
    node.wait_until(lambda: len(node.find(messages.STACK, number=number)) == count, f"{count} stacks")
    return sorted(node.find(messages.STACK, number=number), key=lambda message: message["local_rank"])


def calls(answer: Message) -> list[str]:
    return [frame.function for frame in parse_stack(answer["text"])]


def test_a_rank_writes_its_own_stack_as_often_as_it_is_asked(nodes: Nodes, any_python: str, tmp_path: Path) -> None:
    node = start_node(nodes, python=any_python)
    argv = program(link_python(tmp_path, any_python), HANGS)
    node.start_ready(argv, argv, with_stacks=True)
    for number in (1, 2, 3):
        for rank, answer in enumerate(ask(node, number, count=2)):
            assert (answer["pid"], answer["reason"]) == (node.pid_of(rank), None)
            assert calls(answer) == CALLS
            assert answer["text"].count("most recent call first") == 1  # of this time alone
    assert all(map(is_alive, node.told_pids))
    assert not node.find(messages.EXIT)


def test_a_rank_that_holds_the_gil_in_c_is_seen(node: Node, python: str) -> None:
    node.start_ready(program(python, HANGS_IN_C), with_stacks=True)
    (answer,) = ask(node, 1)
    assert calls(answer) == CALLS
    assert is_alive(node.pid_of(0))


def test_ranks_of_torchrun_are_ready_as_well(nodes: Nodes, python: str, tmp_path: Path) -> None:
    """Under the stand-in for torch, which is found by the PYTHONPATH that ours goes in front of."""
    node = nodes.start()
    node.import_torchrun(python, PYTHONPATH=str(STAND_IN))
    (tmp_path / "train.py").write_text(textwrap.dedent(HANGS))
    node.start_torchrun([str(tmp_path / "train.py")], with_stacks=True)
    for rank in (0, 1):
        node.wait_for_output("ready", rank)
    assert [calls(answer) for answer in ask(node, 1, count=2)] == [CALLS] * 2


@pytest.mark.parametrize("before", ["", "import os; del os.memfd_create"], ids=["in memory", "on a disk"])
def test_no_python_leaves_a_file(node: Node, python: str, before: str) -> None:
    """A run may start very many; -S, since a test comes before our sitecustomize in no other way."""
    node.start_ready([python, "-S", "-c", f"{before}\nimport sitecustomize{textwrap.dedent(HANGS)}"], with_stacks=True)
    (answer,) = ask(node, 1)
    assert calls(answer) == CALLS
    (folder,) = node.folder.glob("stacks-*")
    assert [path.name for path in folder.iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]


def test_a_python_below_a_shell_is_found(node: Node, python: str) -> None:
    script = '"$@" & sleep 300 & wait'
    node.start_ready(shell(script, *program(python, HANGS)), with_stacks=True)
    (answer,) = ask(node, 1)
    assert calls(answer) == CALLS
    assert answer["pid"] == node.told_pids[0] != node.pid_of(0)


# As faulthandler on a busy machine, which may lose its turn in the middle of a stack.
WRITES_SLOWLY = """
    import ctypes, os, time
    os.closerange(3, 99)
    file = os.memfd_create("launch-stacks")
    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def write(number):
        os.write(file, b'Thread 0x1 (most recent call first):\\n  File "a.py", line 2 in inner\\n')
        time.sleep(0.5)
        os.write(file, b'  File "a.py", line 1 in outer\\n')
    ctypes.CDLL(None).signal(%d, write)
    print("ready pids", os.getpid(), flush=True)
    time.sleep(300)
"""


def test_a_stack_is_read_once_it_is_complete(node: Node, python: str) -> None:
    node.start_ready(program(python, WRITES_SLOWLY % SIGNAL), with_stacks=True)
    (answer,) = ask(node, 1)
    assert calls(answer) == ["inner", "outer"]


# ---- the user's own sitecustomize -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "told"),
    [(None, "None stacks"), ("USERS = 'mine'", "mine site"), ("import os; USERS = os.sep", "/ site")],
)
def test_the_users_sitecustomize_runs(
    nodes: Nodes, any_python: str, tmp_path: Path, users: str | None, told: str
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    if users is not None:
        (folder / "sitecustomize.py").write_text(users)
    argv = program(link_python(tmp_path, any_python), TELLS_SITE)
    node = start_node(nodes, PYTHONPATH=str(folder))
    node.start_ready(argv, with_stacks=True)
    # As if nothing of ours were there: the variable goes on to children, sys.path shows the user's folders alone.
    node.wait_for_output(f"['{folder}'] []\n{told}\n")
    assert ask(node, 1)[0]["text"]


def test_an_error_in_the_users_sitecustomize_is_told_as_always(nodes: Nodes, any_python: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('mine')")
    argv = program(link_python(tmp_path, any_python), HANGS)
    node = start_node(nodes, PYTHONPATH=str(tmp_path), PYTHONUNBUFFERED="1")  # as a plan has it
    node.start_ready(argv, with_stacks=True)
    node.wait_for_output("Error in sitecustomize; set PYTHONVERBOSE for traceback:\nValueError: mine\n", stream=STDERR)
    assert calls(ask(node, 1)[0]) == CALLS


def test_a_folder_of_ours_that_is_gone_harms_nobody(node: Node, python: str) -> None:
    order = 'chmod 500 "${PYTHONPATH%%:*}"; exec "$@"'
    code = "import os; os.setuid(65534) if os.getuid() == 0 else None;" + textwrap.dedent(HANGS).strip()
    node.start_ready(shell(order, python, "-c", code), with_stacks=True)
    assert node.output[0, STDERR] == b""


# ---- who must not be signalled --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "options", "with_stacks", "obstacle"),
    [
        ("", [], False, NO_OPTION),
        ("", ["-I"], True, "this Python did not load launch's sitecustomize (-I, -E or -S, or PYTHONPATH replaced?)"),
        ("import signal; signal.signal({0}, signal.SIG_DFL)", [], True, "it no longer catches signal {0}"),
        ("import os; os.closerange(3, 99)", [], True, "this Python did not load launch's sitecustomize"),
        ("import signal; signal.pthread_sigmask(0, [{0}])", [], True, "it did not respond to signal {0} in 2 s"),
    ],
    ids=["--no-stacks", "isolated", "handler taken away", "file closed", "blocked"],
)
def test_a_rank_that_is_not_ready_is_never_signalled(
    node: Node, python: str, before: str, options: list[str], with_stacks: bool, obstacle: str
) -> None:
    """By default the signal would end it."""
    code = f"{before.format(SIGNAL)}\n{textwrap.dedent(HANGS)}"
    node.start_ready([python, *options, "-c", code], with_stacks=with_stacks)
    (answer,) = ask(node, 1)
    assert answer["text"] == ""
    assert answer["reason"].startswith(obstacle.format(SIGNAL))
    assert is_alive(node.pid_of(0))
    assert not node.find(messages.EXIT)


def test_a_rank_that_is_no_python_is_named(node: Node) -> None:
    node.start_ready(shell("echo ready pids $$; exec sleep 300"), with_stacks=True)
    (pid,) = node.told_pids
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    (answer,) = ask(node, 1)
    assert answer["reason"] == "the rank runs sleep, not Python"
    assert is_alive(node.pid_of(0))


def test_a_stopped_rank_is_told_and_not_signalled(node: Node, python: str) -> None:
    node.start_ready(program(python, HANGS), with_stacks=True)
    pid = node.pid_of(0)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: read_state(pid) == "T")
    (answer,) = ask(node, 1)
    assert (answer["state"], answer["reason"]) == ("T", "a suspended process can't write its stack")
    os.kill(pid, signal.SIGCONT)
    assert calls(ask(node, 2)[0]) == CALLS


def test_a_rank_that_the_kernel_holds_is_told_and_not_signalled(node: Node, python: str, tmp_path: Path) -> None:
    node.start_ready(program(python, HANGS_IN_THE_KERNEL, str(tmp_path)), program(python, HANGS), with_stacks=True)
    pid = node.pid_of(0)
    wait_until(lambda: read_state(pid) == "D")
    answer, other = ask(node, 1, count=2)
    assert (answer["state"], answer["text"], answer["reason"]) == ("D", "", "it is blocked in the kernel")
    assert answer["wchan"] is None or answer["wchan"].isidentifier()
    assert calls(other) == CALLS
    assert int(read_status(pid, "ShdPnd"), 16) == 0


def test_a_rank_that_has_ended_is_not_asked(node: Node, python: str) -> None:
    node.start_ready(program(python, HANGS), shell("echo ready"), with_stacks=True)
    node.wait_for_exits(1)
    assert [answer["local_rank"] for answer in ask(node, 1)] == [0]


MIB = 1 << 20


def test_a_file_that_a_rank_has_filled_is_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "stack.1"
    with path.open("wb") as file:
        file.truncate(5 * MIB)
    assert len(stacks.read_from(str(path), 0)) == messages.MAX_STACK_BYTES
    assert len(stacks.read_from(str(path), 5 * MIB - 7)) == 7
