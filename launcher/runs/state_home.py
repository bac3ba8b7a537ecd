"""Where a machine remembers what was done from it: which hosts failed, and which runs were started.

What is read there names processes to signal, and programs and ssh_config files that run: nobody else may write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.node.own_folders import make_own


def find_state(variables: Mapping[str, str]) -> Path:
    """Return the directory below XDG_STATE_HOME, by default ~/.local/state (XDG Base Directory 0.8)."""
    base = variables.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"  # a relative one is invalid
    return state / "launch"


def own_state(state: Path, folder: str = "") -> None:
    """Make the directory of find_state, and one in it, with mode 0700, as make_own does.

    Raise OSError if that fails, or if another user could write there, or put another directory in its place.
    """
    for path in (state, state / folder) if folder else (state,):
        make_own(str(path.absolute()))
