"""Where a run stands between its attempts, and within one: what another controller must know to continue it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.runs.attempt import CarriedOver
from launcher.runs.hosts_and_spares import HostsAndSpares
from launcher.runs.policy import Ending
from launcher.runs.run_json import EndedAttempt

_MOST_IDLE = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """What a run knows of itself.

    The values are those that the run keeps changing, in its event loop: whoever wants to keep them copies them there.
    """

    began_at: float  # wall-clock seconds
    hosts: HostsAndSpares
    endings: Sequence[Ending]
    attempts: Sequence[EndedAttempt]  # for run.json
    carried: CarriedOver
    attempt_began_at: float | None  # of the attempt that is under way
    idle_controllers: int = 0  # that took the run up since the last attempt began; their deaths cost no restart

    @property
    def is_hopeless(self) -> bool:
        """Whether so many of these died that only the user, or a boot, shall start another one."""
        return self.idle_controllers >= _MOST_IDLE
