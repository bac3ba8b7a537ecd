"""What `launch` remembers on this machine: which hosts failed, and which runs were started."""

from __future__ import annotations

import os

from launcher.runs.incident_log import IncidentLog
from launcher.runs.run_list import RunList
from launcher.runs.state_home import find_state


def open_incident_log() -> IncidentLog:
    """Return what is remembered of hosts."""
    return IncidentLog(find_state(os.environ) / "hosts.json")


def open_run_list() -> RunList:
    """Return the list of runs."""
    return RunList(find_state(os.environ) / "runs")
