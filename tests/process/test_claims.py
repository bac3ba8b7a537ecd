"""Claims on the GPUs of a machine: what other users can't do to them, and what runs see of each other's."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from machines.launches import run_launch, start_launch
from machines.patience import DEADLINE_S, NEVER_S
from machines.processes import read_parent, wait_until
from machines.warm import WarmProcess
from node_process import Nodes

from launcher.node import claims, messages
from launcher.node.claims import ClaimHolder, read_claim
from launcher.node.loop import Loop
from launcher.node.processes import workers
from launcher.preflight.claims import ClaimOrder
from launcher.runs.run_rows import read_row

pytestmark = pytest.mark.linux

ANN, BOB, CID = 54001, 54002, 54003  # nobody has these ids
_CLONE_NEWNET = 0x40000000
SMI = """#!/bin/sh
case "$*" in *query-compute-apps*) exit;; esac
for i in 0 1 2 3; do
    echo "$i, NVIDIA H100, 81559, 550.54, GPU-{folder}-$i, 81000, Default, 0, 00000000:0$i:00.0, Disabled, 30, Disabled"
done
"""


Act = Callable[[], object]

# A rank that tells its parent and the sockets that it has, and saves at SIGTERM until the test says go.
SAVING = """
import os, signal, time
def save(*_):
    open("saving", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
files = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd")]
found = [os.readlink(file) for file in files if os.path.islink(file) and os.readlink(file).startswith("socket:")]
with open("told", "w") as told:
    told.write(" ".join([str(os.getppid()), *found]) + "\\n")
while True:
    time.sleep(300)
"""

SINCE = time.time()  # of all runs, unless a test says otherwise


class Run:
    """A run on this box, as its supervisor serves it: what it is told, and what it says."""

    def __init__(self, gpus: str, run: str, uuid: str | None = None) -> None:
        """gpus: the start of their names, which A, B and C end; uuid: the name of the only one, in their place."""
        self.loop = Loop()
        self.said: list[dict[str, Any]] = []
        self._gpus = [{"index": index, "uuid": gpus + letter} for index, letter in enumerate("ABC")]
        if uuid is not None:
            self._gpus = [{"index": 0, "uuid": uuid}]
        self._run = run
        launcher: Any = self
        self.holder = ClaimHolder(self.loop, launcher)

    def send(self, kind: str, **fields: Any) -> None:
        self.said.append({"type": kind, **fields})

    def claim(self, *gpus: int, **more: Any) -> list[str]:
        """Return whose runs are in the way."""
        return self.hear(self.ask(*gpus, **more))

    def ask(self, *gpus: int, look: bool = False, **more: Any) -> int:
        """Let it claim; return how much it has said before."""
        waits, order = more.pop("waits", False), ClaimOrder(self._run, None, more.pop("since", SINCE), 1)
        header = {**order.as_fields(waits=waits), "is_look": look, "gpus": [*gpus], **more}
        count = len(self.said)
        self.holder.answer(header, self._gpus)
        return count

    def hear(self, count: int) -> list[str]:
        """Return who is in the way by what it says after so much."""
        self.serve(lambda: len(self.said) > count)
        said = self.said[-1]
        assert said["type"] == messages.CLAIMED and said["error"] is None, said
        return [claim["run"] or claim["user"] + "?" for claim in said["rivals"]]

    def serve(self, is_over: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_over():
            assert time.monotonic() < deadline, self.said
            self.loop.call_later(0.01, lambda: None)
            self.loop.run_once()


def put_smi(folder: Path, name: str) -> Path:
    """Put a fake nvidia-smi into a new directory; name: what makes its GPUs its own."""
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text(SMI.format(folder=name))
    tool.chmod(0o755)
    return tool


def as_user(uid: int, act: Act) -> int:
    """Start a process of a user that does this and ends; return its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            act()
            code = 0
        finally:
            os._exit(code)
    return pid


def wait_for(pid: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextmanager
def beside(uid: int, act: Callable[[], Run | None]) -> Iterator[int]:
    """Let a process of a user do this and then serve the run, or just live, until the end; its id."""
    ready, go = os.pipe()
    end, told = os.pipe()

    def live() -> None:
        os.close(told)
        run = act()
        os.write(go, b"x")
        if run is not None:
            run.serve(lambda: select.select([end], [], [], 0)[0])
            run.holder.end()
        else:
            os.read(end, 1)

    pid = as_user(uid, live)
    os.close(go)
    assert os.read(ready, 1), "it has failed"
    os.close(ready)
    try:
        yield pid
    finally:
        os.close(told)
        os.close(end)
        os.kill(pid, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, -signal.SIGKILL)


def run_with(gpus: str, run: str, *claimed: int, **more: Any) -> Callable[[], Run]:
    """Return what starts a run that claims these, or waits for them."""

    def act() -> Run:
        started = Run(gpus, run)
        started.claim(*claimed, **more)
        return started

    return act


def check(is_true: object) -> None:
    assert is_true


def bind(part: str, number: int = 0, *, backlog: int | None = 99) -> socket.socket:
    """Take a name as anybody may."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(f"\0launch/{part}/{number}")
    if backlog is not None:
        sock.listen(backlog)
    return sock


def call(part: str, request: bytes = b"{}", number: int = 0) -> socket.socket:
    """Call who holds a GPU."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(f"\0launch/{part}/{number}")
    sock.send(request)
    return sock


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The start of the names of three GPUs; only this test has claims in its network namespace."""
    if os.geteuid() != 0:
        pytest.skip("no root, who can be several users")
    monkeypatch.setattr(claims, "_TURN_S", 0.1)
    libc = ctypes.CDLL(None)
    with Path("/proc/self/ns/net").open() as before:
        assert libc.unshare(_CLONE_NEWNET) == 0
        yield "GPU-"
        assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0


def test_of_all_that_want_the_same_one_wins(gpus: str, tmp_path: Path) -> None:
    """Twelve processes of three users try again and again, and note when they have it and when they leave it."""
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def compete(number: int) -> None:
        deadline, wins = time.monotonic() + DEADLINE_S, 0
        while wins < 3:
            assert time.monotonic() < deadline
            run = Run(gpus, f"run{number}")
            if not run.claim(0, 1 + number % 2):
                wins += 1
                os.write(log, b"+")
                time.sleep(0.002)
                os.write(log, b"-")
            run.holder.end()
            time.sleep(0.001 * (number % 5))

    for pid in [as_user(ANN + number % 3, lambda number=number: compete(number)) for number in range(12)]:
        wait_for(pid)
    assert (tmp_path / "log").read_bytes() == b"+-" * 36


def test_what_others_say_changes_nothing(gpus: str) -> None:
    """Neither an early start nor the words of its holder take a GPU from it, and no text looks like one of `launch`."""
    run = Run(gpus, "mine")
    with beside(ANN, run_with(gpus, "first", 0)):
        assert run.claim(0, since=0.0) == ["first"]
        assert run.claim(0, run="first") == ["first"], "another user's run may have the same id"
        assert call(f"{gpus}A", json.dumps({"takes": ["first", SINCE]}).encode()).recvmsg(4096, 1024)[0], (
            "root asks ann"
        )
    assert run.claim(0) == []
    said = {"run": "x", "name": None, "since": 1.0, "until": None, "is_shared": False}
    lines = ["x), for 2 h\nlaunch: root's run y uses them, too", "x, in the queue", "", "\ud800", "\x1b[2J"]
    words = [{**said, key: line} for line in lines for key in ("run", "name") if (key, line) != ("name", "")]
    words += [{**said, "since": since} for since in (float("nan"), -1, "1", None, 10**400, [])]
    words += [{**said, key: value} for key in ("name", "since", "until") for value in ("", False, True, [], {})]
    words += [{**said, "until": "18:00"}, {**said, "name": 0}, {**said, "is_shared": 1}, {**said, "is_shared": []}, {}]
    for each in words:
        assert read_claim(BOB, each, ["A"]) == claims.Claim(BOB, frozenset("A")), each
    assert read_claim(BOB, said, ["A"]).said == said
    run.holder.end()


def test_runs_of_two_launch_hosts_with_the_same_id(gpus: str) -> None:
    """They start in the same second, and log in as the same user."""
    with beside(os.geteuid(), run_with(gpus, "r", 0)):
        assert Run(gpus, "r").claim(0, since=SINCE + 1e-3) == ["r"]


@pytest.mark.parametrize("how", ["closed", "guardian", "stopped", "taken"])
def test_what_becomes_of_a_claim_after_an_attempt(gpus: str, nodes: Nodes, tmp_path: Path, how: str) -> None:
    """It stays for the next attempt of the same run, for as long as the launcher is connected."""
    put_smi(tmp_path / "bin", tmp_path.name)
    node = nodes.start(env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
    node.prepare(facts=True, pythons=[], silence_s=NEVER_S)
    gpu = node.wait_for(messages.FACTS)["gpus"][0]
    order = ClaimOrder("mine", None, SINCE, 1)
    node.send(messages.CLAIM, is_look=False, gpus=[0], **order.as_fields())
    assert node.wait_for(messages.CLAIMED)["rivals"] == []
    again = Run(gpus, "mine", gpu["uuid"])
    assert again.claim(0) == ["somebody?"], "the attempt isn't over"
    node.send(messages.STOP, timeout_s=0, stays=True)
    node.wait_for(messages.IDLE)
    other = Run(gpus, "other", gpu["uuid"])
    wait_for(as_user(ANN, lambda: check(Run(gpus, "mine", gpu["uuid"]).claim(0) == ["mine"])))
    assert other.claim(0) == ["mine"], "another user has asked for it in vain"
    if how == "closed":
        node.hang_up()
    elif how == "guardian":
        os.kill(node.guardian.pid, signal.SIGKILL)
    elif how == "stopped":
        node.send(messages.STOP, timeout_s=0)
    elif how == "taken":
        assert again.claim(0) == []
    node.wait_until_gone()
    assert other.claim(0) == (["root?"] if how == "taken" else [])
    other.holder.end()
    again.holder.end()


def test_who_does_not_answer_still_holds_it(gpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen, with a full backlog, silent, talkative, and a name that nobody listens at."""
    monkeypatch.setattr(claims, "_ANSWER_S", 0.2)
    run, held = Run(gpus, "mine"), list[socket.socket]()

    def fill() -> None:
        held.append(bind(f"{gpus}A", backlog=1))
        for _ in range(9):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.setblocking(False)
            held.append(sock)
            with suppress(BlockingIOError):
                sock.connect(f"\0launch/{gpus}A/0")

    ways: dict[str, Callable[[], object]] = {
        f"{ANN}?": lambda: held.append(bind(f"{gpus}A")), "somebody?": fill,
        "somebody? ": lambda: held.append(bind(f"{gpus}A", backlog=None)),
    }  # fmt: skip
    for who, act in ways.items():
        with beside(ANN, lambda act=act: act() and None):
            assert run.claim(0) == [who.strip()], who
            assert run.claim(0, waits=True) == [who.strip()], who
            count = len(run.said)
        assert run.hear(count) == [], who
        run.holder.end()
    with beside(ANN, run_with(gpus, "frozen", 0)) as pid:
        os.kill(pid, signal.SIGSTOP)
        assert run.claim(0) == [f"{ANN}?"]
        os.kill(pid, signal.SIGCONT)
        assert run.claim(0) == ["frozen"]
    assert run.claim(0) == []
    run.holder.end()


def test_a_claim_that_many_call(gpus: str) -> None:
    """Whoever calls without a word, or doesn't listen, keeps no one else from an answer, and takes no descriptors."""
    with beside(ANN, run_with(gpus, "mine", 0)) as pid:
        most = len(list(Path(f"/proc/{pid}/fd").iterdir())) + 70  # 64 callers
        held = [call(f"{gpus}A") for _ in range(150)]
        mute = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(60)]
        for sock in mute:
            sock.connect(f"\0launch/{gpus}A/0")
        assert Run(gpus, "other").claim(0) == ["mine"]
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < most
    for sock in held + mute:
        sock.close()


def test_a_box_that_somebody_has_filled(gpus: str) -> None:
    """All names of a GPU are taken, more than are looked at: the others are as free as before, also in the queue."""
    held = list[socket.socket]()

    def fill() -> None:
        held.extend(bind(f"{gpus}A", number) for number in range(300))
        held.extend(bind("", number) for number in range(300))

    run = Run(gpus, "mine")
    with beside(BOB, lambda: fill()):  # type: ignore[func-returns-value]
        assert run.claim(0, shares=True) == [f"{BOB}?"]
        assert run.said[-1]["rivals"][0]["gpus"] == [0]
        assert run.claim(look=True)[0] == f"{BOB}?"
        assert run.claim(1, 2, waits=True) == []
    assert run.claim(0, 1, 2) == []
    run.holder.end()


def test_a_line_that_moves_up_by_itself(gpus: str) -> None:
    """A death wakes who is behind; who began later is behind, and the next process of a run finds its place."""
    third, late = Run(gpus, "third"), run_with(gpus, "fourth", 0, waits=True, since=SINCE + 4)
    first, second = (run_with(gpus, f"run{n}", *gpu, waits=True, since=SINCE + n) for n, gpu in ((1, [0]), (2, [0, 1])))
    with beside(ANN, run_with(gpus, "holder", 0)), beside(CID, second), beside(BOB, first) as killed:
        assert third.claim(0, waits=True, since=SINCE + 3) == ["holder", "run1", "run2"]
        assert Run(gpus, "pushing").claim(0, 1, 2) == ["holder", "run1", "run2"], "it doesn't wait"
        count = len(third.said)
        os.kill(killed, signal.SIGKILL)
        assert third.hear(count) == ["holder", "run2"]
        taken = list[bool]()
        third.holder.reserve(lambda: taken.append(True))
        with beside(BOB, late):
            again = Run(gpus, "third")
            serving = threading.Thread(target=third.serve, args=[lambda: taken])
            serving.start()
            assert again.claim(0, waits=True, since=SINCE + 3) == ["holder", "run2"]
            serving.join()
            other = Run(gpus, "other")
            assert other.claim(2, waits=True, since=SINCE + 9) == [], "who wants other GPUs is in nobody's way"
            count = len(again.said)
        other.holder.end()
    again.serve(lambda: len(again.said) > count and not again.said[-1]["rivals"])
    again.holder.end()


def test_the_next_attempt_has_at_once_what_the_last_one_gives_back(gpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though somebody else on this box never answers; nor does it wait for itself before that."""
    last, following, taken = Run(gpus, "run"), Run(gpus, "run"), list[bool]()
    assert last.claim(0) == []
    last.holder.reserve(lambda: taken.append(True))
    serving = threading.Thread(target=last.serve, args=[lambda: taken])
    serving.start()
    assert following.claim(0, waits=True) == []
    monkeypatch.setattr(claims, "_ANSWER_S", NEVER_S)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(f"\0launch/{gpus}C/0")
        mute.listen()
        following.ask(0)
        following.serve(lambda: following.holder.fds)
    serving.join()
    following.holder.end()


def test_a_claim_without_a_free_descriptor_is_said(gpus: str) -> None:
    run, limits = Run(gpus, "run"), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        run.ask(0)
        run.serve(lambda: run.said)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert run.said[-1]["error"] == "its GPUs can't be claimed: Too many open files"


def test_only_who_starts_ranks_has_the_sockets(gpus: str) -> None:
    """A fork that outlives the run, such as one that hangs in a driver, holds no GPU."""
    run, other = Run(gpus, "mine"), Run(gpus, "other")
    for is_starter in (False, True):
        assert run.claim(0) == []
        end, told = os.pipe()
        pid = workers.fork(0, run.holder.fds if is_starter else ())
        if pid == 0:
            os.close(told)
            os.read(end, 1)
            os._exit(0)
        os.close(end)
        run.holder.end()
        assert other.claim(0) == (["root?"] if is_starter else [])
        os.close(told)
        wait_for(pid)
        assert other.claim(0) == []
        other.holder.end()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., WarmProcess]]:
    """Start `launch singlenode` on a machine with four GPUs, which writes to a file of its own."""
    tool = put_smi(tmp_path / "bin", tmp_path.name)
    with ExitStack() as ends:

        def start(name: str, *words: str, command: str = "singlenode") -> WarmProcess:
            folder = tmp_path / name
            folder.mkdir()
            env = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
            with (folder / "said").open("wb") as said:
                process = start_launch(command, *words, cwd=folder, env=env, stdout=said, stderr=said)
            ends.callback(process.wait)
            ends.callback(process.kill)
            return process

        yield start


def test_two_runs_that_want_the_same_gpus(launch: Callable[..., WarmProcess], tmp_path: Path) -> None:
    def said(name: str) -> str:
        return (tmp_path / name / "said").read_text()

    script = "echo ready; until [ -e go ]; do sleep 0.05; done; exit $((7 * (2 - LAUNCH_ATTEMPT)))"
    words = ("--gpus", "2", "--no-python", "sh", "-c")
    first = launch("first", "--restarts", "2", "--name", "nightly", "--for", "365d", *words, script)
    assert wait_until(lambda: said("first").count("ready") == 2), said("first")
    assert launch("second", *words, "true").wait() == 70
    name = os.uname().nodename.split(".")[0]
    run = said("first").partition("run ")[2].partition(",")[0].partition(" ")[0]
    assert f"  {name}: GPU 0-1: root, run {run} (nightly), for " in said("second"), said("second")
    assert re.search(r"nightly\), for [0-9.]+ s, until 2[0-9]{3}-[0-9]{2}-[0-9]{2} [0-9:]{5}\n", said("second"))
    fixes = f"choose free GPUs with --include {name}:2,3, wait with --queue, or start anyway with --share"
    assert f"    fix: {fixes}\n" in said("second")
    looks = ("--hosts", "localhost", "--dry-run", "--check")
    assert launch("looked", *looks, *words, "true", command="run").wait() == 70, said("looked")
    assert launch("looked on", "--share", *looks, *words, "true", command="run").wait() == 0, said("looked on")
    assert "would break" not in said("looked on") and "1 warning" in said("looked on"), said("looked on")
    sharing = launch("sharing", "--share", *words, "echo ready; until [ -e go ]; do sleep 0.05; done")
    assert wait_until(lambda: said("sharing").count("ready") == 2), said("sharing")
    # The second failure, which is another one, is followed by a pause, in which nothing of the run is alive.
    (tmp_path / "first" / "go").touch()
    assert wait_until(lambda: "restarting in 5 s" in said("first")), said("first")
    first.send_signal(signal.SIGSTOP)  # so that the pause lasts, however long the next one takes to look
    assert launch("third", *words, "true").wait() == 70, said("third")
    assert f"GPU 0-1: root, run {run} (nightly), for " in said("third"), said("third")
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 0, "restarts beside who shares: " + said("first")
    (tmp_path / "sharing" / "go").touch()
    assert sharing.wait() == 0, said("sharing")
    assert launch("last", *words, "true").wait() == 0, said("last")


def test_old_ranks_that_save_keep_others_out(
    launch: Callable[..., WarmProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guardian and supervisor are killed; a rank has no socket, so what it leaves behind would hold nothing.

    A warm Python starts the ranks: they are forks, which have its descriptors unless they close them.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("stand_in")))
    script = tmp_path / "train.py"
    script.write_text(SAVING)
    words = ("--no-check", "--gpus", "1")
    first = launch("first", *words, "--start", "warm", str(script))
    told = tmp_path / "first" / "told"
    assert wait_until(lambda: told.exists() and told.read_text().endswith("\n")), (tmp_path / "first/said").read_text()
    starter, *sockets = told.read_text().split()
    assert not sockets, sockets
    supervisor = read_parent(int(starter))
    guardian = read_parent(supervisor)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (supervisor, guardian):
            os.kill(pid, number)
    saving = tmp_path / "first" / "saving"
    assert wait_until(saving.exists)
    assert launch("second", *words, "--no-python", "true").wait() == 70
    said = (tmp_path / "second" / "said").read_text()
    assert "GPU 0: root, a run that doesn't respond\n" in said, said
    (tmp_path / "first" / "go").touch()
    first.wait()
    assert launch("third", *words, "--no-python", "true").wait() == 0


def test_runs_that_wait_for_their_turn(launch: Callable[..., WarmProcess], tmp_path: Path) -> None:
    def said(name: str) -> str:
        return (tmp_path / name / "said").read_text()

    def states() -> dict[str, str]:
        rows = json.loads(run_launch("ps", "--json", cwd=tmp_path, code=0).stdout)
        return {row.name: row.describe() for row in map(read_row, rows) if row is not None}

    def is_queued(name: str, place: str, whom: str) -> bool:
        """Return whether a run has said its place; on a busy host the first answer takes so long that it says how."""
        return (
            re.search(rf"^launch: queued(?: for [\d.]+ s)?, {place}, behind {whom}", said(name), re.MULTILINE)
            is not None
        )

    words = ("--gpus", "2", "--no-python", "sh", "-c")
    wait = "echo ready; until [ -e go ]; do sleep 0.05; done"
    name = os.uname().nodename.split(".")[0]
    first = launch("first", "--name", "nightly", *words, wait)
    assert wait_until(lambda: said("first").count("ready") == 2), said("first")
    second = launch("second", "--queue", "--name", "sweep", *words, wait)
    assert wait_until(lambda: is_queued("second", "1st", f"root's nightly on {name}\n")), said("second")
    third = launch("third", "--queue", "--name", "third", *words, wait)
    assert wait_until(lambda: is_queued("third", "2nd", f"root's sweep on {name}\n")), said("third")
    fourth = launch("fourth", "--queue", "--name", "fourth", *words, "true")
    assert wait_until(lambda: is_queued("fourth", "3rd", "root's third")), said("fourth")
    found = states()
    assert (found["sweep"], found["third"]) == (
        "queued, 1st, behind root's nightly",
        "queued, 2nd, behind root's sweep",
    )
    assert launch("late", "--queue", "1", *words, "true").wait() == 70
    assert "launch: its time in the queue (--queue) is over; nothing was started, exit code 70\n" in said("late")
    (tmp_path / "first" / "go").touch()
    assert first.wait() == 0
    assert wait_until(lambda: said("second").count("ready") == 2), said("second")
    assert f"launch: its turn on {name} after " in said("second")
    assert launch("pushing", *words, "true").wait() == 70, "who doesn't wait comes after those who do"
    assert "(third), for " in said("pushing") and ", in the queue\n" in said("pushing"), said("pushing")
    third.send_signal(signal.SIGINT)
    assert third.wait() == 130, said("third")
    assert wait_until(lambda: "queued for " in said("fourth") and "1st, behind root's sweep" in said("fourth"))
    second.send_signal(signal.SIGKILL)
    assert fourth.wait() == 0, said("fourth")
    assert states()["third"] == "stopped"


def test_free_shows_who_uses_what(launch: Callable[..., WarmProcess], tmp_path: Path) -> None:
    """GPUs 0 and 1 are claimed, this process has memory on 2, and nobody uses 3."""
    holder = launch("holder", "--gpus", "2", "--name", "nightly", "--no-python", "sh", "-c", "echo ready; sleep 1000")
    said = tmp_path / "holder" / "said"
    assert wait_until(lambda: said.read_text().count("ready") == 2), said.read_text()
    tool = tmp_path / "bin" / "nvidia-smi"
    app = f'echo "GPU-{tmp_path.name}-2, {os.getpid()}, 10240"; exit'
    tool.write_text(tool.read_text().replace(") exit", f") {app}"))
    env = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}

    def free(*words: str) -> str:
        return run_launch("free", "--hosts", "localhost", *words, cwd=tmp_path, env=env, code=0).stdout

    first, second, third, last = free().splitlines()
    run = said.read_text().partition("run ")[2].partition(",")[0].partition(" ")[0]
    assert first.startswith(f"localhost  GPU 0-1  root, run {run} (nightly), for ")
    assert second.startswith(f"           GPU 2    pid {os.getpid()} (")
    assert second.endswith(") of root, 10 GB, no claim")
    assert third == "           GPU 3    free"
    assert last == "1 of 4 GPUs is free: --include localhost:3"
    (host,) = json.loads(free("--json"))["hosts"]
    assert [gpu["state"] for gpu in host["gpus"]] == ["claimed", "claimed", "busy", "free"]
    assert [(claim["run"], claim["gpus"]) for claim in host["claims"]] == [(run, [0, 1])]
    holder.send_signal(signal.SIGTERM)
    assert holder.wait() == 143
