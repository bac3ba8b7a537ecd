"""The terms on which a session talks to its nodes: alike for all, and settled before the first connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """What a node is told when it is prepared, and how long both sides wait for each other."""

    run_id: str  # names the run's folder on the nodes, and marks its processes
    env: Mapping[str, str]  # added to the environment of what is started there
    pythons: Sequence[str]  # candidates for the Python that runs the supervisor, in the order of trying
    silence_s: float  # without a heartbeat for so long, either side takes the other one for dead
    stop_timeout_s: float  # between SIGTERM and SIGKILL, where a node ends the run by itself
    connect_timeout_s: float
