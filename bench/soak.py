"""python -m bench soak [--runs N] [--seed S] [--detach [--reboots]] [--warm]: one run on 4 hosts that fails N times.

The faults are drawn at random. With --warm the ranks are started by `--start warm`, and who starts them is killed, too.
With --detach, the first host controls the run, and the others are reached through agents. Then faults of other commands
come too: runs are killed, cut or stopped while they are planted, logs are fetched, terminals attach and are killed.
With --reboots, hosts lose power instead, one or several at once, and start what their boot units have.

After each fault the run must come back, and at the end nothing of it may be left. The launcher's memory, threads and
descriptors must not grow. The faults follow from the seed, but not their exact times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.farm import Farm, farm

HOSTS = 4
PATIENCE_S = 60.0
SILENCE_S = 2.0
MOST_GROWTH_MIB = 8.0
MOST_MORE_THREADS = min(32, (os.cpu_count() or 1) + 4)  # the pool of asyncio.to_thread, which fills up slowly
_SAMPLES = 10  # at the start and at the end

# Pauses that don't grow, also in what travels to a controller: hundreds of failures would take hours. And each of them
# may be followed at once by another attempt, for which a Python that has imported torch then waits.
HURRY = r"""\
import re
from launcher.runs import policy
from launcher.transports import archives
policy.FIRST_PAUSE_S = policy.LONGEST_PAUSE_S = 0.05
policy.may_follow_at_once = lambda attempts, restarts: True
read_package = archives.read_package
pauses = re.compile(rb"^((?:FIRST|LONGEST)_PAUSE_S) = .*", re.MULTILINE)
at_once = re.compile(rb"return restarts > 0 and all.*")
def read_hurried(*prefixes):
    files = read_package(*prefixes)
    name = "launcher/runs/policy.py"
    if name in files:
        files[name] = at_once.sub(b"return True", pauses.sub(rb"\1 = 0.05", files[name]))
    return files
archives.read_package = read_hurried
"""
_DRIVER = f"{HURRY}from launcher.cli.main import main\nmain()\n"
# The user lingers, and its manager finds the units that are made; RebootSoak is the boot.
_SYSTEMD = {"loginctl": "#!/bin/sh\necho Linger=yes\n", "systemctl": "#!/bin/sh\n"}
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
    parser.add_argument("--reboots", action="store_true")
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args(words)
    # In the background of a script it is ignored, and what is started here must get it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with farm(HOSTS) as hosts, tempfile.TemporaryDirectory(prefix="bench-soak-") as folder:
        kind = RebootSoak if options.reboots else DetachedSoak if options.detach else Soak
        return kind(hosts, Path(folder), random.Random(options.seed), is_warm=options.warm).run(options.runs)


class Soak:
    """One launcher, the faults that it meets, and what it costs after each."""

    words: tuple[str, ...] = ()

    def __init__(self, hosts: Farm, folder: Path, chance: random.Random, *, is_warm: bool) -> None:
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
        argv = ["--ssh-config", hosts.ssh_config, "--hosts", ",".join(hosts.names), "--nproc", "1", "--cpu"]
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
        kinds = self._find_kinds()
        number = 0
        for fault in range(faults):
            number = self._await_attempt(number)
            self._samples.append(self._measure())
            said = self._chance.choice(kinds)()
            print(f"soak: {fault + 1} of {faults}: attempt {number}: {said}", flush=True)
            number += 1
        self._await_attempt(number)

    # ---- what differs for a run that a host controls ----------------------------------------------------------------

    def _find_kinds(self) -> list[Callable[[], str]]:
        return [
            self._end_rank, self._kill_supervisor, self._kill_guardian, self._kill_both, self._cut, self._freeze,
            *self._find_warm_kinds(),
        ]  # fmt: skip

    def _find_warm_kinds(self) -> list[Callable[[], str]]:
        return [self._kill_starter, self._kill_waiting, self._kill_during_restart] if self._is_warm else []

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

    # ---- the run ------------------------------------------------------------------------------------------------

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
        return "a connection breaks"

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

    def _kill_waiting(self) -> str:
        for pid in self._find_waiting(self._pick_rank()):
            os.kill(pid, signal.SIGKILL)
        return f"the Python that waits for the next attempt is killed; {self._end_rank()}"

    def _kill_during_restart(self) -> str:
        """While the hosts wait for the next attempt, or a little earlier or later."""
        supervisor, before = _ancestor(self._pick_rank(), _SUPERVISOR), self._last_signals
        said = self._end_rank()
        self._last_signals |= before  # if the supervisor was killed early, it is the failure
        time.sleep(self._chance.uniform(0.0, 0.3))
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGKILL)
        return f"{said}, and a supervisor is killed during the restart"

    def _find_waiting(self, rank: int) -> list[int]:
        starter = _ancestor(rank, 1)
        return [pid for pid in self._ours() if _parent(pid) == starter and _comm(pid) != _RANK]

    def _pick_rank(self) -> int:
        return self._chance.choice(sorted(pid for pid in self._ours() if _comm(pid) == _RANK))

    def _ours(self) -> list[int]:
        """Return the processes that have this run's mark."""
        mark = f"LAUNCH_MARK={self._run_id}.".encode()
        return [pid for pid in _all() if mark in _read(pid, "environ")]

    @property
    def _run_id(self) -> str:
        return (self._logs / "latest").readlink().name

    # ---- the end ------------------------------------------------------------------------------------------------

    def _find_left(self) -> list[str]:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and (self._ours() or self._folders()):
            time.sleep(0.1)
        left = [f"left: {pid} {_command(pid)}" for pid in self._ours()]
        return left + [f"left: {folder}" for folder in self._folders()]

    def _folders(self) -> list[Path]:
        return list(Path(tempfile.gettempdir()).glob(f"launch-{self._run_id}-*"))

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
    """A controller on the first host. Some faults are those of other commands, which must not touch the run."""

    words = ("--detach",)

    def __init__(self, hosts: Farm, folder: Path, chance: random.Random, *, is_warm: bool) -> None:
        super().__init__(hosts, folder, chance, is_warm=is_warm)
        self._logs = hosts.ssh_config.parent / ".local" / "state" / "launch" / "logs"
        self._copies = folder / "copies"
        self._hosts = hosts
        self._before: set[int] = set()
        if self._launch.wait(PATIENCE_S):
            raise SystemExit(self._errors.read_text())
        self._id = (self._logs / "latest").readlink().name

    @property
    def _run_id(self) -> str:
        return self._id

    def _find_kinds(self) -> list[Callable[[], str]]:
        return [
            self._end_rank, self._kill_supervisor, self._kill_guardian, self._kill_both, self._freeze, self._kill_agent,
            self._kill_planting, self._cut_planting, self._stop_another, self._fetch_during_restart, self._kill_watcher,
            *self._find_warm_kinds(),
        ]  # fmt: skip

    def _read_output(self) -> str:
        return "".join(path.read_text() for path in (self._logs / self._id).glob("node_*.log"))

    def _read_messages(self) -> str:
        return (self._logs / self._id / "launch.log").read_text()

    def _find_pid(self) -> int:
        (row,) = (row for row in json.loads(self._ask("ps", "--json").stdout) if row["run"] == self._id)
        return int(row["pid"])

    def _is_over(self) -> bool:
        return not self._ours() and not (self._logs / self._id).exists()

    def _stop(self) -> int:
        self._ask("stop", self._id)
        return self._ask("wait", self._id).returncode

    # ---- faults of other commands; each ends with one of a rank, so that the run has to come back -------------------

    def _kill_agent(self) -> str:
        os.kill(_ancestor(self._pick_rank(), _SESSION), signal.SIGKILL)
        return "an agent is killed"

    def _kill_planting(self) -> str:
        """Before anything runs, or a little later: whatever it is, nothing stays."""
        other = self._plant_another()
        other.kill()
        other.wait()
        return f"a launcher is killed while it plants; {self._end_others()}; {self._end_rank()}"

    def _cut_planting(self) -> str:
        other = self._plant_another()
        for pid in sorted(self._new())[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        other.wait(PATIENCE_S)
        said = f"a process of it is killed while a run is planted (exit code {other.returncode}; {self._end_others()})"
        return f"{said}; {self._end_rank()}"

    def _stop_another(self) -> str:
        other = self._plant_another()
        other.send_signal(signal.SIGINT)
        other.wait(PATIENCE_S)
        said = f"a run is stopped while it is planted (exit code {other.returncode}; {self._end_others()})"
        return f"{said}; {self._end_rank()}"

    def _fetch_during_restart(self) -> str:
        said = self._end_rank()
        fetched = self._ask("fetch", self._id, "--log-dir", str(self._copies))
        if fetched.returncode or not list(self._copies.glob("*/node_0.log")):
            raise SystemExit(f"soak: fetch failed: {fetched.stderr}")
        return f"{said}, and the logs are fetched"

    def _kill_watcher(self) -> str:
        watchers = [self._start("attach", self._id) for _ in range(2)]
        said = self._end_rank()
        watchers[0].kill()
        watchers[1].send_signal(signal.SIGINT)
        for watcher in watchers:
            watcher.wait(PATIENCE_S)
        return f"{said}, and one of two terminals is killed"

    def _plant_another(self) -> subprocess.Popen[bytes]:
        """Start another run, and return at some moment of its planting."""
        argv = ["--ssh-config", str(self._hosts.ssh_config), "--hosts", ",".join(self._hosts.names), "--no-python"]
        self._before = self._planted()
        other = self._start(*argv, "--nproc", "1", "--detach", "--workdir", "/", "sleep", "300")
        wanted = self._chance.randint(1, HOSTS)
        while len(self._new()) < wanted and other.poll() is None:
            time.sleep(0.01)
        return other

    def _end_others(self) -> str:
        """End what went on without its launcher, and wait until nothing of it is left."""
        rows = [row for row in json.loads(self._ask("ps", "--json").stdout) if row["run"] != self._id]
        living = [row["run"] for row in rows if row["state"] in ("starting", "running", "unknown")]
        for run in living:
            self._ask("stop", run, "--now")
        return "it went on, and is stopped" if living else "it ends"

    def _planted(self) -> set[int]:
        """Return controllers, agents, and what still waits for its code: all that have a login of their own here."""
        home = f"HOME={self._hosts.ssh_config.parent}".encode()
        loaded = {pid for pid in _all() if "~launch" in _command(pid) and home in _read(pid, "environ").split(b"\0")}
        return {pid for pid in loaded if _parent(pid) not in loaded}

    def _new(self) -> set[int]:
        """Return those of the run that was started last."""
        return self._planted() - self._before

    def _find_left(self) -> list[str]:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and self._planted():
            time.sleep(0.1)
        return [*super()._find_left(), *(f"left: {pid} {_command(pid)[:60]}" for pid in self._planted())]

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        argv, null = [sys.executable, "-c", _DRIVER, *words], subprocess.DEVNULL
        return subprocess.Popen(argv, env=self._environment, stdin=null, stdout=null, stderr=null)

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", _DRIVER, *words]
        return subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=False)


class RebootSoak(DetachedSoak):
    """Hosts that lose power, and come back by themselves. What has their cache directory runs on them."""

    words = ("--detach", "--survive-reboots")

    def __init__(self, hosts: Farm, folder: Path, chance: random.Random, *, is_warm: bool) -> None:
        self._home = hosts.ssh_config.parent
        self._booted: list[subprocess.Popen[bytes]] = []
        tools = self._home / "bin"
        tools.mkdir()
        for name, script in _SYSTEMD.items():
            (tools / name).write_text(script)
            (tools / name).chmod(0o755)
        super().__init__(hosts, folder, chance, is_warm=is_warm)

    def _find_kinds(self) -> list[Callable[[], str]]:
        return [self._reboot_one, self._reboot_some, self._reboot_controller, self._reboot_all, self._reboot_again]

    def _reboot_one(self) -> str:
        return self._reboot([self._chance.choice(self._hosts.names[1:])])

    def _reboot_some(self) -> str:
        return self._reboot(self._chance.sample(self._hosts.names, self._chance.randint(2, HOSTS - 1)))

    def _reboot_controller(self) -> str:
        return self._reboot(self._hosts.names[:1])

    def _reboot_all(self) -> str:
        return self._reboot(self._hosts.names)

    def _reboot_again(self) -> str:
        """The second time at any moment of the restart that follows."""
        said = self._reboot_some()
        time.sleep(self._chance.uniform(0.0, 12.0))
        return f"{said}, and {self._reboot_some()}"

    def _reboot(self, names: Sequence[str]) -> str:
        while pids := [pid for name in names for pid in self._find_on(name)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(self._chance.uniform(0.0, 3.0))
        for process in self._booted:
            process.poll()
        for name in names:
            self._boot(name)
        return f"{', '.join(names)} lost power"

    def _boot(self, name: str) -> None:
        number = self._hosts.names.index(name)
        words = [str(number), *(["controller"] if number == 0 else [])]
        environment = {"HOME": str(self._home), "XDG_CACHE_HOME": str(self._cache(name))}
        for unit in self._list_units():
            if unit.stem.rpartition(".")[2] in words:
                (command,) = re.findall("^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
                null = subprocess.DEVNULL
                argv = shlex.split(command)
                self._booted.append(subprocess.Popen(argv, env=environment, stdin=null, stdout=null, stderr=null))

    def _cache(self, name: str) -> Path:
        return self._home / "cache" / name

    def _find_on(self, name: str) -> list[int]:
        wanted = f"XDG_CACHE_HOME={self._cache(name)}".encode()
        return [pid for pid in _all() if wanted in _read(pid, "environ").split(b"\0")]

    def _list_units(self) -> list[Path]:
        return list((self._home / ".config" / "systemd" / "user").glob("launch-*.service"))

    def _is_over(self) -> bool:
        """Look, whenever the run is waited for, whether two attempts are alive."""
        ranks = [pid for pid in self._ours() if _comm(pid) == _RANK]
        attempts = {each for pid in ranks for each in re.findall(rb"LAUNCH_ATTEMPT=(\d+)", _read(pid, "environ"))}
        if len(attempts) > 1:
            raise SystemExit(f"soak: attempts {sorted(attempts)} are alive at once")
        return super()._is_over()

    def _measure(self) -> tuple[float, int, int]:
        """Measure nothing: controllers are replaced."""
        return 0.0, 0, 0

    def _find_growth(self) -> list[str]:
        return []

    def _find_left(self) -> list[str]:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and any(map(self._find_on, self._hosts.names)):
            time.sleep(0.1)
        pids = [pid for name in self._hosts.names for pid in self._find_on(name)]
        files = [*self._list_units(), *(self._home / ".local" / "state" / "launch" / "agents").glob("*.py*")]
        left = [*(f"left: {pid} {_command(pid)[:80]}" for pid in pids), *(f"left: {path}" for path in files)]
        # Here a boot doesn't empty the directory for temporary files.
        self._ask("clean", "--ssh-config", str(self._hosts.ssh_config), "--hosts", ",".join(self._hosts.names))
        return [*left, *super()._find_left()]


def _all() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").glob("[0-9]*"))


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").strip().decode("utf-8", "replace")


def _comm(pid: int) -> str:
    return _read(pid, "comm").decode("utf-8", "replace").strip()


def _ancestor(pid: int, level: int) -> int:
    for _ in range(level):
        pid = _parent(pid)
    return pid


def _parent(pid: int) -> int:
    """Return the id of a process's parent, or 0 if it is gone."""
    return int((_read(pid, "stat").rpartition(b")")[2].split() or [b"", b"0"])[1])


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
