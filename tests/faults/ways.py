"""The ways in: how a run is typed on `login`, what breaks its connections, and what a way can't give.

A new way is an entry of WAYS, and one of GAPS for each promise that it can't keep: what can't be kept is not tested.
Every transport of launcher/transports/registry.py must have one, which test_faults_table.py checks.
"""

from __future__ import annotations

import enum
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from machines.patience import DEADLINE_S
from machines.processes import read_name
from machines.slurm import LOGIN, NODES, Slurm


class Promise(enum.Enum):
    """What a run guarantees, in the words of docs/faults.md."""

    RANK = "a rank fails or is killed: the rank is named, and the other ranks are stopped"
    KEEPER = "one helper on a host is killed, or both: the host is named, and all ranks are stopped"
    SIGNAL = "Ctrl-C or SIGTERM: ranks get time to save; a second Ctrl-C kills them at once"
    HANGUP = "SIGHUP, at the end of the terminal: ranks get time to save"
    KILLED = "`launch` is killed: the hosts stop the run"
    FROZEN = "`launch` or its machine is suspended: the hosts stop the run after `--silence`"
    SILENT = "a helper hangs: its host is named after `--silence` and cleaned up"
    BROKEN = "a connection breaks: its host is named and checked over a new one"
    LOST = "a host is off, frozen or without network: it is named after `--silence`"
    ALONE = "a host without network stops its own ranks"
    ABSENT = "a host can't be reached: it is named, and nothing starts"
    RESTART = "with `--restarts`: the run comes back, and never runs twice at the same time"
    RESTART_LOST = "the same, if a host was lost and nobody can ask it what is left"
    OUTPUT = "output arrives to the last byte, and a slow reader never stalls the run"
    SECRET = "secrets reach the ranks and appear in no command line"


@dataclass(frozen=True, slots=True)
class Cut:
    """What breaks the connection to node2, and how that is told."""

    make: Callable[[Slurm], None]
    told: str  # a pattern
    host: str = "node2"  # one for all hosts may be told for either


@dataclass(frozen=True, slots=True)
class Way:
    """One way in."""

    name: str
    hosts: tuple[str, ...]  # in the order of their ranks
    words: Callable[[Slurm], tuple[str, ...]]  # behind `launch`, before the options of a run
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    never_there: str = ""  # how a host that is off is told, after its name
    before: tuple[str, ...] = ()  # what is typed in front of `launch`
    program: str = ""  # what must be there for it, and is a package of Debian's
    may_leave_folder: bool = False  # on a host that thaws, where Slurm kills all that it finds
    controller: str = LOGIN  # the host that keeps the logs
    is_warm: bool = False  # ranks are forked by a Python that has imported torch, a stand-in for it; else by a shim


# ---- what is typed --------------------------------------------------------------------------------------------------

_CONNECT = ("--connect-timeout", f"{DEADLINE_S:g}")  # where it is waited for, a test says less


def _by_ssh(transport: str) -> Callable[[Slurm], tuple[str, ...]]:
    return lambda slurm: (
        *("run", "--hosts", ",".join(NODES), *_CONNECT),
        *("--transport", transport, "--ssh-config", str(slurm.cluster.ssh_config)),
    )


# ---- what breaks a connection ---------------------------------------------------------------------------------------


def _kill(host: str, pattern: str) -> Callable[[Slurm], None]:
    """Kill those whose command line matches."""

    def make(slurm: Slurm) -> None:
        found = [process for process in slurm.cluster[host].processes() if re.match(pattern, process.command)]
        assert found, pattern
        for process in found:
            process.kill()

    return make


def _kill_sessions(slurm: Slurm) -> None:
    slurm.cluster["node2"].end_sessions()


def _kill_srun(slurm: Slurm) -> None:
    """Its child has Slurm kill the step; if both are killed, the run continues."""
    found = [process for process in slurm.cluster[LOGIN].processes() if "srun --jobid" in process.command]
    min(found, key=lambda process: process.pid).kill()


def _kill_agent(slurm: Slurm) -> None:
    (found,) = (process for process in slurm.cluster["node2"].processes() if read_name(process.pid) == "launch-agent")
    found.kill()


def _cancel_step(slurm: Slurm) -> None:
    slurm.run("scancel", slurm.run("squeue", "--steps", "--noheader", "--format=%i").stdout.strip())


def _cancel_step_slowly(slurm: Slurm) -> None:
    """Slurm kills one process after another: a rank may be the first, and its supervisor may report that in time."""
    _kill("node2", r"sleep ")(slurm)
    _cancel_step(slurm)


# ---- the tables -----------------------------------------------------------------------------------------------------

_SESSION = Cut(_kill_sessions, r"the connection was lost")
_CANCELLED = r"Slurm has cancelled (launch's step|step \d+\.\d)"
# The latter once the kernel has asked for its address for three seconds, which a longer --connect-timeout lets it do.
_SILENT_PORT = r"(\S+ port 22 does not answer|no route to \S+ port 22)"

WAYS = (
    Way("fabric", NODES, _by_ssh("fabric"), {"sshd": _SESSION}, _SILENT_PORT),
    Way(
        "ssh", NODES, _by_ssh("ssh"),
        {"sshd": _SESSION, "ssh": Cut(_kill(LOGIN, r"\S*ssh "), r"the connection was lost", r"node\d")},
        _SILENT_PORT, is_warm=True,
    ),
    Way(
        "pdsh", NODES, _by_ssh("pdsh"),
        {
            "sshd": _SESSION,
            "ssh": Cut(_kill(LOGIN, r"\S*ssh "), r"the connection was lost", r"node\d"),
        },
        _SILENT_PORT,
        program="pdsh",
    ),
    Way(
        "srun", NODES, lambda slurm: ("run", *_CONNECT),
        {
            "srun": Cut(_kill_srun, r"srun was killed by signal 9", r"node\d"),
            "agent": Cut(_kill_agent, r"launch's task there ended: Killed"),
            "step": Cut(_cancel_step, _CANCELLED, r"node\d"),
            "rank-and-step": Cut(_cancel_step_slowly, _CANCELLED, r"node\d"),
        },
        # The latter if --connect-timeout is longer than Slurm's own time limit, as on a slow machine.
        r"Slurm (has not started launch's step there in N s|can't start launch's step there: Communication .*)",
        before=("salloc", "--quiet", f"--nodes={len(NODES)}"), may_leave_folder=True, is_warm=True,
    ),
    Way(
        "enter", NODES, lambda slurm: (*_by_ssh("fabric")(slurm), "--enter", str(slurm.enter_program)),
        {"sshd": _SESSION},
    ),
    Way("local", (LOGIN,), lambda slurm: ("singlenode",), is_warm=True),
    Way(
        "detached", NODES, lambda slurm: (*_by_ssh("fabric")(slurm), "--detach"), never_there=_SILENT_PORT,
        controller=NODES[0], is_warm=True,
    ),
)  # fmt: skip

GAPS: Mapping[str, Mapping[Promise, str]] = {
    "detached": {
        Promise.HANGUP: "the run continues",
        Promise.KILLED: "the run continues",
        Promise.FROZEN: "the run continues",
        Promise.BROKEN: "the host is named and stops its ranks; it is checked only if a restart follows",
        Promise.RESTART_LOST: "once the run continues without its terminal; until then its start fails",
    },
    "local": {
        Promise.BROKEN: "not applicable: a pipe is the only connection",
        Promise.LOST: "not applicable (local)",
        Promise.RESTART_LOST: "not applicable (local)",
        Promise.ALONE: "not applicable: there is no network",
        Promise.ABSENT: "not applicable (local)",
    },
    "enter": {
        promise: "as the transport"
        for promise in Promise
        if promise not in (Promise.RANK, Promise.KEEPER, Promise.SIGNAL, Promise.KILLED, Promise.BROKEN)
    },
}


TRIED: defaultdict[Promise, set[str]] = defaultdict(set)  # over which ways


def over_ways(
    promise: Promise,
    names: str = "",
    rows: Mapping[str, Sequence[object]] | None = None,
    *,
    also: Promise | None = None,
    form: int = 0,
    forms: int = 0,
) -> pytest.MarkDecorator:
    """Run a test over every way that keeps the promise, and the other one that it also shows.

    All rows of parameters are tried over the last way, and one of them, in turn, over each of the others: the rows
    differ in what happens to a host, which most ways hear of alike. EVERY_PAIR=1 tries all over all.

    Tests of one promise may take turns like rows: form is the number of the first row here, of `forms` in all tests.
    """
    promises = {promise, also or promise}
    ways = [way for way in WAYS if promises.isdisjoint(GAPS.get(way.name, {}))]
    rows = rows or {"": ()}
    cases = [
        pytest.param(way, *row, id="-".join(filter(None, [way.name, name])))
        for number, way in enumerate(ways)
        for place, (name, row) in enumerate(rows.items(), form)
        if way is ways[-1] or place == number % (forms or len(rows)) or os.environ.get("EVERY_PAIR")
    ]
    for each in promises:
        TRIED[each] |= {way.name for way in ways if any(case.values[0] is way for case in cases)}
    return pytest.mark.parametrize(", ".join(filter(None, ["way", names])), cases)


def over_cuts() -> pytest.MarkDecorator:
    """Run a test with each cut of every way."""
    TRIED[Promise.BROKEN] = {way.name for way in WAYS if way.cuts}
    cases = [pytest.param(way, cut, id=f"{way.name}-{name}") for way in WAYS for name, cut in way.cuts.items()]
    return pytest.mark.parametrize("way, cut", cases)
