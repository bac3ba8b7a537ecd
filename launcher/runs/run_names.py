"""The ids and names of the runs in a list, for completion, without the rest of `run_list`: that takes twice as long."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

CONTROLLER = "controller.json"  # of a run that this machine controls
WAY = "planted.json"  # of a run elsewhere


def read_names(base: Path) -> dict[str, str]:
    """Return the ids in a list, the newest first, each with the name of its run, or an empty text."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for place in sorted(base.iterdir(), reverse=True):
            names = [_read_name(place / entry) for entry in (CONTROLLER, WAY)]
            if names != [None, None]:
                found[place.name] = next(filter(None, names), "")
    return found


def _read_name(path: Path) -> str | None:
    """Return the name in an entry, empty if the run has none; None if there is no entry that can be read."""
    try:
        name = json.loads(path.read_text("utf-8")).get("name")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return name if isinstance(name, str) else ""
