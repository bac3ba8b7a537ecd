"""Write hosts as another launcher's file, with one line on what its format doesn't support."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names, fold_runs, shown

_FIELDS = {
    "slots": "slots=", "gpus": "the chosen GPUs", "user": "user=", "port": "port=", "address": "addr=",
    "is_spare": "spare",
}  # fmt: skip
_LISTED_LENGTH = 60
# PRRTE takes `ann.lee@gpu2` for a host ann, and stops at a zone and at a leading '_' (hostfile_lex.l; tried with 3.0).
_OPEN_MPI_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OPEN_MPI_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*|[0-9A-Fa-f:.]+")


@dataclass(frozen=True, slots=True)
class _Target:
    tool: str
    keep: Callable[[Host], Host]  # what the format supports of a host; UsageError if it can't name it
    write: Callable[[Sequence[Host]], str]
    without_slots: str = ""  # what the tool does without slots, if it differs from `launch`


def write_hosts(hosts: Sequence[Host], target: str) -> tuple[str, str]:
    """Return a file for one of TARGETS, and a line on what is lost, or ""; raise UsageError if that is impossible."""
    chosen = TARGETS[target]
    kept = [chosen.keep(host) for host in hosts]
    lost = []
    for field, word in _FIELDS.items():
        pairs = zip(hosts, kept, strict=True)
        names = [host.name for host, said in pairs if getattr(host, field) != getattr(said, field)]
        if names:
            lost.append(f"{word} of {_listed(names)}")
    notes = [f"{chosen.tool}'s format doesn't support {', '.join(lost)}"] if lost else []
    unsaid = [host.name for host in hosts if host.slots is None]
    if unsaid and chosen.without_slots:
        notes.append(f"no slots= for {_listed(unsaid)}: {chosen.without_slots}")
    return chosen.write(kept), "; ".join(notes)


def _listed(names: Sequence[str]) -> str:
    folded = fold_names(names)
    return folded if len(folded) <= _LISTED_LENGTH else f"{len(names)} hosts"


def _keep_name(host: Host) -> Host:
    return Host(host.name)


def _keep_for_deepspeed(host: Host) -> Host:
    if host.slots is None:
        message = f"{host.source}: {shown(host.name)} has no slots=, which DeepSpeed requires"
        raise UsageError(message, "write slots=N, the number of its GPUs")
    return Host(host.name, slots=host.slots)


def _keep_for_open_mpi(host: Host) -> Host:
    if not _OPEN_MPI_NAME.fullmatch(host.name):
        raise UsageError(f"{host.source}: Open MPI can't read the name {shown(host.name)}")
    user = host.user if _OPEN_MPI_USER.fullmatch(host.user or "") else None
    return Host(host.name, user=user, port=host.port, slots=host.slots)


def _write_lines(hosts: Sequence[Host]) -> str:
    lines = []
    for host in hosts:
        login = f"{host.user}@" if host.user else ""
        slots = f" slots={host.slots}" if host.slots else ""
        port = f" port={host.port}" if host.port else ""
        lines.append(f"{login}{host.name}{slots}{port}\n")
    return "".join(lines)


def _write_runs(hosts: Sequence[Host]) -> str:
    return "".join(f"{run}\n" for run in fold_runs(host.name for host in hosts))


def _write_node_list(hosts: Sequence[Host]) -> str:
    return ",".join(fold_runs(host.name for host in hosts)) + "\n"


TARGETS = {
    "deepspeed": _Target("DeepSpeed", _keep_for_deepspeed, _write_lines),
    "openmpi": _Target("Open MPI", _keep_for_open_mpi, _write_lines, "Open MPI counts their cores"),
    "pdsh": _Target("pdsh", _keep_name, _write_runs),
    "slurm": _Target("Slurm", _keep_name, _write_node_list),
}
