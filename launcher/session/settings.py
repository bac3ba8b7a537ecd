"""The settings that a session and all of its nodes share, fixed before the first connection."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher.job.job import Timeouts


@dataclass(frozen=True, slots=True)
class Settings:
    """What a node is told when it is prepared, and how long both sides wait for each other."""

    run_id: str  # names the run's directory on the nodes, and marks its processes
    env: Mapping[str, str]  # added to the environment of what is started there
    pythons: Sequence[str]  # candidates for the Python that runs the supervisor, in the order of trying
    timeouts: Timeouts = field(default_factory=Timeouts)


def loader_pythons(python: str | None) -> tuple[str, ...]:
    """Return the Pythons that may run the supervisor on a node, in the order of trying: 3.8 or newer."""
    return tuple(dict.fromkeys([*([python] if python else []), "python3", sys.executable]))
