"""The runs that were started on this machine and are controlled from another one: which, where, and how to get there.

Only that machine knows how such a run is doing, so what is kept here is the way to it; and how the run ended, once that
was seen, since nothing changes it any more. The directory is that of the runs of this machine: no two of all these runs
have the same id.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.commands.ps import read_row
from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.output.run_folder import propose_ids
from launcher.private_files import replace_private
from launcher.runs.run_list import CLAIM, KEPT_S, claim_place, list_places

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

    id: str
    name: str | None
    began_at: float  # wall-clock seconds
    way: Way
    row: Mapping[str, Any] | None = None  # what `launch ps --json` says of it, if it has ended

    @property
    def is_alive(self) -> bool | None:
        """Whether it lives; None: not known here."""
        return None if self.row is None else False


class PlantedRuns:
    """The list in one directory."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def claim(self, now: datetime, token: str) -> str:
        """Take an id for a run that another machine will control; raise OSError if that can't be written.

        token: that of the run, which its controller knows.
        """
        for run_id in propose_ids(now):
            if claim_place(self.base, run_id, token):
                return run_id
        raise FileExistsError(errno.EEXIST, "too many runs started in one second", str(self.base))

    def exchange(self, run_id: str, given: str, token: str) -> bool:
        """Take the id that the controller has given to the run instead; return False if another run has it here."""
        if not claim_place(self.base, given, token):
            return False
        self.discard(run_id)
        return True

    def add(self, run: PlantedRun) -> None:
        """Remember a run whose id was taken; raise OSError if that can't be written."""
        with contextlib.suppress(LauncherError):
            self._prune()
        values = {key: value for key, value in asdict(run).items() if key not in ("id", "row")}
        replace_private(self.base / run.id / _ENTRY, json.dumps(values))

    def discard(self, run_id: str) -> None:
        """Forget a run, or an id that was taken for one; its controller may use the same directory."""
        with contextlib.suppress(OSError):
            for name in (_ENTRY, _END, CLAIM):
                (self.base / run_id / name).unlink(missing_ok=True)
            (self.base / run_id).rmdir()

    def note_end(self, run: PlantedRun, row: Mapping[str, Any]) -> None:
        """Remember how a run ended; a full disk is no error."""
        with contextlib.suppress(OSError):
            replace_private(self.base / run.id / _END, json.dumps(row))

    def read(self) -> list[PlantedRun]:
        """Return all runs, the newest first; raise LauncherError as RunList.read does."""
        runs = [run for place in list_places(self.base) if (run := _read_run(place)) is not None]
        return sorted(runs, key=lambda run: run.began_at, reverse=True)

    def _prune(self) -> None:
        for run in self.read():
            if time.time() - run.began_at > (KEPT_S if run.row is not None else UNSEEN_S):
                self.discard(run.id)


def _read_run(place: Path) -> PlantedRun | None:
    try:
        values = json.loads((place / _ENTRY).read_text("utf-8"))
        way = Way(**values.pop("way"))
        run = PlantedRun(**values, way=way, id=place.name, row=_read_row(place / _END))
        return run if math.isfinite(run.began_at) and isinstance(run.name, (str, type(None))) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # it is being written, or none of ours
        return None


def _read_row(path: Path) -> dict[str, Any] | None:
    try:
        return read_row(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, RecursionError):
        return None
