"""Ranks that a warm Python forks: each is to its script what a Python that was started for it alone would be.

Two tests import the real torch; in the others `stand_in/torch` takes its place, which is imported in no time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from machines.patience import NEVER_S
from machines.ports import free_port
from machines.processes import read_parent
from node_process import STAND_IN, STDERR, STDOUT, STOP_TIMEOUT_S, Node, Nodes
from test_node_ranks import NASTY

from launcher.hosts.host import Host
from launcher.job.job import Job, Program, ProgramKind
from launcher.job.plan import build_plan, start_fields, warm_fields
from launcher.node import messages
from launcher.session.node_state import read_facts

WAITS = """
import os, time
print("ready pids", os.getpid(), flush=True)
time.sleep(300)
"""

# All that a script may notice of how its Python was started.
TELLS = """
import sys
names = sorted(globals())
modules = sorted(name for name in sys.modules if name in ("sitecustomize", "launcher", "train"))
import gc, json, os, resource, signal, threading, warnings
files = [fd for fd in range(64) if os.path.exists("/proc/self/fd/%d" % fd)]
import multiprocessing.process
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
told = {
    "argv": sys.argv, "orig": getattr(sys, "orig_argv", None), "names": names, "modules": modules, "path": sys.path,
    "main": [__name__, globals().get("__file__"), __package__, repr(__spec__), repr(type(__loader__))],
    "flags": str(sys.flags), "executable": sys.executable, "cwd": os.getcwd(), "warnings": str(warnings.filters),
    "started_in": multiprocessing.process.ORIGINAL_DIR, "umask": os.umask(0o22), "nice": os.nice(0),
    "cmdline": repr(open("/proc/self/cmdline", "rb").read()), "comm": open("/proc/self/comm").read(),
    "env": {name: value for name, value in os.environ.items() if name != "_"},
    "c_env": __import__("ctypes").CDLL(None).getenv(b"OMP_NUM_THREADS") is not None,
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs", "CoreDumping")],
    "handlers": [str(signal.getsignal(number)) for number in (2, 15, 17, 60)],
    "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()], "files": files,
    "stdin": sys.stdin.read(), "limits": resource.getrlimit(resource.RLIMIT_CORE),
    "streams": [(each.encoding, each.errors, each.line_buffering, each.write_through, each.isatty())
                for each in (sys.stdout, sys.stderr)],
    "gc": [gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()],
    "thread": [threading.current_thread().name, threading.main_thread() is threading.current_thread()],
    "stack": len(__import__("inspect").stack()),
}
print(json.dumps(told))
"""


def start(
    nodes: Nodes, folder: Path, code: str, *args: str, nproc: int = 1, how: str = "warm", torch: Path | None = STAND_IN,
    env: dict[str, str] | None = None, late: dict[str, str] | None = None, kind: ProgramKind = ProgramKind.SCRIPT,
    name: str = "train.py", stop_timeout_s: float = STOP_TIMEOUT_S,
    python: str = sys.executable, **fields: Any,
) -> Node:  # fmt: skip
    """Start ranks of a script; how: "warm", or "cold" for those of a shim; late: variables that only START has."""
    (folder / "train.py").write_text(textwrap.dedent(code))
    node = nodes.start()
    path = {} if torch is None else {"PYTHONPATH": str(torch)}
    wanted = {"facts": True, "warm": how == "warm", "plain": True, "workdir": str(folder), "pythons": [python]}
    node.prepare(**wanted, env={**path, **(env or {})}, stop_timeout_s=stop_timeout_s)
    facts = read_facts(node.wait_for(messages.FACTS), str(node.folder))
    job = Job(
        Program(kind, name, args), nproc, cpu=True, workdir=str(folder), master_port=free_port(), env=env or {},
        start="warm" if how == "warm" else "plain" if how == "cold" else "torchrun",
    )  # fmt: skip
    order = warm_fields(job, Host("here"), facts, 0)
    assert (order is not None) == (how == "warm")
    if order is not None:
        node.send(messages.WARM, **order)
    order = start_fields(build_plan(job, [Host("here")], [facts]).nodes[0], 0)
    for process in order["processes"]:
        process["env"].update(late or {})
    node.send(messages.START, **{"import_timeout_s": NEVER_S, **order, **fields})
    return node


def write_torch(folder: Path, code: str) -> Path:
    """Return a directory with a torch that runs this code when it is imported."""
    own = folder / "own" / "torch"
    (own / "distributed").mkdir(parents=True)
    (own / "version.py").write_text("__version__ = '2.13.0'\n")
    (own / "__init__.py").write_text(code + "\n")
    (own / "distributed" / "__init__.py").touch()
    return own.parent


def reason(node: Node) -> str:
    """Return why the ranks are started cold."""
    text: str = node.wait_for(messages.COLD)["reason"]
    return text


# ---- what a rank is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "with_stacks"),
    [(ProgramKind.SCRIPT, "./train.py", False), (ProgramKind.MODULE, "train", True)],
)
def test_a_script_notices_nothing(
    nodes: Nodes, tmp_path: Path, kind: ProgramKind, name: str, *, with_stacks: bool
) -> None:
    told = []
    for how in ("warm", "cold"):
        node = start(nodes, tmp_path, TELLS, *NASTY, how=how, kind=kind, name=name, with_stacks=with_stacks)
        assert node.wait_for_exits() == {0: (0, None)}, str(node)
        assert not node.find(messages.COLD)
        text = node.output[0, STDOUT].decode().replace(node.mark, "MARK").replace(str(node.folder), "FOLDER")
        text = re.sub(r" at 0x\w+", "", text.replace(str(node.home.parent), "NODE"))
        found = json.loads(text)
        armed = [entry for entry in found["path"] if "stacks-" in entry]
        assert armed == []
        found["env"]["PYTHONPATH"] = found["env"]["PYTHONPATH"].split(":")[-1]  # before it, a folder with a random name
        del found["env"]["MASTER_PORT"]
        if not with_stacks:  # a module that is loading must stay in sys.modules
            found["modules"] = []
        told.append(found)
        assert node.stop() == []
    warm, cold = told
    assert warm.pop("env").items() ^ cold.pop("env").items() == {  # which torchrun sets, too
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"), ("TORCHELASTIC_ERROR_FILE", "FOLDER/error.0.json"),
    }  # fmt: skip
    assert warm == cold


ENDS = """
import atexit, os, sys
def load():
    raise ValueError("no data")
rank = int(os.environ["RANK"])
if rank == 0:
    raise SystemExit(3)
if rank == 1:
    sys.exit("no data")
if rank == 2:
    load()
if rank == 3:
    os.kill(os.getpid(), 9)
if rank == 4:
    raise KeyboardInterrupt
atexit.register(print, "last words")
"""


@pytest.mark.parametrize(
    ("code", "endings"),
    [(ENDS, [(3, None), (1, None), (1, None), (None, 9), (None, 2), (0, None)]), ("train(1,", [(1, None)])],
)
def test_it_ends_as_it_would(
    nodes: Nodes, tmp_path: Path, code: str, endings: list[tuple[int | None, int | None]]
) -> None:
    """With the same exit code or signal, and the same words: no line of a traceback is of another file."""
    ranks, said = range(len(endings)), []
    for how in ("warm", "cold"):
        node = start(nodes, tmp_path, code, nproc=len(endings), how=how)
        assert node.wait_for_exits(len(endings)) == dict(enumerate(endings)), str(node)
        assert node.wait_for(messages.ENDED)
        said.append([bytes(node.output[rank, stream]) for rank in ranks for stream in (STDOUT, STDERR)])
        assert node.stop() == []
    assert said[0] == said[1]


def test_ranks_draw_different_numbers(nodes: Nodes, tmp_path: Path, old_python: str) -> None:
    """Also in another Python than the supervisor's."""
    node = start(nodes, tmp_path, "import random; print(random.random())", nproc=2, python=old_python)
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}
    assert not node.find(messages.COLD)
    assert node.output[0, STDOUT] != node.output[1, STDOUT]
    assert node.stop() == []


def test_a_sitecustomize_of_the_user_is_run_in_each_rank(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import os\nMY_RANK = os.environ['RANK']\n")
    path = f"{tmp_path / 'own'}:{STAND_IN}"
    node = start(
        nodes, tmp_path, "import sitecustomize; print(sitecustomize.MY_RANK)", nproc=2, env={"PYTHONPATH": path}
    )
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}, str(node)
    assert node.output[0, STDOUT] == b"0\n"
    assert node.output[1, STDOUT] == b"1\n"
    assert node.stop() == []


@pytest.mark.parametrize("module", ["launcher", "json"])
def test_a_module_of_the_user_named_as_one_of_ours_is_theirs(nodes: Nodes, tmp_path: Path, module: str) -> None:
    """Unless it stands beside the script, and a module of that name was imported before: then they start cold."""
    (tmp_path / f"{module}.py").write_text("WORD = 'mine'\n")
    node = start(nodes, tmp_path, f"import {module}; print({module}.WORD)")
    assert node.wait_for_exits() == {0: (0, None)}, str(node)
    assert node.output[0, STDOUT] == b"mine\n"
    told = [message["reason"] for message in node.find(messages.COLD)]
    assert told == ([f"{tmp_path}/json.py hides a module that torch has imported"] if module == "json" else [])
    assert node.stop() == []


REAL = """
import os
import numpy, torch
import torch.distributed as dist
drawn = torch.initial_seed(), numpy.random.rand()
dist.init_process_group("gloo")
number = torch.ones(1)
dist.all_reduce(number)
torch.manual_seed(1)
blas = numpy.ones((300, 300)) @ numpy.ones((300, 300))
print(number.item(), torch.get_num_threads(), torch.rand(1).item(), blas[0, 0])
print(*drawn, file=__import__("sys").stderr)
dist.destroy_process_group()
"""
SPAWNS = """
import multiprocessing, os, sys
def work(queue):
    queue.put([os.environ["RANK"], "torch" in sys.modules, sys.argv])
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    worker = context.Process(target=work, args=(queue,))
    worker.start()
    print(queue.get())
    worker.join()
"""


def test_real_ranks_compute_the_same(nodes: Nodes, tmp_path: Path) -> None:
    """Two threads each, although the Python that forks them must have one; and no two draw the same numbers."""
    pytest.importorskip("torch", reason="no torch: pip install torch")
    node = start(nodes, tmp_path, REAL, nproc=2, torch=None, env={"OMP_NUM_THREADS": "2"})
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}, str(node)
    assert not node.find(messages.COLD)
    drawn = [bytes(node.output[rank, STDERR]).split() for rank in (0, 1)]
    assert not {*drawn[0]} & {*drawn[1]}, drawn
    assert node.output[0, STDOUT] == node.output[1, STDOUT] == b"2.0 2 0.7576315999031067 300.0\n"
    assert node.stop() == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_of_a_rank_is_one_of_its_own(nodes: Nodes, tmp_path: Path, method: str) -> None:
    """As of a data loader: it finds the script again, and imports torch itself unless it is a fork."""
    node = start(nodes, tmp_path, SPAWNS, method, nproc=2, env={"TMPDIR": "/tmp"})  # for the path of a socket
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}, str(node)
    for rank in (0, 1):
        assert node.output[rank, STDOUT].decode() == f"{[str(rank), method == 'fork', ['train.py', method]]}\n"
    assert node.stop() == []


def test_what_torch_does_while_it_is_imported_is_kept(nodes: Nodes, tmp_path: Path) -> None:
    """It sets a variable, starts a Python, which must not become a warm one, and blocks what tells of ranks' ends."""
    (tmp_path / "probe.py").write_text(f"import os; os.mkdir({str(tmp_path / 'probed')!r})\n")  # works once
    torch = f"""
import os, signal, subprocess, sys
os.environ["SET_BY_TORCH"] = "1"
subprocess.run([sys.executable, {str(tmp_path / "probe.py")!r}], check=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
"""
    env = {"PYTHONWARNINGS": "error"}
    code = "import os; print(os.environ['SET_BY_TORCH'])"
    node = start(nodes, tmp_path, code, nproc=2, torch=write_torch(tmp_path, torch), env=env)
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}, str(node)
    assert not node.find(messages.COLD)
    assert [bytes(node.output[rank, stream]) for rank in (0, 1) for stream in (STDOUT, STDERR)] == [b"1\n", b""] * 2
    assert not node.output[None, STDERR]
    assert node.stop() == []


# ---- what speaks against it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "late", "told"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(300,), daemon=True).start()", {},
         "importing torch starts threads (python)"),
        ("raise OSError('libcudart.so.13: cannot open shared object file')", {},
         "torch can't be imported: OSError: libcudart.so.13: cannot open shared object file"),
        ("import os; os._exit(7)", {}, "the Python that imports torch has ended"),
        ("import colorsys", {}, "{folder}/colorsys.py hides a module that torch has imported"),
        ("", {"OMP_NUM_THREADS": "77"}, "OMP_NUM_THREADS was set after torch was imported"),
    ],
)  # fmt: skip
def test_then_the_shim_starts_the_ranks(
    nodes: Nodes, tmp_path: Path, torch: str, late: dict[str, str], told: str
) -> None:
    own = write_torch(tmp_path, torch)
    (tmp_path / "colorsys.py").write_text("print('mine')\n")
    node = start(nodes, tmp_path, "import colorsys", nproc=2, torch=own, late=late)
    assert reason(node) == told.format(folder=tmp_path), str(node)
    assert node.wait_for_exits(2) == {0: (0, None), 1: (0, None)}, str(node)
    assert node.output[1, STDOUT] == b"mine\n"
    assert node.stop() == []


def test_a_python_that_ignores_the_path_is_not_given_the_script(nodes: Nodes, tmp_path: Path) -> None:
    """It would run it at once, before the checks, with no rank."""
    (tmp_path / "torch" / "torch").mkdir(parents=True)
    (tmp_path / "torch" / "torch" / "version.py").write_text("__version__ = '2.13.0'\n")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec env PYTHONPATH={tmp_path / "torch"} {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    node = nodes.start()
    node.prepare(facts=True, warm=True, plain=True, workdir=str(tmp_path), pythons=[str(wrapper)])
    facts = read_facts(node.wait_for(messages.FACTS), str(node.folder))
    assert not facts.python_is_warmable
    job = Job(Program(ProgramKind.SCRIPT, "train.py"), 1, cpu=True, workdir=str(tmp_path), start="warm", master_port=1)
    assert warm_fields(job, Host("here"), facts) is None
    (tmp_path / "train.py").write_text("import os; print(os.environ['RANK'])")
    node.send(messages.START, **start_fields(build_plan(job, [Host("here")], [facts]).nodes[0]))
    assert reason(node) == "its Python ignores PYTHONPATH"
    assert node.wait_for_exits() == {0: (0, None)}, str(node)
    assert node.stop() == []


# ---- the end --------------------------------------------------------------------------------------------------------


def test_if_the_warm_python_is_killed_so_are_its_ranks(nodes: Nodes, tmp_path: Path) -> None:
    node = start(nodes, tmp_path, WAITS, nproc=2)
    for rank in (0, 1):
        node.wait_for_output("ready", rank)
    assert read_parent(node.pid_of(0)) == read_parent(node.pid_of(1))
    os.kill(read_parent(node.pid_of(0)), signal.SIGKILL)
    assert node.wait_for_exits(2) == {0: (None, 9), 1: (None, 9)}
    assert node.stop() == []


def test_an_import_that_hangs_ends_the_run(nodes: Nodes, tmp_path: Path) -> None:
    own = write_torch(tmp_path, "import time; time.sleep(300)")
    node = start(nodes, tmp_path, WAITS, torch=own, import_timeout_s=0.1)
    assert (
        node.wait_for(messages.FAILED)["text"]
        == "the Python that imports torch has not answered for 0.1 s (--rdzv-timeout)"
    )
    assert node.stop() == []


def test_a_stop_before_the_start_leaves_nothing(nodes: Nodes, tmp_path: Path) -> None:
    """While torch is imported, and while an order waits for that."""
    own = write_torch(tmp_path, f"open({str(tmp_path / 'begun')!r}, 'w'); import time; time.sleep(300)")
    node = start(nodes, tmp_path, WAITS, torch=own)
    node.wait_until((tmp_path / "begun").exists)
    assert node.stop(timeout_s=NEVER_S) == []
    assert not node.find(messages.STARTED)
