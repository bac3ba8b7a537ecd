"""Real torch on two SSH hosts: a few runs, since each takes the seconds that two imports of torch take."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import Launch
from machines.patience import NEVER_S
from machines.processes import wait_until
from ssh_hosts import SshHosts

if find_spec("torch") is None:  # importing it would take the other tests a second
    pytest.skip("no torch: pip install torch==2.13.0", allow_module_level=True)

ONE_EACH = ("--nproc", "1")
LONG_STOP = ("--stop-timeout", f"{NEVER_S:g}")

# One rank of all raises after the first all-reduce; the others meet its closed connections.
RAISE = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(1)
dist.all_reduce(ones)
print("sum", int(ones), "of", dist.get_world_size(), flush=True)
if rank == 1:
    dist.destroy_process_group()  # at exit its thread may abort the process, once in some hundred times
    raise ValueError("the optimizer met a NaN")
dist.all_reduce(ones)
"""

# Saves on SIGTERM while its loader has two workers; a worker that dies first would make that impossible.
SAVE = """
import os, signal, sys
from torch.utils.data import DataLoader
is_asked_to_stop = False
def stop(number, frame):
    global is_asked_to_stop
    is_asked_to_stop = True
signal.signal(signal.SIGTERM, stop)
rank = os.environ["RANK"]
step = 0
while True:
    for batch in DataLoader(range(1000), batch_size=1, num_workers=2):
        step += 1
        if step == 5:
            print("ready", flush=True)
        if is_asked_to_stop:
            for _, batch in zip(range(3), DataLoader(range(3), num_workers=1)):
                pass  # the validation before a checkpoint: its loader starts workers as well
            open(f"saved.{rank}", "w").write(str(step))
            print("saved at step", step, flush=True)
            sys.exit(0)
"""


def test_a_rank_raises(launch: Launch) -> None:
    (launch.folder / "train.py").write_text(RAISE)
    done = launch.run(*ONE_EACH, "train.py")
    assert done.exit_code == 1
    assert "[node1:0] sum 2 of 2" in done.lines
    assert "launch: node2 rank 1 failed first (exit code 1), stopping the run on 2 hosts" in done.words
    start = done.words.index("  node2 rank 1 (local rank 0) at HH:MM:SS:")
    assert done.words[start + 1 : start + 4] == [
        f'    File "{launch.folder}/train.py", line 12, in <module>',
        '      raise ValueError("the optimizer met a NaN")',
        "    ValueError: the optimizer met a NaN",
    ]
    assert done.words[-1] == "launch: 0 processes left on 2 hosts, exit code 1 (launch report RUN)"


def test_a_rank_raises_where_there_is_no_torchrun(launch: Launch, hosts: SshHosts) -> None:
    code = "import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    code += "if os.environ['RANK'] == '2': raise ValueError('the optimizer met a NaN')\ntime.sleep(300)\n"
    (launch.folder / "train.py").write_text(code)
    running = launch.start("--start=plain", "train.py")
    running.wait_for("] ready", 4)
    keepers = {process.pid for process in hosts.processes() if process.is_keeper}
    assert [process.parent in keepers for host in hosts for process in host.ranks()] == [True] * 4
    running.go()
    done = running.finish()
    assert done.exit_code == 1
    assert "launch: node2 rank 2 failed first (exit code 1), stopping the run on 2 hosts" in done.words
    assert "    ValueError: the optimizer met a NaN" in done.words
    assert done.words[-1] == "launch: 0 processes left on 2 hosts, exit code 1 (launch report RUN)"


def test_torchrun_is_killed(launch: Launch, hosts: SshHosts) -> None:
    (launch.folder / "train.py").write_text("import time; print('ready', flush=True); time.sleep(300)")
    running = launch.start(*ONE_EACH, "--hosts", "node2", "train.py")
    running.wait_for("] ready")
    hosts["node2"].torchrun().kill()
    done = running.finish()
    assert done.exit_code == 128 + signal.SIGKILL
    assert "launch: node2 torchrun failed first (killed by SIGKILL), stopping the run on 1 host" in done.words
    assert done.words[-1] == "launch: 0 processes left on 1 host, exit code 137 (launch report RUN)"


def test_a_trainer_with_loader_workers_saves(launch: Launch) -> None:
    (launch.folder / "train.py").write_text(SAVE)
    running = launch.start(*ONE_EACH, "--hosts", "node2", *LONG_STOP, "train.py")
    running.wait_for("] ready")
    running.signal(signal.SIGINT)
    done = running.finish()
    assert done.exit_code == 130
    step = int((launch.folder / "saved.0").read_text())
    assert f"[node2:0] saved at step {step}" in done.lines
    assert "DataLoader worker" not in done.stderr


def test_the_built_in_trainer(launch: Launch) -> None:
    """Without torchrun, whose imports would take half of the time; two nodes share these cores."""
    done = launch.run(*ONE_EACH, "--start=plain", "--env", "OMP_NUM_THREADS=1")
    assert done.exit_code == 0
    assert f"launch: no script given; the built-in trainer writes to outputs/{done.run_id}" in done.stderr.splitlines()
    assert "[node1:0] ranks   2, from torchrun" in done.lines
    assert f"[node1:0] saves   outputs/{done.run_id}" in done.lines
    first, *_, last = (float(value) for value in re.findall(r"loss (\d\.\d+)", done.stdout))
    assert last < first / 1.5
    assert done.words[-1] == "launch: finished in N s, 2 ranks succeeded, 0 processes left on 2 hosts"


# On the path of the trainer's Python: the first attempt waits there, once it has saved step 40, until it is killed.
HOLD = """
import glob, os, signal
fsync = os.fsync
def hold(file):
    while os.environ.get("LAUNCH_ATTEMPT") == "0" and glob.glob("outputs/*/checkpoints/step_40"):
        signal.pause()
    fsync(file)
os.fsync = hold
"""


def test_a_rank_is_killed_and_the_training_goes_on(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOLD)
    shape = ("--layers", "1", "--dim", "32", "--context", "16", "--global-batch", "8")
    train = ("-m", "launcher.trainer", *shape, "--steps-per-epoch", "60", "--save-every", "10", "--log-every", "10")
    env = ("--env", "OMP_NUM_THREADS=1", "--env", f"PYTHONPATH={tmp_path}")
    running = launch.start(*ONE_EACH, "--hosts", "node2", *env, "--restarts", "1", *train)
    running.wait_for("step 40 ")
    torchrun = launch.hosts["node2"].torchrun()
    rank = next(process for process in launch.hosts["node2"].ranks() if process.parent == torchrun.pid)
    os.kill(rank.pid, signal.SIGKILL)
    done = running.finish()
    assert done.exit_code == 0, done
    assert ", 2 attempts (a rank failed), 1 rank succeeded, " in done.words[-1]
    assert any(re.match(r"\[node2:0\] resume  outputs/\S+/checkpoints/step_\d0, ", line) for line in done.lines)


# On the path of torchrun's Python: it imports torchrun only once the test says go.
GATE = """
import sys, time
from pathlib import Path
class Gate:
    @staticmethod
    def find_spec(name, path=None, target=None):
        while name == "torch.distributed.run" and not Path(__file__).with_name("go").exists():
            time.sleep(0.01)
sys.meta_path.insert(0, Gate)
"""


def binds(sock: socket.socket, port: int) -> bool:
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_a_port_that_somebody_takes_in_between_is_replaced(launch: Launch, tmp_path: Path) -> None:
    """We hold it without listening, so a stranger that listens there is faster than torchrun."""
    (tmp_path / "sitecustomize.py").write_text(GATE)
    (launch.folder / "train.py").write_text("import os; print('port', os.environ['MASTER_PORT'])")
    running = launch.start(*ONE_EACH, "--hosts", "node1", "--env", f"PYTHONPATH={tmp_path}", "train.py")
    running.wait_for("launch: checked")
    record = launch.folder / "logs" / "latest" / "run.json"
    wait_until(lambda: record.exists() and "master_port" in record.read_text())
    port = json.loads(record.read_text())["plan"]["master_port"]
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        assert wait_until(lambda: binds(stranger, port)), "the neighbours' probe still listens there"
        stranger.listen()
        (tmp_path / "go").touch()
        done = running.finish()
    assert done.exit_code == 0
    assert f"launch: port {port} of node 0 was taken by another program; retrying on another" in done.stderr
    assert done.record["plan"]["master_port"] != port
    assert {line.split("port ")[1] for line in done.lines} == {str(done.record["plan"]["master_port"])}
