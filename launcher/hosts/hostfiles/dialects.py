"""Name the dialect of a hostfile: the first that has every feature of the file. It never changes what a line means."""

from __future__ import annotations

from collections.abc import Set

from launcher.hosts.hostfiles.lines import SPELLINGS

YAML = "a YAML list"

_DIALECTS = (
    ("names", {"user@", "no slots"}),
    ("a node list (pdsh, ClusterShell, Slurm)", {"range", "list", "no slots"}),
    ("slots=N (DeepSpeed, Horovod, Open MPI)", {"slots"}),
    ("launch's own", {"user@", "range", "list", "slots", "user", "port", "addr", "no slots"}),
    ("Open MPI's", {"user@", "slots", "port", *SPELLINGS, "no slots"}),
    ("host:N for N slots (MPICH Hydra, Horovod)", {":slots", "list", "user", "no slots"}),
    ("host:N for SSH port N", {":port", "list", "slots", "no slots"}),
)
_MIXED = "lines of several dialects"


def name_dialect(traits: Set[str]) -> str:
    """Return a readable name of the dialect that a file with these traits looks like."""
    return next((name for name, known in _DIALECTS if traits <= known), _MIXED)
