"""From what srun and Slurm's daemons print about a step to why a node can't be used. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.errors import HostFailure, HostFailureKind, UsageError
from launcher.hosts.ranges import expand_ranges, split_list
from launcher.transports import bootstrap

_LIMIT = 200  # lines that are kept, and characters of one that is shown
_TASK = re.compile(r"srun: error: (?P<hosts>\S+): tasks? [\d,-]+: (?P<text>.+)")
_LAUNCH = re.compile(r"srun: error: Task launch for \S+ failed on node (?P<hosts>\S+): (?P<text>.+)")
_NODE_FAILURE = "Node failure"
_NODE = re.compile(rf"srun: error: (?P<text>{_NODE_FAILURE}) on (?P<hosts>\S+)")
_CANCELLED = re.compile(
    r"\*\*\* (?P<what>(?:JOB|STEP) \S+) ON \S+ CANCELLED AT \S+(?: (?P<why>DUE TO [A-Z]+(?: [A-Z]+)*))?"
)
_SPEAKER = re.compile(r"^(?:srun|slurmstepd\S*): (?:error: |fatal: )*")
_ABORTED = "Job step aborted: Waiting up to"  # printed for every cancelled step; slurmstepd's own line may get lost
_NO_PYTHON = f"Exited with exit code {bootstrap.NO_PYTHON_EXIT_CODE}"
_FIX_NODE = "look up the node's state with sinfo -N"
_FIXES = {
    "unrecognized option": "use Slurm 20.11 or newer, or --transport fabric",
    "(gres) specification": "ask Slurm for equally many GPUs on each node: --gpus-per-node=N or --gres=gpu:N",
}
# Printed in every step, or beside a line that says more.
_ROUTINE_MESSAGES = (
    "cluster configuration lacks support for cpu binding", "Force Terminated", "forcing job termination", "got SIGCONT",
    "Timed out waiting for job step to complete", 'Try "srun --help"',
)  # fmt: skip


class SrunOutput:
    """What srun has printed besides the agents' lines: which nodes are gone, why, and the last lines about each."""

    def __init__(self, hosts: Sequence[str], pythons: Sequence[str]) -> None:
        self._hosts = tuple(hosts)
        self._pythons = tuple(pythons)
        self._lines: list[tuple[str, tuple[str, ...]]] = []  # and the hosts that each is about, none for all
        self._endings: dict[str, str] = {}
        self.never_started: dict[str, str] = {}  # by host: why
        self._cancelled = ""

    def lines(self, host: str) -> tuple[str, ...]:
        """Return the last lines so far that are about a host, or about all hosts."""
        return tuple(line for line, hosts in self._lines if not hosts or host in hosts)

    def take(self, line: str) -> None:
        """Take a line of srun."""
        gone = self._find_gone(line)
        if _is_worth_showing(line):
            self._lines = [*self._lines, (line, gone)][-_LIMIT:]

    def _find_gone(self, line: str) -> tuple[str, ...]:
        found = _CANCELLED.search(line)
        if found is not None:
            why = f" {found['why'].lower()}" if found["why"] else ""
            self._cancelled = f"Slurm has cancelled {found['what'].lower()}{why}"
            return ()
        if _ABORTED in line:
            self._cancelled = self._cancelled or "Slurm has cancelled launch's step"
        for pattern, noted in ((_TASK, self._endings), (_LAUNCH, self.never_started), (_NODE, self._endings)):
            if (found := pattern.match(line)) is not None:
                gone = tuple(host for host in _expand(found["hosts"]) if host in self._hosts)
                noted.update(dict.fromkeys(gone, found["text"]))
                return gone
        return ()

    def not_started(self, host: str, timeout_s: float) -> HostFailure:
        """Return the failure of a node whose task did not start in time."""
        text = f"Slurm has not started launch's step there in {timeout_s:g} s{self._last_line()}"
        fix = f"{_FIX_NODE}; if the cluster is slow, raise --connect-timeout"
        return HostFailure(host, HostFailureKind.SLURM, text, fix)

    def gone(self, host: str, exit_code: int | None = None) -> HostFailure | None:
        """Return why a node's task is gone, or None if nobody has said so.

        exit_code: of srun itself, below 0 for a signal, None while it runs.
        """
        ending = self._endings.get(host, "")
        if host in self.never_started:  # therefore the step is cancelled
            text = f"Slurm can't start launch's step there: {self.never_started[host]}"
            return HostFailure(host, HostFailureKind.SLURM, text, _FIX_NODE)
        if self._cancelled and ending != _NODE_FAILURE:
            return HostFailure(host, HostFailureKind.SLURM, self._cancelled)
        if ending == _NO_PYTHON:
            return bootstrap.no_python(host, self._pythons)
        if ending:
            return HostFailure(host, HostFailureKind.SLURM, f"launch's task there ended: {ending}")
        if exit_code is None:
            return None
        if exit_code < 0:
            return HostFailure(host, HostFailureKind.SLURM, f"srun was killed by signal {-exit_code}")
        line = self._last_line()
        fix = next((fix for said, fix in _FIXES.items() if said in line), "")
        return HostFailure(host, HostFailureKind.SLURM, f"srun exited (exit code {exit_code}){line}", fix)

    def _last_line(self) -> str:
        """Return the last line that srun has printed, with a colon before it; an empty text if there is none."""
        return f": {_SPEAKER.sub('', self._lines[-1][0])[:_LIMIT]}" if self._lines else ""


def _is_worth_showing(line: str) -> bool:
    """Tell whether a line is neither empty nor one that srun prints in every step or at every end."""
    return bool(line.strip()) and not any(words in line for words in _ROUTINE_MESSAGES)


def _expand(hosts: str) -> tuple[str, ...]:
    try:
        return tuple(name for element in split_list(hosts) for name in expand_ranges(element))
    except UsageError:
        return ()
