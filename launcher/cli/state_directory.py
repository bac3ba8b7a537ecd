"""What `launch` remembers on this machine: which hosts failed, and which runs were started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.runs.incident_log import IncidentLog
from launcher.runs.run_list import RunList
from launcher.runs.state_directory import find_state

if TYPE_CHECKING:
    from launcher.controller.planted_runs import PlantedRuns


def open_incident_log() -> IncidentLog:
    """Return what is remembered of hosts."""
    return IncidentLog(find_state(os.environ) / "hosts.json")


def open_run_list() -> RunList:
    """Return the list of runs."""
    return RunList(find_state(os.environ) / "runs")


def open_planted_runs() -> PlantedRuns:
    """Return the list of the runs that other machines control."""
    from launcher.controller.planted_runs import PlantedRuns

    return PlantedRuns(open_run_list().base)
