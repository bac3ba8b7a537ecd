"""The runs that were started on this machine: which process controls each, where its logs are, and whether it lives.

A run has a directory below the user's state directory, with a file that its controller keeps locked until it ends. So
whether a run lives is looked up, not remembered: the kernel releases the lock whatever ends the process, and after a
restart of the machine nothing is locked. A controller that ends by itself writes down how; one that was killed doesn't.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from launcher.errors import UsageError
from launcher.private_files import make_private, open_private
from launcher.runs.result import Result

KEPT_S = 30 * 86400.0  # entries of runs that have ended; their logs stay
_CONTROLLER, _END, _LOCK, _STOP = "controller.json", "end.json", "lock", "stop"


@dataclass(frozen=True, slots=True)
class Controller:
    """The process that controls a run, and what it says of the run when it begins."""

    run_id: str
    name: str | None
    folder: str  # of the logs, absolute
    host: str
    pid_namespace: str  # a container has its own, in which process ids mean something else
    pid: int
    stop_signal: int  # that it doesn't ignore
    began_at: float  # wall-clock seconds


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, as its controller says."""

    exit_code: int
    is_stopped: bool  # by a signal, and not after a failure


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the list."""

    place: Path  # its directory there
    controller: Controller
    is_alive: bool | None  # None: only the machine that controls it can tell
    end: End | None  # None: it lives, or its controller was killed

    @property
    def id(self) -> str:
        """What names it: its run id, unless another project's run began in the same second."""
        return self.place.name

    @property
    def folder(self) -> Path:
        """The directory of its logs."""
        return Path(self.controller.folder)

    @property
    def is_here(self) -> bool:
        """Whether its process is one of this machine or container: several may share a home directory."""
        return (self.controller.host, self.controller.pid_namespace) == _find_machine()

    def read_record(self) -> dict[str, Any]:
        """Return its run.json; empty before the start of its ranks, and if its logs were removed."""
        try:
            found = json.loads((self.folder / "run.json").read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def look(self) -> ListedRun | None:
        """Return what is true of it now; None: it was never started, and is listed no more."""
        if not self.place.exists():
            return None
        return _read_run(self.place) or self  # a file system that fails for a moment says nothing

    def mark_stop(self) -> bool:
        """Write down that it is being stopped; return whether that was written before."""
        try:
            (self.place / _STOP).touch(exist_ok=False)
        except FileExistsError:
            return True
        return False


class Entry:
    """The entry of this process's run, until it ends."""

    def __init__(self, place: Path | None, lock: IO[str] | None, error: OSError | None = None) -> None:
        self._place = place
        self._lock = lock
        self.error = error  # why the run is not listed

    def end(self, result: Result) -> None:
        """Write down how the run ended."""
        if self._place is not None:
            end = End(result.exit_code, result.interrupted_by is not None and result.cause is None)
            with contextlib.suppress(OSError):  # a full disk: then it seems to have been killed
                (self._place / _END).write_text(json.dumps(asdict(end)), "utf-8")

    def close(self, *, is_kept: bool) -> None:
        """Release the lock; is_kept: the run was started, so it stays in the list."""
        if self._place is not None and not is_kept:
            shutil.rmtree(self._place, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


class RunList:
    """The list in one directory, which the user's other machines may share."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def begin(self, run_id: str, name: str | None, folder: Path) -> Entry:
        """List a run of this process; a run needs no list, so an unwritable directory is no error."""
        controller = Controller(
            run_id, name, str(folder.absolute()), *_find_machine(), os.getpid(), _find_stop_signal(), time.time()
        )
        try:
            self._prune()
            place = self._make_place(run_id)
            lock = open(place / _LOCK, "w", opener=open_private)  # noqa: SIM115 - until the end of the run
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (place / _CONTROLLER).write_text(json.dumps(asdict(controller)), "utf-8")
        except OSError as error:
            return Entry(None, None, error)
        return Entry(place, lock)

    def read(self) -> list[ListedRun]:
        """Return all runs, the newest first."""
        runs = [run for place in self._places() if (run := _read_run(place)) is not None]
        return sorted(runs, key=lambda run: run.controller.began_at, reverse=True)

    def find(self, word: str | None) -> ListedRun:
        """Return the run with this id or name, or the only one whose id begins so; None: the newest one.

        Of several with this name, the one that lives is meant, or else the newest. Raise UsageError if there is none.
        """
        runs = self.read()
        if not runs:
            raise UsageError("no run was started on this machine yet", "start one, or ask where it was started")
        if word is None:
            return runs[0]
        exact = [run for run in runs if word == run.id]
        named = [run for run in runs if word in (run.controller.run_id, run.controller.name)]
        begun = [run for run in runs if run.id.startswith(word)]
        found = exact or named or begun
        living = [run for run in found if run.is_alive]
        if len(living) > 1 or (len(found) > 1 and found is begun):
            raise UsageError(f"{word!r} means {len(found)} runs", "name one by its id, as launch ps shows it")
        if not found:
            raise UsageError(f"no run {word!r}", "see launch ps for the runs of this machine")
        return (living or found)[0]

    def _make_place(self, run_id: str) -> Path:
        """Make a directory for a run; another one may have begun in the same second, with other logs."""
        for number in range(1, 100):
            place = self.base / (run_id if number == 1 else f"{run_id}.{number}")
            with contextlib.suppress(FileExistsError):
                make_private(place, self.base)
                return place
        raise FileExistsError(run_id)

    def _prune(self) -> None:
        """Forget runs that ended long ago."""
        for place in self._places():
            with contextlib.suppress(FileNotFoundError):  # another run has just removed it
                is_old = time.time() - place.stat().st_mtime > KEPT_S  # since its end was written
                if is_old and _is_locked(place / _LOCK) is False:
                    shutil.rmtree(place, ignore_errors=True)

    def _places(self) -> list[Path]:
        try:
            return [*self.base.iterdir()]
        except OSError:
            return []


def _find_machine() -> tuple[str, str]:
    """Return the name of this machine, and its PID namespace; empty where the system has none."""
    try:
        return socket.gethostname(), str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return socket.gethostname(), ""


def _find_stop_signal() -> int:
    """Return SIGINT, or SIGTERM if whoever started this process made it ignore SIGINT, as a script does with `&`."""
    return signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT


def _read_run(place: Path) -> ListedRun | None:
    try:
        controller = Controller(**json.loads((place / _CONTROLLER).read_text("utf-8")))
        run = ListedRun(place, controller, False, _read_end(place / _END))
        return replace(run, is_alive=_find_life(run))
    except (OSError, ValueError, TypeError):  # it is being made, or is none of ours
        return None


def _find_life(run: ListedRun) -> bool | None:
    """Return whether the controller of a run lives; None: only its own machine can tell."""
    is_locked = _is_locked(run.place / _LOCK)
    if is_locked or run.end is not None:
        return bool(is_locked)
    if not run.is_here:  # many network file systems keep the locks of each machine apart
        return None
    return _has_process(run.controller.pid) if is_locked is None else False


def _has_process(pid: int) -> bool:
    """Tell whether there is such a process of this user: without locks, that is all there is to know."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # the latter: the id was used again
        return False
    return True


def _is_locked(path: Path) -> bool | None:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def _read_end(path: Path) -> End | None:
    try:
        return End(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
