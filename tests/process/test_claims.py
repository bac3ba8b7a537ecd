"""Claims on the GPUs of a machine: what other users can't do to them, and what runs see of each other's."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from machines.launches import run_launch, start_launch
from machines.patience import DEADLINE_S
from machines.processes import wait_until
from machines.warm import WarmProcess

from launcher.node import claims, messages
from launcher.node.claims import Claim, ClaimHolder, OwnClaim, find_directory, read_claims, remove_old, take_place
from launcher.node.loop import Loop
from launcher.preflight.claims import ClaimOrder
from launcher.runs.run_rows import describe_row

pytestmark = pytest.mark.linux

ANN, BOB = 54001, 54002  # nobody has these ids
SMI = """#!/bin/sh
case "$*" in *query-compute-apps*) exit;; esac
for i in 0 1 2 3; do
    echo "$i, NVIDIA H100, 81559, 550.54, GPU-{folder}-$i, 81000, Enabled, Default, 0, 00000000:0$i:00.0"
done
"""


def values(run: str, *parts: str, **more: object) -> dict[str, object]:
    return {"run": run, "name": None, "since": time.time(), "parts": [*parts], "is_shared": False, **more}


def as_user(uid: int, act: Callable[[], object]) -> int:
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


@pytest.fixture
def directory() -> Iterator[str]:
    found = find_directory()
    if os.geteuid() != 0 or found is None:
        pytest.skip("no root, who can be several users")
    yield found
    for path in Path(found).glob("launch-*"):
        path.unlink()


def test_of_all_that_want_the_same_one_wins(directory: str, tmp_path: Path) -> None:
    """Twelve processes of three users try again and again, and note when they have it and when they leave it."""
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def compete(number: int) -> None:
        deadline, wins = time.monotonic() + DEADLINE_S, 0
        while wins < 3:
            assert time.monotonic() < deadline
            own = OwnClaim(directory, values(f"run{number}", "A", f"B{number % 3}"))
            while not own.is_settled:
                time.sleep(0.001)
            has_won = not any(claim.order < own.order for claim in own.find_others())
            if has_won:
                wins += 1
                os.write(log, b"+")
                time.sleep(0.002)
                os.write(log, b"-")
            own.end()
            time.sleep(0.001 * (number % 5))

    for pid in [as_user(ANN + number % 3, lambda number=number: compete(number)) for number in range(12)]:
        wait_for(pid)
    assert (tmp_path / "log").read_bytes() == b"+-" * 36
    assert not list(Path(directory).glob("launch-*"))


def test_what_others_put_there_harms_nobody(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnClaim(directory, values("mine", "A"))
    ready, go = os.pipe()

    def harm() -> None:
        place = Path(directory)
        os.mkfifo(place / "launch-claim-fifo")
        (place / "launch-claim-link").symlink_to(own.path)
        times = [json.dumps(values("x", "A", since=since)) for since in (float("nan"), 10**400)]
        bad = ["[" * 4000, "{}", "x" * 5000, *times, '{"run": "x", "parts": "A", "since": 1}']
        texts = {f"launch-claim-{number}": text for number, text in enumerate([*bad, json.dumps(values("dead", "A"))])}
        held = []
        for name, text in texts.items():
            (place / name).write_text(text)
            held.append((place / name).open("r+"))
            if text in bad:
                fcntl.lockf(held[-1], fcntl.LOCK_EX)
        mine = Path(own.path)
        for change in (lambda: mine.open("r+"), mine.unlink, lambda: mine.rename(place / "launch-claim-stolen")):
            with pytest.raises(PermissionError):
                change()
        with mine.open() as file, pytest.raises(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.write(go, b"x")
        signal_end.read(1)

    end, told = os.pipe()
    signal_end = os.fdopen(end, "rb")
    pid = as_user(BOB, harm)
    os.read(ready, 1)
    assert read_claims(directory, own=(own,)) == []
    assert own.find_others() == []
    os.write(told, b"x")
    wait_for(pid)
    # What a process holds for long without a child, such as ranks, doesn't count.
    monkeypatch.setattr(claims, "UNUSED_S", -1.0)

    def hold() -> None:
        held = OwnClaim(directory, values("idle", "A"))
        os.write(go, b"x")
        signal_end.read(1)
        held.end(60.0)

    pid = as_user(BOB, hold)
    os.read(ready, 1)
    assert read_claims(directory, own=(own,)) == []
    os.write(told, b"x")
    wait_for(pid)
    (reserved,) = read_claims(directory, own=(own,))
    assert (reserved.uid, reserved.run, reserved.is_reserved) == (BOB, "idle", True)
    wait_for(as_user(BOB, lambda: remove_old(directory, values("idle", "A"))))
    assert read_claims(directory, own=(own,)) == []
    own.end()


def test_a_directory_that_somebody_has_filled(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can't claim GPUs there still sees whose they are, and looks again if it waits for them."""
    ready, go = os.pipe()
    end, told = os.pipe()

    def hold() -> None:
        held = OwnClaim(directory, values("nightly", "A"))
        os.write(go, b"x")
        os.read(end, 1)
        held.end()

    pid = as_user(BOB, hold)
    os.read(ready, 1)
    loop, said = Loop(), list[tuple[list[str], str | None, list[int]]]()

    class Launcher:
        def send(self, kind: str, **fields: Any) -> None:
            assert kind == messages.CLAIMED
            said.append(([claim["run"] for claim in fields["rivals"]], fields["error"], [*fields["taken"]]))

    launcher: Any = Launcher()
    holder = ClaimHolder(loop, launcher, [{"index": 0, "uuid": "A"}, {"index": 1, "uuid": "B"}])

    def claim(gpu: int, *, waits: bool = False) -> None:
        order = ClaimOrder("mine", None, 1.0, 1).as_fields(waits=waits)
        holder.answer({**order, "is_look": False, "gpus": [gpu]})

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)
    for gpu, waits in ((1, False), (0, False), (0, True)):
        claim(gpu, waits=waits)
    error = f"{directory}: No space left on device"
    assert said == [([], error, [0]), (["nightly"], error, [0]), (["nightly"], error, [0])]
    os.write(told, b"x")
    wait_for(pid)
    monkeypatch.undo()
    while len(said) < 4:
        loop.run_once()
    assert said[3] == ([], None, []), "a place, where nobody is before it"
    holder.end(0.0)
    assert not list(Path(directory).glob("launch-*"))


def test_a_place_in_the_queue_keeps_its_age(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = OwnClaim(directory, values("first", "A", is_waiting=True))
    assert wait_until(lambda: first.is_settled)
    second = OwnClaim(directory, values("second", "A", is_waiting=True))
    first.end(60.0)
    left, behind = read_claims(directory, own=(second,))[0], second.order
    assert (left.run, left.is_waiting, left.is_reserved, left.order < behind) == ("first", True, True, True)
    remove_old(directory, own=(second,))
    assert take_place(directory, values("other", "A", is_waiting=True), (second,)) is None
    again = take_place(directory, values("first", "A", is_waiting=True), (second,))
    assert again is not None
    assert again.order == left.order
    assert len(list(Path(directory).glob("launch-*"))) == 2
    monkeypatch.setattr(claims, "KEPT_S", -1.0)
    again.end(60.0)
    assert read_claims(directory, own=(second,)) == []
    remove_old(directory, own=(second,))
    second.end()
    assert not list(Path(directory).glob("launch-*"))


def test_a_place_whose_holder_is_stopped_is_in_nobodys_way(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "UNUSED_S", -1.0)
    ready, go = os.pipe()

    def hold() -> None:
        place = OwnClaim(directory, values("first", "A", is_waiting=True))
        os.write(go, b"x")
        os.kill(os.getpid(), signal.SIGSTOP)
        place.end()

    pid = as_user(BOB, hold)
    os.read(ready, 1)
    assert wait_until(lambda: read_claims(directory) == [])
    os.kill(pid, signal.SIGCONT)
    wait_for(pid)
    assert not list(Path(directory).glob("launch-*"))


def test_a_claim_counts_whatever_it_says_of_its_end() -> None:
    def read(**more: object) -> Any:
        claim = Claim(0, (1, "a"), {"run": "x", "since": 1, "parts": ["A"], **more}, is_reserved=False)
        return claim.as_fields({"A": 0})["until"]

    bad = ("18:00", float("nan"), float("inf"), 10**400, -1, [], None)
    assert [read(until=until) for until in bad] == [None] * len(bad)
    assert (read(), read(until=1_790_000_000)) == (None, 1_790_000_000.0)


def test_the_name_of_a_claim_can_be_printed() -> None:
    claim = Claim(0, (1, "a"), {"run": "\ud800", "name": "x\udc80", "since": 1, "parts": []}, is_reserved=False)
    assert (claim.run, claim.name) == ("?", "x?")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., WarmProcess]]:
    """Start `launch singlenode` on a machine with four GPUs, which writes to a file of its own."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI.format(folder=tmp_path.name))
    tool.chmod(0o755)
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
    sharing = launch("sharing", "--share", *words, "until [ -e go ]; do sleep 0.05; done")
    assert wait_until(lambda: "uses them, too (--share)\n" in said("first")), said("first") + said("sharing")
    # The second failure, which is another one, is followed by a pause, in which nothing of the run is alive.
    (tmp_path / "first" / "go").touch()
    assert wait_until(lambda: "restarting in 5 s" in said("first")), said("first")
    first.send_signal(signal.SIGSTOP)  # so that the pause lasts, however long the next one takes to look
    assert launch("third", *words, "true").wait() == 70, said("third")
    assert ", reserved for its start\n" in said("third"), said("third")
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 0, "restarts beside who shares: " + said("first")
    (tmp_path / "sharing" / "go").touch()
    assert sharing.wait() == 0, said("sharing")
    assert launch("last", *words, "true").wait() == 0, said("last")
    assert not list(Path(find_directory() or "").glob("launch-*"))


def test_runs_that_wait_for_their_turn(launch: Callable[..., WarmProcess], tmp_path: Path) -> None:
    def said(name: str) -> str:
        return (tmp_path / name / "said").read_text()

    def states() -> dict[str, str]:
        rows = json.loads(run_launch("ps", "--json", cwd=tmp_path, code=0).stdout)
        return {row["name"]: describe_row(row) for row in rows}

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
    assert wait_until(lambda: not list(Path(find_directory() or "").glob("launch-*")))
    assert states()["third"] == "stopped"


def test_the_queue_waits_for_processes_without_a_claim(launch: Callable[..., WarmProcess], tmp_path: Path) -> None:
    """This process has most of the memory of GPU 0."""
    tool = tmp_path / "bin" / "nvidia-smi"
    app = f'echo "GPU-{tmp_path.name}-0, {os.getpid()}, 71000"; exit'
    tool.write_text(tool.read_text().replace(") exit", f") {app}").replace(", 81000,", ", 10000,"))
    words = ("--gpus", "1", "--no-python", "true")
    name = os.uname().nodename.split(".")[0]
    waiting = launch("waiting", "--queue", *words)
    said = tmp_path / "waiting" / "said"
    line = rf"launch: queued( for [^,]+)?, 1st, behind pid {os.getpid()} \(.*\) of root on {name}\n"
    assert wait_until(lambda: re.search(line, said.read_text()) is not None), said.read_text()
    assert launch("pushing", *words).wait() == 70
    text = (tmp_path / "pushing" / "said").read_text()
    assert f"  {name}: GPU 0 busy: pid {os.getpid()} (" in text and ", in the queue\n" in text, text
    assert f"    fix: choose free GPUs with --include {name}:1, wait with --queue, or start anyway with --no-c" in text
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait() == 130, said.read_text()


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
