"""A restart after ranks that take long to die, as while the driver frees the memory of a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S
from machines.processes import wait_until
from test_census import TRACER

DIES_S = 12.0  # longer than what can't be killed is waited for otherwise, with the way to the launcher and back
DEVICES = """
set -e
mount -t tmpfs dev dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom dev/
mkdir dev/shm
touch dev/nvidiactl dev/nvidia0
mount --move dev /dev
exec "$@"
"""
# What it forks is the first process of a PID namespace, which exits only once all others there are reaped.
RANK = """
import ctypes, os, sys, time
if os.environ["LAUNCH_ATTEMPT"] == "1":
    print("again")
    sys.exit(0)
ctypes.CDLL(None).unshare(0x20000000)  # CLONE_NEWPID
first = os.fork()
if first == 0:
    device = open("/dev/nvidia0")
    os.fork()
    time.sleep(600)
children = "/proc/%d/task/%d/children" % (first, first)
while not open(children).read():
    time.sleep(0.01)
with open("child.new", "w") as file:
    file.write(open(children).read())
os.rename("child.new", "child")
while not os.path.exists("traced"):
    time.sleep(0.01)
sys.exit("a rank fails")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it makes namespaces, and traces a process")
def test_a_run_is_restarted_once_its_gpus_are_free(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "rank.py").write_text(RANK)
    options = ("--nproc", "1", "--cpu", "--restarts", "1", "--stop-timeout", "0", "--no-python")
    argv = ["unshare", "--mount", "sh", "-c", DEVICES, "sh", sys.executable, "-m", "launcher", "singlenode"]
    pipe = subprocess.PIPE
    argv += [*options, sys.executable, "rank.py"]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=pipe, stderr=subprocess.STDOUT, text=True) as run:
        assert wait_until((tmp_path / "child").exists)
        child = (tmp_path / "child").read_text().strip()
        with subprocess.Popen([sys.executable, "-c", TRACER, child], stdin=pipe, stdout=pipe, text=True) as tracer:
            assert tracer.stdin is not None and tracer.stdout is not None
            assert tracer.stdout.readline() == "traces\n"
            (tmp_path / "traced").touch()
            until = time.monotonic() + DIES_S
            assert wait_until(lambda: run.poll() is not None or time.monotonic() > until)
            assert run.poll() is None, run.stdout and run.stdout.read()
            tracer.stdin.close()
        said, _ = run.communicate(timeout=DEADLINE_S)
        assert run.returncode == 0, said
    assert "still running" not in said
    assert "again" in said
    assert "0 processes left on 1 host; restarting" in said
