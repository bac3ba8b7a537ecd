"""The ways in: how a run is typed on `login`, what breaks its connections, and what a way can't give.

A new way is an entry of WAYS, and one of GAPS for each promise that it can't keep: what can't be kept is not tested.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from machines.slurm import LOGIN, NODES, Slurm

CONNECT_S = 1.0


class Promise(enum.Enum):
    """What a run keeps to, in the words of LAUNCH_GUIDE.md."""

    RANK = "a rank fails or is killed: it is named, and the others are ended"
    KEEPER = "guardian, supervisor or both are killed: the same"
    SIGNAL = "Ctrl-C, SIGTERM, SIGHUP: the ranks may save; Ctrl-C again: at once"
    LAUNCHER = "`launch` is killed or frozen: the hosts end the run"
    OUTPUT = "output comes to the last byte, and who doesn't read it holds up nobody"
    SILENCE = "a host is silent: it is named after `--silence`, and looked at once more"
    CONNECTION = "a connection breaks: the host is named, and looked at over another"
    NETWORK = "a cable is out: the host is named, and ends its ranks by itself"
    START = "a host can't be reached: it is named, and nothing is started"


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


# ---- what is typed --------------------------------------------------------------------------------------------------

_CONNECT = ("--connect-timeout", f"{CONNECT_S:g}")


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


def _cancel_step(slurm: Slurm) -> None:
    slurm.run("scancel", slurm.run("squeue", "--steps", "--noheader", "--format=%i").stdout.strip())


# ---- the table ------------------------------------------------------------------------------------------------------

_SESSION = Cut(_kill_sessions, r"the connection was lost")

WAYS = (
    Way("fabric", NODES, _by_ssh("fabric"), {"sshd": _SESSION}, r"\S+ port 22 does not answer"),
    Way(
        "ssh", NODES, _by_ssh("ssh"),
        {"sshd": _SESSION, "ssh": Cut(_kill(LOGIN, r"\S*ssh "), r"the connection was lost", r"node\d")},
        r"\S+ port 22 does not answer",
    ),
    Way(
        "srun", NODES, lambda slurm: ("run", *_CONNECT),
        {
            "srun": Cut(_kill(LOGIN, r"\S*srun --jobid"), r"srun was killed by signal 9", r"node\d"),
            "relay": Cut(_kill("node2", r".*print\(\"~\w+ here"), r"our task there ended: Killed"),
            "step": Cut(_cancel_step, r"Slurm has cancelled (our step|step \d+\.\d)", r"node\d"),
        },
        r"Slurm has not started our step there in N s",
        before=("salloc", "--quiet", f"--nodes={len(NODES)}"),
    ),
    Way("local", (LOGIN,), lambda slurm: ("singlenode",)),
)  # fmt: skip

GAPS: Mapping[str, Mapping[Promise, str]] = {
    "local": {
        Promise.CONNECTION: "a pipe breaks with its process alone",
        Promise.NETWORK: "there is none",
        Promise.START: "we are there",
    },
}


def over_ways(
    promise: Promise, names: str = "", rows: Mapping[str, Sequence[object]] | None = None
) -> pytest.MarkDecorator:
    """Run a test over every way that keeps the promise: the first with all rows of parameters, the others with one."""
    first, *others = [way for way in WAYS if promise not in GAPS.get(way.name, {})]
    (name, row), *more = (rows or {"": ()}).items()
    cases = [pytest.param(way, *row, id="-".join(filter(None, [way.name, name]))) for way in (first, *others)]
    cases += [pytest.param(first, *row, id=f"{first.name}-{name}") for name, row in more]
    return pytest.mark.parametrize(", ".join(filter(None, ["way", names])), cases)


def over_cuts() -> pytest.MarkDecorator:
    """Run a test with each cut of every way."""
    cases = [pytest.param(way, cut, id=f"{way.name}-{name}") for way in WAYS for name, cut in way.cuts.items()]
    return pytest.mark.parametrize("way, cut", cases)
