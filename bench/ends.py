"""Measure how soon a run on two hosts with two ranks each is over once it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench.farm import Farm, farm
from bench.timing import Row, median
from bench.ways import LAUNCH

RANKS = 4
STOP_TIMEOUT_S = 0.5
OBEYS = "echo pid $$; exec sleep 600"
IGNORES = "trap '' TERM; echo pid $$; while :; do sleep 600; done"
POLL_S = 0.005


def ends() -> list[Row]:
    """Measure the time from Ctrl-C, and from the launcher's death, until no rank is left."""
    with farm(2) as hosts:
        asked, killed, forced = median(
            5,
            lambda: _end(hosts, OBEYS, signal.SIGINT),
            lambda: _end(hosts, OBEYS, signal.SIGKILL),
            lambda: _end(hosts, IGNORES, signal.SIGINT) - STOP_TIMEOUT_S,
        )
    return [
        Row("Ctrl-C, ranks that obey", asked, "s", 1.5, "until launch ends, median of 5"),
        Row("launch killed, ranks that obey", killed, "s", 1.5, "until the last rank ends"),
        Row("Ctrl-C, ranks that ignore SIGTERM", forced, "s", 5, "beyond --stop-timeout"),
    ]


def _end(hosts: Farm, script: str, number: signal.Signals) -> float:
    """Start a run, send the launcher a signal, and return the seconds until it and all ranks have ended."""
    with tempfile.TemporaryDirectory() as logs:
        argv = [*LAUNCH, "--ssh-config", hosts.ssh_config, "--hosts", ",".join(hosts.names), "--nproc", "2", "--cpu"]
        argv += ["--workdir", "/", "--log-dir", logs, "--stop-timeout", str(STOP_TIMEOUT_S)]
        argv += ["--no-python", "sh", "-c", script]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        with process.stdout as stdout:
            pids = [int(stdout.readline().rpartition(b" ")[2]) for _ in range(RANKS)]
            started = time.monotonic()
            os.kill(process.pid, number)
            process.wait()
            while any(Path(f"/proc/{pid}").exists() for pid in pids):
                time.sleep(POLL_S)
            return time.monotonic() - started
