"""What a hostfile looks like: the first dialect that has all that the file uses. It changes no meaning."""

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
    ("host:N for ssh port N", {":port", "list", "slots", "no slots"}),
)
_MIXED = "lines of several dialects"


def name_dialect(traits: Set[str]) -> str:
    """Name what a file with these traits looks like, in words for a person."""
    return next((name for name, known in _DIALECTS if traits <= known), _MIXED)
