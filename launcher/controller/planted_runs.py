"""The runs that were started on this machine and are controlled from another one: which, where, and how to get there.

Only that machine knows how such a run is doing, so what is kept here is the way to it; and how the run ended, once that
was seen, since nothing changes it any more.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launcher.hosts.host import Host
from launcher.private_files import replace_private
from launcher.runs.run_list import KEPT_S, make_run_place

UNSEEN_S = 3 * KEPT_S  # runs whose end nobody saw
_ENTRY, _END = "planted.json", "row.json"


@dataclass(frozen=True, slots=True)
class Way:
    """How this machine reaches the host that controls a run."""

    name: str
    user: str | None = None
    port: int | None = None
    transport: str | None = None
    ssh_config: str | None = None
    python: str | None = None

    @property
    def host(self) -> Host:
        """The host to connect to."""
        return Host(self.name, user=self.user, port=self.port, source="launch ps")


@dataclass(frozen=True, slots=True)
class PlantedRun:
    """A run that is controlled from another machine."""

    run_id: str
    name: str | None
    began_at: float  # wall-clock seconds
    way: Way
    id: str = ""  # what names it here: its run id, unless a run elsewhere began in the same second
    row: Mapping[str, Any] | None = None  # what `launch ps --json` says of it, if it has ended


class PlantedRuns:
    """The list in one directory."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def add(self, run: PlantedRun) -> PlantedRun:
        """Remember a run, and return it with its id; raise OSError if that can't be written."""
        self._prune()
        values = {key: value for key, value in asdict(run).items() if key not in ("id", "row")}
        place = make_run_place(self._base, run.run_id)
        replace_private(place / _ENTRY, json.dumps(values))
        return replace(run, id=place.name)

    def discard(self, run: PlantedRun) -> None:
        """Forget a run."""
        shutil.rmtree(self._base / run.id, ignore_errors=True)

    def note_end(self, run: PlantedRun, row: Mapping[str, Any]) -> None:
        """Remember how a run ended; a full disk is no error."""
        with contextlib.suppress(OSError):
            replace_private(self._base / run.id / _END, json.dumps(row))

    def read(self) -> list[PlantedRun]:
        """Return all runs, the newest first."""
        try:
            places = [*self._base.iterdir()]
        except OSError:
            return []
        runs = [run for place in places if (run := _read_run(place)) is not None]
        return sorted(runs, key=lambda run: run.began_at, reverse=True)

    def _prune(self) -> None:
        for run in self.read():
            if time.time() - run.began_at > (KEPT_S if run.row is not None else UNSEEN_S):
                self.discard(run)


def _read_run(place: Path) -> PlantedRun | None:
    try:
        values = json.loads((place / _ENTRY).read_text("utf-8"))
        way = Way(**values.pop("way"))
        return PlantedRun(**values, way=way, id=place.name, row=_read_row(place / _END))
    except (OSError, ValueError, TypeError, KeyError):  # it is being written, or none of ours
        return None


def _read_row(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
