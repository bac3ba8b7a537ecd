"""Where the launch host remembers what went wrong with which host."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.runs.incident_log import IncidentLog


def open_incident_log() -> IncidentLog:
    """Return the memory of hosts: a file below XDG_STATE_HOME, by default ~/.local/state (XDG Base Directory 0.8)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"  # a relative one is invalid
    return IncidentLog(state / "launch" / "hosts.json")
