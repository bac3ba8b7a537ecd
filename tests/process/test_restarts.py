"""A run that is started again: attempts on this machine, each with a port and processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from machines.patience import DEADLINE_S, NEVER_S, slowed
from screen import Screen
from transport_by_host import TransportByHost

from launcher.cli.test_distributed import print_culprits
from launcher.errors import HostFailure, HostFailureKind, HostsUnreachable
from launcher.hosts.host import Host
from launcher.job.job import Job, OnHang, Program, ProgramKind, Timeouts
from launcher.output.output_streams import Style
from launcher.output.run_folder import create_record
from launcher.runs import attempt, hangs, judge, policy
from launcher.runs import run as run_module
from launcher.runs.bisection import Group, Verdict
from launcher.runs.culprits import find_culprits
from launcher.runs.records import Result
from launcher.runs.run import Run
from launcher.runs.run_request import RunOptions, RunRequest
from launcher.runs.run_state import Activity, RestartCount, RunState
from launcher.transports.base import Channel, Transport, TransportError
from launcher.transports.process_channel import LocalTransport, ProcessChannel

# Fails once with each of these exit codes, and then succeeds.
FAILS = (
    'set -- {codes}; if [ $LAUNCH_ATTEMPT -lt $# ]; then shift $LAUNCH_ATTEMPT; echo "$RANK fails" >&2; exit $1; fi; '
    'echo "$RANK ok"'
)


@dataclass
class Done:
    """How a run ended, what it said, and what it recorded."""

    result: Result
    words: list[str]
    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return found


def run(
    folder: Path, script: str, *, restarts: int, transport: Transport | None = None, names: Sequence[str] = ("n1",),
    spares: Sequence[str] = (), prepare: Callable[[Path], object] = lambda folder: None,
    job_values: Mapping[str, Any] | None = None,
    find_culprits: Callable[[Sequence[Host]], Awaitable[Verdict | None]] | None = None,
    notify: Callable[[str, Result], object] | None = None,
    can_reach: Callable[[Collection[str]], bool] | None = None,
    note_state: Callable[[RunState], object] | None = None, screen: Screen | None = None, **options: Any,
) -> Done:  # fmt: skip
    screen = screen or Screen()
    record = create_record(folder / "logs", datetime.now(), lambda path, error: None)
    prepare(record.folder)
    program = Program(ProgramKind.COMMAND, "/bin/sh", ("-c", script))
    job = Job(program, nproc=2, cpu=True, timeouts=Timeouts(DEADLINE_S, stop_timeout_s=0.5), workdir=str(folder))
    job = replace(job, **(job_values or {}))
    ways = transport or LocalTransport()

    async def execute() -> Result:
        run_options = RunOptions(**{"with_checks": False, "restarts": restarts, **options})
        hosts, waiting = ([Host(name) for name in some] for some in (names, spares))
        request = RunRequest(
            job, hosts, lambda hosts, say: ways, record, screen, run_options, spares=waiting,
            find_culprits=find_culprits, notify=notify, can_reach=can_reach, note_state=note_state,
        )  # fmt: skip
        return await asyncio.wait_for(Run(request).execute(), DEADLINE_S)

    return Done(asyncio.run(execute()), screen.words, record.folder)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.01)


def test_a_run_comes_back(tmp_path: Path) -> None:
    """Its log goes on in the same file, its record has all attempts, and its files have a directory for each."""
    script = 'echo $LAUNCH_ATTEMPT >>"$LAUNCH_FILES/ranks"; echo $LAUNCH_ATTEMPT $TORCHELASTIC_RESTART_COUNT; '
    done = run(tmp_path, script + FAILS.format(codes="3 4"), restarts=2)
    assert done.result.exit_code == 0
    assert "launch: 0 processes left on 1 host; restarting: a rank failed (" in "".join(done.words)
    counts = [line.partition("(")[2] for line in done.words if "restarting: " in line]
    assert counts == ["1 restart used, 1 without progress, 1 left)", "2 restarts used, 2 without progress, 0 left)"]
    assert "launch: restart 1: 1 host x 2 processes = 2 ranks" in done.words
    assert done.words[-1].startswith("launch: finished in ")
    assert ", 3 attempts, 2 ranks succeeded, 0 processes left on 1 host" in done.words[-1]
    lines = [line.split("] ", 1)[-1].strip() for line in (done.folder / "node_0.log").read_text().splitlines()]
    border = lines.index("---- restart 2 ----")
    assert "0 0" in lines[:border] and "2 2" not in lines[:border]  # a rank may be stopped before it prints
    assert lines[border:].count("2 2") == 2 and "0 0" not in lines[border:]
    first, _, last = done.record["attempts"]
    assert (first["outcome"], first["result"]["exit_code"], first["then"]) == ("error", 3, "a rank failed")
    assert (last["outcome"], last["result"]["exit_code"], last["then"]) == ("succeeded", 0, None)
    assert first["began_at"] < first["ended_at"] <= last["began_at"]
    assert (done.record["result"]["exit_code"], first["master_port"] != last["master_port"]) == (0, True)
    assert (done.folder / "files" / "restart_2" / "node_0" / "ranks").read_text() == "2\n2\n"


def test_a_disk_that_hangs_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe that nobody reads hangs as a file does on a network file system that is away."""
    monkeypatch.setattr("launcher.output.write_queue.STALLED_S", 0.1)
    monkeypatch.setattr(attempt, "STALLED_S", 0.1)
    monkeypatch.setattr("launcher.output.write_queue.FAREWELL_S", 1.0)
    script = f"[ $LAUNCH_ATTEMPT = 1 ] && sleep {slowed(2.5)}; " + FAILS.format(codes="3")
    pipes: list[Path] = []

    def hang(folder: Path) -> None:
        pipes.append(folder / "node_0.log")
        os.mkfifo(pipes[0])

    timeouts = Timeouts(DEADLINE_S, silence_s=slowed(1.5), stop_timeout_s=0.5)
    done = run(tmp_path, script, restarts=1, prepare=hang, job_values={"timeouts": timeouts})
    assert done.result.exit_code == 0
    assert done.words[-1].startswith("launch: finished in ")
    assert done.words[-1].endswith("; the logs are incomplete: the disk does not respond")
    pipes[0].read_text()  # responds again


def test_a_checkpoint_is_progress(tmp_path: Path) -> None:
    """Each attempt saves a new file before it fails in the same way as the one before."""
    script = f"[ $RANK = 0 ] && mkdir -p saves && >saves/$LAUNCH_ATTEMPT; sleep 0.3; {FAILS.format(codes='3 3 3')}"
    script = f"[ $RANK = 0 ] || [ $LAUNCH_ATTEMPT = 3 ] || exec sleep 300; {script}"
    done = run(tmp_path, script, restarts=1, progress_dir="saves", saved_s=0.1)
    assert done.result.exit_code == 0
    assert [attempt["progress"] for attempt in done.record["attempts"]] == [True, True, True, False]


def test_output_for_long_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "PROGRESS_S", 0.0)
    done = run(tmp_path, FAILS.format(codes="3"), restarts=1)
    assert [attempt["progress"] for attempt in done.record["attempts"]] == [True, False]


def test_a_progress_dir_that_no_host_has_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS.format(codes="3"), restarts=1, progress_dir="savse")
    text = "launch: no host has the directory savse (--progress-dir) yet, so nothing counts as progress"
    assert done.words.count(text) == 1


@dataclass
class LateTransport:
    """This machine, which can't be reached for the n-th to the m-th time."""

    away: range
    opened: int = -1
    name: str = "late"

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        self.opened += 1
        if self.opened in self.away:
            raise TransportError(HostFailure(host.name, HostFailureKind.TIMED_OUT, "no answer"))
        return LocalTransport().open(host, command, timeout_s)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()


def test_a_host_that_is_back_cuts_the_pause_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", NEVER_S)
    monkeypatch.setattr(run_module, "LOOK_AGAIN_S", 0.01)
    asked: list[Collection[str]] = []

    def can_reach(names: Collection[str]) -> bool:
        asked.append(names)
        return len(asked) > 3

    transport = LateTransport(range(1, 2))
    done = run(tmp_path, FAILS.format(codes="3"), restarts=2, transport=transport, can_reach=can_reach)
    assert [attempt["outcome"] for attempt in done.record["attempts"]] == ["error", "host", "succeeded"]
    assert asked == [("n1",)] * 4


def test_a_host_that_reboots_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run says so in its state, counts no restart for it, and tells of a long wait once."""
    monkeypatch.setattr(run_module, "LONG_WAIT_S", 0.0)
    states: list[RunState] = []
    told: list[tuple[str, str | None]] = []
    done = run(
        tmp_path, FAILS.format(codes="3 3 3 3"), restarts=3, transport=LateTransport(range(1, 3)),
        note_state=states.append, notify=lambda event, result: told.append((event, result.error)),
    )  # fmt: skip
    waits = [state for state in states if state.what is Activity.WAITING]
    assert {(*state.hosts, state.restarts) for state in waits} == {("n1", RestartCount(1, 1, 2))}
    assert len({state.since for state in waits}) == 1
    assert states[-1].what is Activity.STOPPING
    assert [error for event, error in told if event == "wait"] == ["waiting for n1 (0.0 s)"]
    assert "---- restart 1 ----" in (done.folder / "node_0.log").read_text()
    assert [attempt["restarts"]["used"] for attempt in done.record["attempts"]] == [1, 1, 1, 1]
    assert [attempt["outcome"] for attempt in done.record["attempts"]] == ["error", "host", "host", "error"]
    assert "launch: restart 1 could not start" in done.words
    assert "  n1: no answer" in done.words
    assert done.words[-2].endswith(": the same failure twice without progress")


# ---- spares ---------------------------------------------------------------------------------------------------------


def by_host(**away: range) -> TransportByHost:
    """Return the way to hosts on this machine, of which some can't be reached for a while."""
    names = ("n1", "n2", "n3", "n4")
    return TransportByHost({name: LateTransport(away.get(name, range(0))) for name in names})


SHOW = 'echo "$RANK of $WORLD_SIZE"; '


def test_a_spare_takes_the_place_of_a_host_that_stays_away(tmp_path: Path) -> None:
    """n2 is there at first, and then no more."""
    done = run(
        tmp_path, SHOW + FAILS.format(codes="3"), restarts=1, names=("n1", "n2"), spares=("n3",),
        transport=by_host(n2=range(1, 99)),
    )  # fmt: skip
    assert done.result.exit_code == 0
    assert done.words[-1].endswith("4 ranks succeeded, 0 processes left on 2 hosts")
    assert [attempt["hosts"] for attempt in done.record["attempts"]] == [["n1", "n2"], ["n1", "n2"], ["n1", "n3"]]
    assert [attempt["spares"] for attempt in done.record["attempts"]] == [["n3"], ["n3"], ["n2"]]
    assert "launch: n3 takes the place of n2, on 2 hosts" in done.words
    assert [node["host"] for node in done.record["plan"]["nodes"]] == ["n1", "n3"]
    assert "[n3:2] 2 of 4" in (done.folder / "node_1.log").read_text()


def test_a_spare_is_tried_where_one_host_fails_alike_twice(tmp_path: Path) -> None:
    fails = "[ $RANK = 2 ] && [ $LAUNCH_ATTEMPT -lt {} ] && exit 3; exit 0"
    names = {"names": ("n1", "n2"), "spares": ("n3",), "transport": by_host()}
    done = run(tmp_path, fails.format(2), restarts=9, **names)
    assert done.result.exit_code == 0
    assert [attempt["hosts"][1] for attempt in done.record["attempts"]] == ["n2", "n2", "n3"]


def test_spares_are_checked_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(HostsUnreachable) as caught:
        run(tmp_path, "exit 0", restarts=1, spares=("n2",), transport=by_host(n2=range(99)))
    assert [failure.host for failure in caught.value.failures] == ["n2"]


def test_the_run_continues_on_fewer_hosts(tmp_path: Path) -> None:
    done = run(
        tmp_path, SHOW + FAILS.format(codes="3"), restarts=1, names=("n1", "n2", "n3"), min_nodes=2,
        transport=by_host(n1=range(1, 99)),
    )  # fmt: skip
    assert done.result.exit_code == 0
    assert "launch: without n1, on 2 hosts; the global batch changes with the number of ranks" in done.words
    assert "0 of 4" in (done.folder / "node_0.log").read_text()
    assert done.record["attempts"][-1]["hosts"] == ["n2", "n3"]


# ---- the checkpoints ------------------------------------------------------------------------------------------------


class HomeTransport(LocalTransport):
    """This machine, with another home directory."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home
        home.mkdir(exist_ok=True)

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        return super().open(host, f"HOME={self._home}; export HOME; {command}", timeout_s)


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_host_that_does_not_see_the_checkpoints_is_named(tmp_path: Path, is_shared: bool) -> None:
    homes = {"n1": tmp_path / "home1", "n2": tmp_path / ("home1" if is_shared else "home2")}
    done = run(
        tmp_path, SHOW, restarts=1, names=("n1", "n2"), with_checks=True, progress_dir="~/saves",
        transport=TransportByHost({name: HomeTransport(home) for name, home in homes.items()}),
    )  # fmt: skip
    assert done.result.exit_code == 0
    text = "  n2: does not share ~/saves, where the checkpoints are, with n1; "
    assert any(line.startswith(text) for line in done.words) is not is_shared


# ---- hangs ----------------------------------------------------------------------------------------------------------

# Hangs before the second attempt, after three lines. That one prints fewer, so that it is never taken for one that
# hangs, however long its end takes on a busy machine.
HANGS = "[ $LAUNCH_ATTEMPT = 1 ] || { for each in 1 2 3; do echo line; done; exec sleep 300; }; echo on"
UNTIL_GO = "until [ -e go ]; do sleep 0.05; done"


class Prompter(Screen):
    """A screen that lets ranks go on, which wait for the file `go`, once a line that begins like this was said."""

    def __init__(self, folder: Path, begins: str) -> None:
        super().__init__()
        self._go = folder / "go"
        self._begins = begins

    def say(self, text: str, style: Style = Style.TEXT) -> None:
        super().say(text, style)
        if text.startswith(self._begins):
            self._go.touch()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "LEAST_S", 0.5)
    monkeypatch.setattr(hangs, "_LOOK_S", 0.05)
    monkeypatch.setattr(hangs, "ANSWER_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_run_that_may_hang_continues(tmp_path: Path) -> None:
    script = f"for each in 1 2 3; do echo line; done; {UNTIL_GO}; echo on"
    done = run(tmp_path, script, restarts=0, screen=Prompter(tmp_path, "launch: the run may hang"))
    assert done.result.exit_code == 0
    assert sum(line.endswith("taking the stacks of all ranks") for line in done.words) == 1
    assert any(line.startswith("launch: the run may hang") for line in done.words)


@pytest.mark.usefixtures("impatient")
def test_a_hang_that_ends_the_run_is_not_followed_by_a_restart(tmp_path: Path) -> None:
    done = run(tmp_path, HANGS, restarts=1, job_values={"on_hang": OnHang.END})
    assert done.result.exit_code == 124
    assert len(done.record["attempts"]) == 1


def fail_on_n3(group: Group, *words: str) -> Job:
    """Return a test that fails on every group with n3."""
    words = ("-c", "for name; do [ $name != n3 ] || exit 1; done", "sh", *group)
    return Job(Program(ProgramKind.COMMAND, "/bin/sh", words), nproc=1, cpu=True, timeouts=Timeouts(DEADLINE_S))


def test_a_search_that_was_asked_for_prints_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [Host("n1"), Host("n3")]
    print_culprits(fail_on_n3, hosts, lambda hosts, say: LocalTransport(), tmp_path, as_json=False)
    out, err = capsys.readouterr()
    assert out == "verdict: n3 fails alone\n"
    first, *tested = err.splitlines()
    assert first == f"test-distributed: looking for the failing hosts; logs in {tmp_path}"
    assert "testing n1 alone: ok" in tested and "testing n3 alone: FAILED (n3 rank 0: exit code 1)" in tested
    assert len([*tmp_path.glob("2*/run.json")]) == len(tested)


@pytest.mark.usefixtures("impatient")
def test_after_two_hangs_the_host_to_blame_is_searched(tmp_path: Path) -> None:
    """The spare takes its place, and n3 is remembered."""
    tested = []

    async def search(hosts: Sequence[Host]) -> Verdict:
        folder = tmp_path / "bisection"
        return await find_culprits(
            fail_on_n3, hosts, lambda hosts, say: LocalTransport(), folder, lambda *test: tested.append(test)
        )

    script = HANGS.replace("= 1", "= 2")
    done = run(
        tmp_path, script, restarts=3, names=("n1", "n2", "n3"), spares=("n4",), find_culprits=search,
        job_values={"on_hang": OnHang.RESTART},
    )  # fmt: skip
    assert done.result.exit_code == 0
    assert "launch: n4 takes the place of n3, on 3 hosts" in done.words
    assert sorted(what for what, reason in tested if reason) == ["n3 alone"]
    searches = [attempt["search"] for attempt in done.record["attempts"]]
    assert searches == [None, {"alone": ["n3"], "together": [], "is_repeatable": True, "is_complete": True}, None]
    blamed = [attempt["blamed"] for attempt in done.record["attempts"]]
    assert blamed == [{}, {"n3": "failed test-distributed"}, {}]


# ---- ranks that start warm ------------------------------------------------------------------------------------------

# Once all four run: before that, the other host may have no Python yet that could wait for the next attempt.
FAILS_ONCE = """
import glob, os, sys, time
attempt = int(os.environ["LAUNCH_ATTEMPT"])
print("rank", os.environ["RANK"], "of attempt", attempt, flush=True)
open("begun-%d-%s" % (attempt, os.environ["RANK"]), "w")
while len(glob.glob("begun-%d-*" % attempt)) < 4:
    time.sleep(0.01)
sys.exit(0 if attempt else 3)
"""


HOLDS_STORE = """
import torch.distributed.rendezvous
class TCPStore:
    def __init__(self, *place, **options):
        pass
"""


class CountedLogins(LocalTransport):
    """This machine, and how often it was connected to."""

    def __init__(self) -> None:
        self.logins = 0
        self.channels: dict[str, ProcessChannel] = {}  # by host

    def open(self, host: Host, command: str, timeout_s: float) -> ProcessChannel:
        self.logins += 1
        self.channels[host.name] = super().open(host, command, timeout_s)
        return self.channels[host.name]


def run_warm(
    folder: Path,
    transport: Transport,
    script: str = FAILS_ONCE,
    gate: str = "",
    notify: Callable[[str, Result], object] | None = None,
) -> Done:
    """Run a script on two hosts; torch leaves a file for each import. gate: Python code, run at its import."""
    torch = folder / "own" / "torch"
    (torch / "distributed").mkdir(parents=True)
    (torch / "version.py").write_text("__version__ = '2.13.0'\n")
    (torch / "__init__.py").write_text(f"import os\nopen({str(folder)!r} + '/imported-%d' % os.getpid(), 'w')\n{gate}")
    (torch / "distributed" / "__init__.py").write_text(HOLDS_STORE)
    (torch / "distributed" / "rendezvous.py").write_text("def _create_c10d_store(): pass")
    (folder / "train.py").write_text(script)
    env = {"PYTHONPATH": str(torch.parent)}
    job = {"program": Program(ProgramKind.SCRIPT, "train.py"), "start": "warm", "env": env}
    return run(folder, "", names=["n1", "n2"], restarts=3, transport=transport, job_values=job, notify=notify)


def test_a_warm_run_imports_torch_once_on_each_host_in_each_attempt(tmp_path: Path) -> None:
    transport = CountedLogins()
    done = run_warm(tmp_path, transport)
    assert done.result.exit_code == 0, done.words
    assert ", 2 attempts, 4 ranks succeeded, 0 processes left on 2 hosts" in done.words[-1]
    log = (done.folder / "node_1.log").read_text()
    assert [log.count(f"of attempt {attempt}") for attempt in range(2)] == [2, 2]
    assert (transport.logins, len(list(tmp_path.glob("imported-*")))) == (4, 4), (done.words, done.record)
