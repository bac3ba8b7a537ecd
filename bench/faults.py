"""What is left of a training after a fault, how soon the rest of it has ended, and what the tool says of it.

Two hosts with two ranks each reduce a number every tenth of a second. The fault happens on n2, or to the tool.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machines.processes import read_name, read_parent, send_signal

from bench.lab import Lab, Running
from bench.rank import FAULT, NAME
from bench.tools import Tool

CAP_S = 40.0  # of waiting for the last process
HEALED_S = 20.0  # of waiting once the host is back
POLL_S = 0.05
# What names the host or the rank, and what says that it was lost.
WHERE = r"\bn2\b|\b10\.\d+\.0\.3\b|rank\W{0,3}3\b|rank3\b"
LOST = r"lost|no answer|respon|timed? ?out|unreachable|clos|reset|heartbeat|without contact|silent|died|no route"
KILLED = r"SIGKILL|[Ss]ignal:? 9|exit(?: ?code)?\W+-9|\b137\b|[Kk]illed"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong; a cause is named if both where and what it was are in the output."""

    name: str
    happen: Callable[[Lab, Running], None]
    cause: str = ""  # a pattern; "" if there is nothing to name
    heals: bool = False  # n2 comes back before what is left is counted


@dataclass(frozen=True, slots=True)
class Fate:
    """What was seen of a fault; seconds are None if something was still there, and the exit code if the tool was."""

    seconds: float | None
    left: int
    exit_code: int | None
    is_named: bool | None


def _raise(lab: Lab, running: Running) -> None:
    (lab.folder / "fail").touch()


def _rank_of(lab: Lab) -> int:
    return min(pid for pid in lab.hosts[1].pids() if read_name(pid) == NAME)


def _kill_rank(lab: Lab, running: Running) -> None:
    send_signal(_rank_of(lab), signal.SIGKILL)


def _kill_parent(lab: Lab, running: Running) -> None:
    send_signal(read_parent(_rank_of(lab)), signal.SIGKILL)


FAULTS = (
    Fault("a rank raises", _raise, FAULT),
    Fault("a rank is killed", _kill_rank, KILLED),
    Fault("what started the ranks of a host is killed", _kill_parent, f"{KILLED}|{LOST}"),
    Fault("Ctrl-C", lambda lab, running: running.interrupt()),
    Fault("SIGTERM to the tool", lambda lab, running: send_signal(running.pid, signal.SIGTERM)),
    Fault("SIGKILL to the tool", lambda lab, running: send_signal(running.pid, signal.SIGKILL)),
    Fault("a host loses power", lambda lab, running: lab.hosts[1].power_off(), LOST),
    Fault("a host freezes", lambda lab, running: lab.hosts[1].freeze(), LOST, heals=True),
    Fault("a host's cable is pulled", lambda lab, running: lab.hosts[1].cut(), LOST, heals=True),
)


def cause(lab: Lab, tool: Tool, fault: Fault, cap_s: float = CAP_S, keep: Path | None = None) -> Fate:
    """Start a training, let the fault happen, and return what was seen; keep the tool's output in a file."""
    assert tool.train
    (lab.folder / "fail").unlink(missing_ok=True)
    try:
        with lab.started(tool.train(lab, lab.names, ["loop", str(lab.folder / "fail")]), tool.env) as running:
            running.wait_for("first all-reduce done")
            time.sleep(1.0)
            printed = len(running.text)
            began_at = time.monotonic()
            fault.happen(lab, running)
            seconds = _await_end(lab, began_at, cap_s, has_frozen=fault.name == "a host freezes")
            exit_code = running.finish(max(0.1, began_at + cap_s - time.monotonic()))
            if fault.heals:
                lab.cluster.heal()
                _await_end(lab, time.monotonic(), HEALED_S)
            left = len(_processes(lab))
            text = running.text[printed:]
    finally:
        lab.cluster.heal()
    if keep is not None:
        keep.write_text(text)
    is_named = bool(re.search(WHERE, text) and re.search(fault.cause, text, re.IGNORECASE)) if fault.cause else None
    return Fate(seconds, left, exit_code, is_named)


def _processes(lab: Lab, *, but_frozen: bool = False) -> list[int]:
    hosts = lab.hosts[:1] if but_frozen else lab.hosts
    return [process.pid for host in hosts for process in host.processes()]


def _await_end(lab: Lab, began_at: float, cap_s: float, *, has_frozen: bool = False) -> float | None:
    """Return the seconds until no process of the training is left; a frozen host's can't end, and don't count."""
    while _processes(lab, but_frozen=has_frozen):
        if time.monotonic() > began_at + cap_s:
            return None
        time.sleep(POLL_S)
    return time.monotonic() - began_at
