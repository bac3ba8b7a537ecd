"""Which processes are a run's: each sign alone is enough, and nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from machines.processes import is_alive, read_state, send_signal
from node_process import wait_until

from launcher.node.processes import proc
from launcher.node.processes.proc import MARK, read_process
from launcher.node.processes.run_processes import RunProcesses

MARKED = f"census-test.{os.getpid()}"
SLEEP = "sleep 300"

Start = Callable[..., list[int]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a shell script in a session of its own that prints process ids, the last of which becomes `program`."""
    with ExitStack() as ends:

        def start(script: str, *, mark: str | None = None, count: int = 0, program: str = SLEEP) -> list[int]:
            env = {"PATH": os.defpath, **({MARK: mark} if mark else {})}
            argv = ["/bin/sh", "-c", script]
            shell = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, start_new_session=True)
            assert shell.stdout
            pids = [shell.pid, *(int(shell.stdout.readline()) for _ in range(count))]
            ends.callback(end, shell, pids)
            command_line = Path(f"/proc/{pids[-1]}/cmdline")  # it is empty during an exec, as the environment is
            wait_until(lambda: command_line.read_text().replace("\0", " ").startswith(program))
            return pids

        yield start


def end(shell: subprocess.Popen[bytes], pids: list[int]) -> None:
    for pid in filter(is_alive, pids):
        send_signal(pid, signal.SIGKILL)  # it may end with the one before it
    shell.wait()
    assert shell.stdout
    shell.stdout.close()


def find(owned: RunProcesses) -> set[int]:
    return {process.pid for process in owned.living()}


def kill_and_reap(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# ---- the signs ------------------------------------------------------------------------------------------------------


def test_the_mark_alone(start: Start) -> None:
    [pid] = start(f"exec {SLEEP}", mark=MARKED)
    assert find(RunProcesses(MARKED)) == {pid}
    assert find(RunProcesses(MARKED[:-1])) == find(RunProcesses(MARKED + "0")) == set()


def test_a_mark_on_what_is_older_than_the_run_is_another_s(start: Start) -> None:
    [pid] = start(f"exec {SLEEP}", mark=MARKED)
    process = read_process(pid)
    assert process is not None
    for born, found in ((process.started, {pid}), (process.started + 1, set())):
        owned = RunProcesses(MARKED)
        owned.born = born
        assert find(owned) == found


def test_descent_alone(start: Start) -> None:
    """From a keeper, who is not counted, by way of a session of its own and without environment."""
    keeper, child, grandchild = start(
        f"env -i setsid sh -c 'echo $$; env -i setsid {SLEEP} & echo $!; wait' & wait", count=2
    )
    owned = RunProcesses("no such mark", [keeper])
    assert find(owned) == {child, grandchild}
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not is_alive(child))
    assert find(owned) == {grandchild}, "it was seen"


def test_descent_from_what_is_found_by_another_sign(start: Start) -> None:
    marked, child = start(f"env -i setsid {SLEEP} & echo $!; wait", mark=MARKED, count=1)
    assert find(RunProcesses(MARKED)) == {marked, child}


def test_nobody_without_a_sign(start: Start) -> None:
    start(f"{SLEEP} & echo $!; wait", count=1, mark=MARKED)
    assert find(RunProcesses("no such mark", [])) == set()


# ---- who is who -----------------------------------------------------------------------------------------------------


def test_a_zombie_is_not_counted(start: Start) -> None:
    keeper, child = start("sh -c 'echo $$' & exec sleep 300", count=1, program="")
    wait_until(lambda: read_state(child) == "Z")
    assert find(RunProcesses("no such mark", [keeper])) == set()


def test_another_process_of_that_number_gets_no_signal(start: Start) -> None:
    [pid] = start(f"exec {SLEEP}")
    process = read_process(pid)
    assert process is not None
    process.started -= 1  # the one that we knew is gone
    assert not proc.is_alive(process)
    proc.send_signal(process, signal.SIGKILL)
    assert is_alive(pid)
    process.started += 1
    kill_and_reap(pid)
    proc.send_signal(process, signal.SIGTERM)  # which is no error
    assert not proc.is_alive(process)


@pytest.mark.parametrize("name", ["a b", ") Z 1 1 1 (", "))", "ü" * 7, "\n"])
def test_a_name_of_any_kind(start: Start, tmp_path: Path, name: str) -> None:
    shutil.copy(shutil.which("sleep") or "", tmp_path / name)
    [pid] = start(f"cd '{tmp_path}'; exec './{name}' 300", mark=MARKED, program=f"./{name}")
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == name + "\n")
    process = read_process(pid)
    assert process is not None
    assert (process.name, process.ppid, process.session) == (name, os.getpid(), pid)
    assert find(RunProcesses(MARKED)) == {pid}


def test_a_process_reads_itself() -> None:
    process = read_process(os.getpid())
    assert process is not None
    assert (process.ppid, process.session, process.state) == (os.getppid(), os.getsid(0), "R")
    assert Path(f"/proc/{os.getpid()}/comm").read_text() == process.name + "\n"
    assert read_process(1 << 30) is None


HIDDEN_CHILD = """
import json, os, sys, time
from launcher.node.processes import run_processes, stop_steps
run_processes.become_subreaper()
stop_steps.CENSUS_S = 0.1
child = os.fork()
if child == 0:
    time.sleep(300)
os.setgroups([])  # the group of root may look
os.setgid(65534)
os.setuid(65534)
steps = stop_steps.stop_run(run_processes.RunProcesses("no such mark", [os.getpid()]), 0, lambda: None)
left = stop_steps.take_steps(steps, beat=lambda: None)
print(json.dumps([[process.pid == child, process.name, process.state] for process in left]), flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it makes a child another user's, and /proc hide it")
def test_a_child_that_is_another_user_s_and_hidden_is_counted() -> None:
    script = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", sys.executable, "-c"]
    done = subprocess.run([*argv, HIDDEN_CHILD], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, json.loads(done.stdout)) == ("", [[True, "?", "?"]])


SLOW_DEATH = """
import ctypes, json, os, sys, time
from launcher.node.processes import proc, run_processes, stop_steps
proc.CONTROL_DEVICES = (os.devnull,)
proc.GPU_DEVICES = (sys.argv[1],)
run_processes.become_subreaper()
ctypes.CDLL(None).unshare(0x20000000)  # CLONE_NEWPID
rank = os.fork()
if rank == 0:
    os.open(sys.argv[1] if sys.argv[2] == "on a GPU" else os.devnull, os.O_RDONLY)
    if os.fork() == 0:
        time.sleep(300)
    time.sleep(300)
children = "/proc/%d/task/%d/children" % (rank, rank)
while not open(children).read():
    time.sleep(0.01)
print(open(children).read(), flush=True)
sys.stdin.readline()
stop_steps.CENSUS_S, stop_steps._GPU_PAUSE_S = 0.5, 0.01
def beat():
    print("beat", flush=True)
stop_steps.BEAT_S = 0.01
steps = stop_steps.stop_run(run_processes.RunProcesses("no such mark", [os.getpid()]), 0, lambda: None)
left = stop_steps.take_steps(steps, beat)
print(json.dumps([process.pid == rank for process in left]), flush=True)
"""
# Holds a process as a debugger does: once killed it is a zombie that only this one can reap.
TRACER = """
import ctypes, os, sys
if ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0):  # PTRACE_SEIZE
    sys.exit("it can't be traced")
print("traces", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it makes a PID namespace, and traces a process in it")
@pytest.mark.parametrize("place", ["on a GPU", "on CPUs"])
def test_a_killed_process_that_had_a_gpu_open_may_take_long_to_die(tmp_path: Path, place: str) -> None:
    """As while the driver frees a GPU's memory.

    The first process of a PID namespace exits only once all others there are reaped. Like one that frees a GPU, it has
    no files and no memory any more meanwhile, and no signal ends it.
    """
    device = tmp_path / "nvidia0"
    device.touch()
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", SLOW_DEATH, str(device), place]
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as run:
        assert run.stdin is not None and run.stdout is not None
        child = run.stdout.readline().strip()
        with subprocess.Popen([sys.executable, "-c", TRACER, child], stdin=pipe, stdout=pipe, text=True) as tracer:
            assert tracer.stdin is not None and tracer.stdout is not None
            assert tracer.stdout.readline() == "traces\n"
            began_at = time.monotonic()
            run.stdin.write("stop\n")
            run.stdin.flush()
            if place == "on a GPU":
                while time.monotonic() < began_at + 1.5:  # three times as long as others are waited for
                    assert run.stdout.readline() == "beat\n"
                tracer.stdin.close()
            *_, left = run.stdout
            assert json.loads(left) == ([] if place == "on a GPU" else [True])
            tracer.stdin.close()


LONE_STARTER = """
import os, signal, sys, time
from launcher.node.processes import proc, run_processes, stop_steps
signal.signal(proc.HOLD, signal.SIG_IGN)
looks = []
class Counted(run_processes.RunProcesses):
    def living(self):
        looks.append(1)
        return super().living()
run_processes.become_subreaper()
starter = os.fork()
if starter == 0:
    time.sleep(300)
counted = Counted("no such mark", [os.getpid()])
counted.starter = proc.read_process(starter)
if sys.argv[1] == "ended":
    rank = os.fork()
    if rank == 0:
        time.sleep(300)
    counted.add_rank(0, proc.read_process(rank))
    os.kill(rank, 9)
    os.waitpid(rank, 0)
def remove_folder():
    print("removed while it lives:", proc.is_alive(counted.starter), flush=True)
    time.sleep(0.2)
stop_steps.CENSUS_S = 0.1
left = stop_steps.take_steps(stop_steps.stop_run(counted, 5.0, remove_folder), beat=lambda: None)
print(left, len(looks), flush=True)
"""


@pytest.mark.parametrize(("ranks", "lives"), [("ended", True), ("none", False)])
def test_a_starter_alone_is_ended_with_one_look_at_all_processes(ranks: str, lives: bool) -> None:
    """As when a command's ranks have ended: on a machine with many processes each look is expensive.

    It outlives the run's directory, however long the removal takes, unless it may still be about to start ranks there.
    """
    argv = [sys.executable, "-c", LONE_STARTER, ranks]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.stdout) == ("", f"removed while it lives: {lives}\n[] 1\n")
