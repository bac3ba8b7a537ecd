"""Where `launch` keeps what it remembers on the launch host: which hosts failed, and which runs were started."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.runs.incident_log import IncidentLog
from launcher.runs.run_list import RunList


def find_state() -> Path:
    """Return the directory below XDG_STATE_HOME, by default ~/.local/state (XDG Base Directory 0.8)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"  # a relative one is invalid
    return state / "launch"


def open_incident_log() -> IncidentLog:
    """Return what is remembered of hosts."""
    return IncidentLog(find_state() / "hosts.json")


def open_run_list() -> RunList:
    """Return the list of runs."""
    return RunList(find_state() / "runs")
