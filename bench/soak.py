"""python -m bench soak [--runs N] [--seed S] [--detach] [--warm]: one run on 4 hosts that fails N times.

With --detach, the first host controls the run, and the others are reached through agents. After each fault the run
must come back, and at the end nothing of it may be left. The launcher's memory, threads and descriptors must not grow.
The seed decides on the faults, but not on their exact times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machines.processes import Process, read_name, read_parent

from bench.lab import Lab, lab

HOSTS = 4
PATIENCE_S = 60.0
SILENCE_S = 2.0
MOST_GROWTH_MIB = 8.0
MOST_MORE_THREADS = min(32, (os.cpu_count() or 1) + 4)  # the pool of asyncio.to_thread, which fills up slowly
_SAMPLES = 10  # at the start and at the end

# Pauses that don't grow, also in what travels to a controller: hundreds of failures would take hours.
HURRY = r"""\
import re
from launcher.runs import policy
from launcher.transports import archives
policy.FIRST_PAUSE_S = policy.LONGEST_PAUSE_S = 0.05
read_package = archives.read_package
pauses = re.compile(rb"^((?:FIRST|LONGEST)_PAUSE_S) = .*", re.MULTILINE)
def read_hurried(*prefixes):
    files = read_package(*prefixes)
    name = "launcher/runs/policy.py"
    if name in files:
        files[name] = pauses.sub(rb"\1 = 0.05", files[name])
    return files
archives.read_package = read_hurried
"""
_DRIVER = f"{HURRY}from launcher.cli.main import main\nmain()\n"
_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_RANK = "soak-rank"
_SCRIPT = f"""\
import os, time
with open("/proc/self/comm", "w") as file:
    file.write("{_RANK}")
print("ready", os.environ["LAUNCH_ATTEMPT"], flush=True)
time.sleep(600)
"""
# Above a rank: the shim or the warm Python, the supervisor, the guardian, and the sshd of the login, or the agent.
_SUPERVISOR, _GUARDIAN, _SESSION = 2, 3, 4


def main(words: list[str]) -> int:
    """Soak, print what was seen, and return 1 if something is left or has grown."""
    parser = argparse.ArgumentParser(prog="python -m bench soak")
    parser.add_argument("--runs", type=int, default=200, help="number of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args(words)
    with lab(HOSTS) as hosts, tempfile.TemporaryDirectory(prefix="bench-soak-") as folder:
        kind = DetachedSoak if options.detach else Soak
        return kind(hosts, Path(folder), random.Random(options.seed), is_warm=options.warm).run(options.runs)


class Soak:
    """One launcher, the faults that it meets, and what it costs after each."""

    words: tuple[str, ...] = ()

    def __init__(self, hosts: Lab, folder: Path, chance: random.Random, *, is_warm: bool) -> None:
        self._hosts = hosts
        self._is_warm = is_warm
        self._logs = folder / "logs"
        self._environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self._chance = chance
        self._errors = folder / "stderr"
        self._output = folder / "stdout"
        self._samples: list[tuple[float, int, int]] = []  # MiB, threads, descriptors
        self._last_signals: set[int] = set()  # the last failure of a rank by itself is one of these
        script = folder / "rank.py"
        script.write_text(_SCRIPT)
        argv = ["--ssh-config", hosts.cluster.ssh_config, "--hosts", ",".join(hosts.names), "--nproc", "1", "--cpu"]
        argv += [*self.words, *(("--start", "warm", "--python", sys.executable) if is_warm else ("--no-python",))]
        argv += ["--silence", f"{SILENCE_S:g}", "--stop-timeout", "0.5", "--restarts", "1000000", "--workdir", "/"]
        argv += ["--log-dir", self._logs, *([] if is_warm else [sys.executable]), script]
        with self._errors.open("wb") as errors, self._output.open("wb") as output:
            self._launch = subprocess.Popen(
                [sys.executable, "-c", _DRIVER, *argv], stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                env=self._environment,
            )  # fmt: skip

    def run(self, faults: int) -> int:
        """Cause the faults one after the other; return the exit code."""
        try:
            self._cause(faults)
        finally:  # also if the run has not come back: it would be started again for ever
            code = self._stop()
        complaints = [*self._find_left(), *self._find_growth()]
        if code != 128 + signal.SIGINT:
            complaints.append(f"exit code {code}")
        for line in complaints or ["nothing is left, and nothing has grown"]:
            print(f"soak: {line}")
        return 1 if complaints else 0

    def _cause(self, faults: int) -> None:
        kinds = [
            self._end_rank, self._kill_supervisor, self._kill_guardian, self._kill_both, self._cut, self._freeze,
            *([self._kill_starter] if self._is_warm else []),
        ]  # fmt: skip
        number = 0
        for fault in range(faults):
            number = self._await_attempt(number)
            self._samples.append(self._measure())
            said = self._chance.choice(kinds)()
            print(f"soak: {fault + 1} of {faults}: attempt {number}: {said}", flush=True)
            number += 1
        self._await_attempt(number)

    # ---- what differs for a run that a host controls ----------------------------------------------------------------

    def _read_output(self) -> str:
        return self._output.read_text()

    def _read_messages(self) -> str:
        return self._errors.read_text()

    def _find_pid(self) -> int:
        return self._launch.pid

    def _is_over(self) -> bool:
        return self._launch.poll() is not None

    def _stop(self) -> int:
        self._launch.send_signal(signal.SIGINT)
        return self._launch.wait(PATIENCE_S)

    def _await_attempt(self, least: int) -> int:
        """Wait until all ranks of an attempt with this number or a higher one are ready; return its number."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self._is_over():
            found = [int(each) for each in re.findall(r"ready (\d+)", self._read_output())]
            if found and max(found) >= least and found.count(max(found)) == HOSTS:
                return max(found)
            time.sleep(0.05)
        raise SystemExit(f"soak: the run did not come back:\n{self._read_messages()[-3000:]}")

    def _measure(self) -> tuple[float, int, int]:
        pid = self._find_pid()
        status = Path(f"/proc/{pid}/status").read_text()
        memory, threads = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) for name in ("VmRSS", "Threads"))
        return memory / 1024, threads, len(list(Path(f"/proc/{pid}/fd").iterdir()))

    # ---- faults -------------------------------------------------------------------------------------------------

    def _end_rank(self) -> str:
        """Not in the same way as the rank before: the same failure twice without progress ends a run."""
        number = self._chance.choice([each for each in _SIGNALS if each not in self._last_signals])
        self._last_signals = {number}
        os.kill(self._pick_rank(), number)
        return f"{number.name} to a rank"

    def _kill_supervisor(self) -> str:
        os.kill(_ancestor(self._pick_rank(), _SUPERVISOR), signal.SIGKILL)
        return "a supervisor is killed"

    def _kill_guardian(self) -> str:
        os.kill(_ancestor(self._pick_rank(), _GUARDIAN), signal.SIGKILL)
        return "a guardian is killed"

    def _kill_both(self) -> str:
        rank = self._pick_rank()
        for pid in [_ancestor(rank, level) for level in (_GUARDIAN, _SUPERVISOR)]:
            os.kill(pid, signal.SIGKILL)
        return "guardian and supervisor are killed"

    def _cut(self) -> str:
        os.kill(_ancestor(self._pick_rank(), _SESSION), signal.SIGKILL)
        return "a connection breaks, or an agent is killed"

    def _freeze(self) -> str:
        pid = _ancestor(self._pick_rank(), _SESSION)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(SILENCE_S + 2)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return "a connection is silent"

    def _kill_starter(self) -> str:
        """Its rank is then killed by the kernel."""
        if signal.SIGKILL in self._last_signals:
            return self._end_rank()
        self._last_signals = {signal.SIGKILL}
        os.kill(_ancestor(self._pick_rank(), 1), signal.SIGKILL)
        return "the Python that has forked a rank is killed"

    def _pick_rank(self) -> int:
        return self._chance.choice(sorted(pid for pid in self._ours() if read_name(pid) == _RANK))

    def _ours(self) -> list[int]:
        """Return the processes that have this run's mark."""
        mark = f"LAUNCH_MARK={self._run_id}.".encode()
        return [pid for host in self._hosts.hosts for pid in host.pids() if mark in _read(pid, "environ")]

    @property
    def _run_id(self) -> str:
        return (self._logs / "latest").readlink().name

    # ---- the end ------------------------------------------------------------------------------------------------

    def _find_left(self) -> list[str]:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and (self._processes() or self._folders()):
            time.sleep(0.1)
        return [f"left: {each}" for each in (*self._processes(), *self._folders())]

    def _processes(self) -> list[Process]:
        return [process for host in self._hosts.hosts for process in host.processes()]

    def _folders(self) -> list[Path]:
        return [found for host in self._hosts.hosts for found in host.tmpdir.glob(f"launch-{self._run_id}-*")]

    def _find_growth(self) -> list[str]:
        first, last = (
            [statistics.median(values) for values in zip(*part, strict=True)]
            for part in (self._samples[1 : 1 + _SAMPLES], self._samples[-_SAMPLES:])
        )
        memory, threads, descriptors = (round(after - before, 1) for before, after in zip(first, last, strict=True))
        print(f"soak: memory {first[0]:.1f} to {last[0]:.1f} MiB, threads {first[1]:g} to {last[1]:g}, "
              f"descriptors {first[2]:g} to {last[2]:g}")  # fmt: skip
        complaints = [f"memory has grown by {memory} MiB"] if memory > MOST_GROWTH_MIB else []
        complaints += [f"{threads:g} threads more"] if threads > MOST_MORE_THREADS else []
        return complaints + ([f"{descriptors:g} descriptors more"] if descriptors > 0 else [])


class DetachedSoak(Soak):
    """A controller on the first host; the other hosts are reached through agents."""

    words = ("--detach",)

    def __init__(self, hosts: Lab, folder: Path, chance: random.Random, *, is_warm: bool) -> None:
        super().__init__(hosts, folder, chance, is_warm=is_warm)
        self._logs = hosts.hosts[0].folder / "home" / ".local" / "state" / "launch" / "logs"
        if self._launch.wait(PATIENCE_S):
            raise SystemExit(self._errors.read_text())
        self._id = (self._logs / "latest").readlink().name

    @property
    def _run_id(self) -> str:
        return self._id

    def _read_output(self) -> str:
        return "".join(path.read_text() for path in (self._logs / self._id).glob("node_*.log"))

    def _read_messages(self) -> str:
        return (self._logs / self._id / "launch.log").read_text()

    def _find_pid(self) -> int:
        (row,) = (row for row in json.loads(self._ask("ps", "--json").stdout) if row["run"] == self._id)
        own = re.compile(rf"^NSpid:.*\b{row['pid']}$", re.MULTILINE)  # in the numbering of its host
        return next(pid for pid in self._hosts.hosts[0].pids() if own.search(_read(pid, "status").decode()))

    def _is_over(self) -> bool:
        return not self._ours() and not (self._logs / self._id).exists()

    def _stop(self) -> int:
        self._ask("stop", self._id)
        return self._ask("wait", self._id).returncode

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", _DRIVER, *words]
        return subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=False)


def _ancestor(pid: int, level: int) -> int:
    for _ in range(level):
        pid = read_parent(pid)
    return pid


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
