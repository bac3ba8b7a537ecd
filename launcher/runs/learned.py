"""What a run has learned from its attempts so far, for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Learned:
    """What a run has learned from its attempts so far."""

    attempts: int = 0  # before this one
    warnings: set[str] = field(default_factory=set)  # that were printed
    incidents: Mapping[str, str] = field(default_factory=dict)  # by host, of earlier runs
    here: set[str] = field(default_factory=set)  # hosts that are this machine: its network can't lose them
    gpu_memory: dict[str, dict[int, int]] = field(default_factory=dict)  # in use before the first attempt there, in MiB
