"""A run of four ranks over one transport, with short timeouts, and what tests ask about it."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from machines.cluster import Host
from machines.patience import NEVER_S, slowed
from machines.processes import CENSUS_POLL_S, Process, read_name, wait_until
from machines.runs import Done, Running, shell
from machines.slurm import LOGIN, Slurm
from ways import Way

RANKS = 4
# Ranks that ignore SIGTERM are killed after half a second; --silence never expires unless a test shortens it.
TIMES = ("--silence", f"{NEVER_S:g}", "--stop-timeout", "0.5")

# What a rank does, as shell code; it prints `ready` when its traps are set.
READY = 'echo "ready $RANK"'
OBEYS = f"{READY}; exec sleep 300"
IGNORES = f"trap '' TERM INT HUP; {READY}; while :; do sleep 300; done"
# It has children in sessions of their own, one of them without environment, and a daemon that ignores SIGTERM.
HIDES = f"setsid sleep 300 & env -i setsid sleep 300 & (trap '' TERM; setsid sleep 300 &); {OBEYS}"
HIDES_WITH_MARK = HIDES.replace("env -i ", "")
SAVES = f"trap 'sleep 0.1; echo saved $RANK; exit' TERM; {READY}; while :; do sleep 0.05; done"
AT_GO = f"{READY}; until [ -e go ]; do sleep 0.2; done"  # each sleep is a process
FAILS = f"{AT_GO}; echo 'no such data' >&2; exit 7"
IS_KILLED = f"{AT_GO}; kill -KILL $$"

OF_EVERY_KIND = {"r1": IGNORES, "r2": HIDES}  # the other ranks obey
STAND_IN = Path(__file__).parents[1] / "process" / "stand_in"  # for torch
_BARE = "sleep 300 "  # the only sign of a child without environment

# Runs the command line: waits before it while a file `early` exists, and after it while a file `held` exists.
_TYPIST = 'while [ -e early ]; do sleep 0.05; done; "$@"; code=$?; while [ -e held ]; do sleep 0.05; done; exit $code'
_LOADER = "~launch"  # in the command line of every guardian and supervisor
_REMOTE = ("launch", "launch-agent", "enter-client")  # a controller, its agents, and the client of a container
_NOT_OURS = r"\[|launch: hosts of Slurm job \d+: |launch: run RUN is controlled from |launch: the logs are on node1; "


def ranks(default: str = OBEYS, **others: str) -> list[str]:
    """Return the words that make each rank run this shell code; `r3=FAILS` sets that of rank 3 only."""
    cases = " ".join(f"{name[1:]}) {script};;" for name, script in others.items())
    return shell(f"case $RANK in {cases} *) {default};; esac")


def short_silence() -> tuple[str, str]:
    """Return the words for a --silence that the test waits for.

    A detached launch leaves ten seconds after its ranks have started, unless a host has been silent for half of this.
    """
    return "--silence", f"{min(slowed(3.0), 12.0):g}"


def short_connect() -> tuple[str, str]:
    """Return the words for a --connect-timeout that the test waits for."""
    return "--connect-timeout", f"{slowed(2.0):g}"


@dataclass
class FaultLaunch:
    """Starts launchers for one test."""

    slurm: Slurm
    folder: Path
    way: Way
    started: list[Running] = field(default_factory=list)

    def start(self, *words: str, stdout: int | IO[bytes] | None = None) -> Running:
        """Start a run; options in `words` come last and win."""
        number = len(self.started)
        out, err = self.folder / f"stdout.{number}", self.folder / f"stderr.{number}"
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = self.slurm.start(
                *self.way.before, "sh", "-c", _TYPIST, "sh",
                "launch", *self.way.words(self.slurm), *TIMES, "--cpu", "--nproc", str(self.nproc), *self.warm(words),
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=stdout or out_file, stderr=err_file,
            )  # fmt: skip
        self.started.append(Running(process, self.folder, number, self.slurm.cluster, self.logs))
        return self.started[-1]

    def is_warm(self, words: tuple[str, ...]) -> bool:
        """Return whether a Python forks the ranks: their script isn't part of the code of --sync."""
        return self.way.is_warm and "--no-python" in words and not any(word.startswith("--sync") for word in words)

    def warm(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words, for a warm way with the same ranks as Python scripts, which are forked."""
        if not self.is_warm(words):
            return words
        place = words.index("--no-python")
        _, shell, _, script = words[place:]
        assert shell == "sh"
        rank = self.folder / "rank.py"
        notes = f"if 'torch' in sys.modules:\n    open({str(self.forked)!r}, 'w')\n"
        rank.write_text(f"import os, sys\n{notes}os.execvp('sh', ['sh', '-c', sys.argv[1]])\n")
        python = ("--start", "warm", "--env", f"PYTHONPATH={STAND_IN}")
        return (*words[:place], *python, str(rank), script)

    def start_ready(self, *words: str) -> Running:
        """Start a run and wait until all ranks are ready."""
        running = self.start(*words)
        running.wait_for(r"\] ready \d$", RANKS)
        if self.is_warm(words):
            assert self.forked.exists(), "no Python has forked the ranks"
        return running

    @property
    def forked(self) -> Path:
        """A file of ranks that a Python has forked which has imported torch."""
        return self.folder / "forked"

    @property
    def logs(self) -> Path:
        """Where the controller keeps the logs of runs."""
        if self.way.controller == LOGIN:
            return self.folder / "logs"
        return self.slurm.folder / self.way.controller / "home" / ".local" / "state" / "launch" / "logs"

    # ---- where it runs ----------------------------------------------------------------------------------------------

    @property
    def nproc(self) -> int:
        return RANKS // len(self.way.hosts)

    @property
    def nodes(self) -> str:
        return "1 host" if len(self.way.hosts) == 1 else f"{len(self.way.hosts)} hosts"

    @property
    def stopping(self) -> str:
        return f"stopping the run on {self.nodes}"

    @property
    def nothing_left(self) -> str:
        return f"0 processes left on {self.nodes}"

    @property
    def hosts(self) -> list[Host]:
        return [self.slurm.cluster[name] for name in self.way.hosts]

    @property
    def last(self) -> Host:
        """Return the host of rank 3."""
        return self.hosts[-1]

    def name(self, rank: int) -> str:
        """Return a rank's prefix in the output, such as `node2:3`."""
        return f"{self.way.hosts[rank // self.nproc]}:{rank}"

    # ---- what runs --------------------------------------------------------------------------------------------------

    def launcher(self) -> Process:
        return find_process(self.slurm.cluster[LOGIN], "launch")

    def keepers(self) -> tuple[Process, Process]:
        """Return guardian and supervisor of the last host."""
        found = {
            process.pid: process
            for process in self.last.processes()
            if _LOADER in process.command and not process.is_ours and read_name(process.pid) not in _REMOTE
        }
        guardian = next(process for process in found.values() if process.parent not in found)
        supervisor = next(process for process in found.values() if process.parent == guardian.pid)
        return guardian, supervisor

    def ranks(self) -> list[Process]:
        """Return the living ranks and their children on reachable hosts."""
        hosts = [host for host in self.hosts if host.is_reachable]
        return [
            process for host in hosts for process in host.processes() if process.is_ours or process.command == _BARE
        ]

    # ---- the end ----------------------------------------------------------------------------------------------------

    def finish(self, running: Running) -> Done:
        """Wait until the launcher exits; fail if a rank is left then on a reachable host, or anything soon after."""
        done = running.wait()
        left = self.ranks()
        assert not left, f"left at the launcher's end: {left}{running}"
        self.wait_until_clean()
        self.check_logs(done)
        return done

    @contextlib.contextmanager
    def while_there_is(self, name: str) -> Iterator[None]:
        """Create a file meanwhile: `early` delays the launcher's start; `held` keeps its shell, and any allocation."""
        (self.folder / name).touch()
        try:
            yield
        finally:
            (self.folder / name).unlink()

    def wait_for_the_typist(self) -> None:
        """Wait until the shell is ready to run the command line, which may first need an allocation."""
        login = self.slurm.cluster[LOGIN]
        assert wait_until(lambda: any(p.command.startswith("sh -c while") for p in login.processes()))

    def wait_until_nothing_runs(self) -> None:
        """Wait until no rank, guardian or supervisor is left, whatever has become of the launcher."""

        def left() -> list[Process]:
            found = [process for host in self.hosts for process in host.processes() if _LOADER in process.command]
            return self.ranks() + [process for process in found if read_name(process.pid) not in _REMOTE]

        assert wait_until(lambda: not left(), poll_s=CENSUS_POLL_S), left()

    def forget_folder(self, host: Host) -> None:
        """After a thaw, remove the run's directory if docs/faults.md says that it may stay."""
        if self.way.may_leave_folder:
            for path in host.tmpdir.glob("launch-*"):
                shutil.rmtree(path)

    def wait_until_clean(self) -> None:
        """Wait until nothing runs on reachable hosts: no guardian, supervisor, agent or client."""

        def left() -> list[Process]:
            return [process for host in self.slurm.cluster if host.is_reachable for process in host.processes()]

        assert wait_until(lambda: not left(), poll_s=CENSUS_POLL_S), left()

    def check_logs(self, done: Done) -> None:
        """Check that every rank's `ready` is in the log of its node."""
        for node, host in enumerate(self.way.hosts):
            own = range(node * self.nproc, (node + 1) * self.nproc)
            assert {f"[{host}:{rank}] ready {rank}" for rank in own} <= set(done.log(node))


def said(done: Done) -> list[str]:
    """Return the launcher's own messages, without the line that says whose hosts it uses, or who controls the run."""
    lines = (re.sub(r"\S+/launch/logs/RUN", "logs/RUN", line) for line in done.words)
    return [line for line in lines if not re.match(_NOT_OURS, line)]


def ask(launch: FaultLaunch, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command on the launch host, and check how it ends."""
    done = launch.slurm.run("launch", *words, cwd=launch.folder)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def find_process(host: Host, name: str) -> Process:
    """Return the process with that name; a child that hasn't run its own program yet has its parent's name."""
    named = [process for process in host.processes() if read_name(process.pid) == name]
    (found,) = (process for process in named if process.parent not in {other.pid for other in named})
    return found
