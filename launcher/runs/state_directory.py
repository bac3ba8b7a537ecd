"""Where a machine remembers what was done from it: which hosts failed, and which runs were started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def find_state(variables: Mapping[str, str]) -> Path:
    """Return the directory below XDG_STATE_HOME, by default ~/.local/state (XDG Base Directory 0.8)."""
    base = variables.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"  # a relative one is invalid
    return state / "launch"
