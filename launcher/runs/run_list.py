"""The runs that were started on this machine: what controls each, where its logs are, and whether it lives.

A run has a directory below the user's state directory, with four kinds of files:

- `lock`, which its controller keeps locked until it ends. So whether a run lives is looked up, not remembered: the
  kernel releases the lock whatever ends the process, and after a restart of the machine nothing is locked.
- `controller.json`, what the controller says: where it is, what the run does now, and how it ended. One that was killed
  doesn't say that.
- `stop`, until the run is being stopped: one of those who want to stop it removes that file, also on a full disk.
- what the launch host knows: how the run was typed, its code, and in `planted.json` the way to a controller elsewhere,
  with the row of its end once that was seen: only that machine knows how the run is doing.

A run's id is the name of its directory there, so no other run of this machine has it, wherever its logs are. A launch
host takes the id in its own list before another machine controls the run under it. With a home directory that both
share, the directory is both's.
"""

# The types of fields are looked at by launcher.forms, so annotations are not postponed.
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

from launcher.clock import boot_id
from launcher.errors import LauncherError, UsageError
from launcher.forms import FormError, Within, load_json, reader_of
from launcher.hosts.host import Host
from launcher.node import system
from launcher.node.own_folders import make_own
from launcher.output.run_folder import propose_ids
from launcher.private_files import open_private, replace_private, write_private
from launcher.runs.run_json import RunJson, read_run_json
from launcher.runs.run_rows import RunRow
from launcher.runs.run_state import Doing, RunState

if TYPE_CHECKING:
    from launcher.runs.records import Result

KEPT_S = 30 * 86400.0  # entries of runs that have ended
UNSEEN_S = 3 * KEPT_S  # entries of runs elsewhere whose end nobody saw
KEPT_BYTES = 2_000_000_000  # of all logs that a list owns
PRUNE_S = 3600.0  # between two looks for what is to be forgotten: with 500 runs, one takes 0.2 s
CONTROLLER, WAY, LOCK, _STOP = "controller.json", "planted.json", "lock", "stop"
# What this machine keeps of a run that was started here: how it was typed, and its code.
ORIGIN, CODE, LISTING = "origin.json", "code.json", "code.listing"
_END_BEFORE, _SEEN_BEFORE = "end.json", "seen.json"  # of earlier versions
CLAIMED_S = 86400.0  # ids without a run: whatever took them was killed before the run began
_ROOM_BYTES = 512  # for how a run ended, on a disk that is full by then
_MOST_NAMED = 5  # runs in an error


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
    began_at: Annotated[float, Within(-1e11, 1e11)]  # wall-clock seconds
    machine_id: str = ""  # see machine-id(5)
    boot_id: str = ""  # of the kernel: it differs between machines, and after each start of one


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, as its controller says."""

    exit_code: int
    is_stopped: bool  # by a signal, and not after a failure


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run that this machine controls, or one with the same home directory."""

    place: Path  # its directory there
    controller: Controller
    is_alive: bool | None  # None: only the machine that controls it can tell
    end: End | None  # None: it lives, or its controller was killed

    @property
    def id(self) -> str:
        """What names it: its run id."""
        return self.place.name

    @property
    def name(self) -> str | None:
        """The name that the user gave to it."""
        return self.controller.name

    @property
    def began_at(self) -> float:
        """When it began, in wall-clock seconds of its controller."""
        return self.controller.began_at

    @property
    def folder(self) -> Path:
        """The directory of its logs."""
        return Path(self.controller.folder)

    def find_folder(self) -> Path:
        """Return that directory; raise UsageError if it was removed."""
        if not self.folder.is_dir():
            raise UsageError(f"the logs in {self.folder} were removed", "see launch ps for other runs")
        return self.folder

    @property
    def is_here(self) -> bool:
        """Whether its process is one of this machine or container: several may share a home directory."""
        here = _describe_machine()
        return all(getattr(self.controller, name) == here[name] for name in ("host", "pid_namespace", "boot_id"))

    @property
    def death(self) -> str:
        """What ended the process that controlled it, in words; empty if it lives, or has ended the run."""
        if self.is_alive is not False or self.end is not None:
            return ""
        is_same_boot = self.controller.boot_id == _describe_machine()["boot_id"]
        return "its launch was killed" if is_same_boot else f"{self.controller.host} has rebooted"

    def read_record(self) -> RunJson:
        """Return its run.json; without a value before the start of its ranks, and if its logs were removed."""
        return read_run_json(self.read_json())

    def read_json(self) -> dict[str, Any]:
        """Return the same as it is there."""
        return _read_json(self.folder / "run.json")

    def read_state(self) -> RunState | None:
        """Return what it does now; None if it doesn't live, or hasn't told: the disk was full, or it is too old."""
        state: RunState | None = _as_form(RunState, _read_json(self.place / CONTROLLER).get("state"))
        return state if self.is_alive else None

    def look(self) -> "ListedRun | None":
        """Return what is true of it now; None: it was never started, and is listed no more."""
        if not self.place.exists():
            return None
        return _read_listed(self.place) or self  # a file system that fails for a moment says nothing

    def read_missing(self) -> tuple[str, ...]:
        """Return the hosts whose agent is not connected now."""
        return _as_form(tuple[str, ...], _read_json(self.place / CONTROLLER).get("missing")) or ()

    def read_doing(self, now: float) -> Doing | None:
        """Return what `launch ps` says of what it does now; None if read_state does; now: in wall-clock seconds."""
        state = self.read_state()
        return state.as_doing(now) if state is not None else None

    def mark_stop(self) -> bool:
        """Note that it is being stopped; return whether that was noted before.

        A disk that can't be written is no reason not to stop it.
        """
        try:
            (self.place / _STOP).unlink()
        except FileNotFoundError:
            return True
        except OSError:
            pass
        return False


@dataclass(frozen=True, slots=True)
class Way:
    """How this machine reaches the host that controls a run."""

    name: str
    user: str | None = None
    port: int | None = None
    transport: str | None = None
    ssh_config: str | None = None
    python: str | None = None
    enter: str = ""

    @property
    def host(self) -> Host:
        """The host to connect to."""
        return Host(self.name, user=self.user, port=self.port, enter=self.enter, source="launch ps")


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run that is controlled from another machine, as its file has it."""

    id: str
    way: Way
    name: str | None = None
    began_at: Annotated[float, Within(-1e11, 1e11)] = 0.0  # wall-clock seconds; 0: it was started elsewhere, too
    row: RunRow | None = None  # what `launch ps --json` says of it, if it has ended and that was seen

    @property
    def is_alive(self) -> bool | None:
        """Whether it lives; None: not known here."""
        return None if self.row is None else False


class RunListEntry:
    """The entry of this process's run, until it ends; any thread may write it."""

    def __init__(
        self, place: Path | None = None, lock: IO[str] | None = None, controller: Controller | None = None,
        error: OSError | None = None,
    ) -> None:  # fmt: skip
        self._place = place
        self._lock = lock
        self._values = {} if controller is None else asdict(controller)
        self._guard = threading.Lock()
        self.error = error  # why the run is not listed

    def write(self, **values: Any) -> None:
        """Add what the controller says; a disk that takes nothing more keeps what never changes, and how it ended."""
        with self._guard:
            self._values |= values
            if self._place is None:
                return
            try:
                self.replace()
            except OSError:
                path = self._place / CONTROLLER
                known = {name: value for name, value in self._values.items() if name not in ("state", "missing")}
                with contextlib.suppress(OSError), path.open("r+b") as file:
                    file.write(json.dumps(known).encode().ljust(path.stat().st_size))
                    file.flush()
                    os.fsync(file.fileno())

    def replace(self, *, is_synced: bool = True) -> None:
        """Write all of it, with room for how the run ends; raise OSError. is_synced: wait for the disk."""
        assert self._place is not None  # it is listed
        replace_private(self._place / CONTROLLER, json.dumps(self._values) + " " * _ROOM_BYTES, is_synced=is_synced)

    def end(self, result: "Result") -> None:
        """Write down how the run ended."""
        self.write(end=asdict(End(result.exit_code, result.interrupted_by is not None and result.cause is None)))

    def note_missing(self, hosts: Sequence[str]) -> None:
        """Write down the hosts whose agents are not connected."""
        self.write(missing=hosts)

    def note_state(self, state: RunState) -> None:
        """Write down what the run does now."""
        self.write(state=asdict(state))

    def close(self, *, is_kept: bool) -> None:
        """Release the lock; is_kept: the run was started, so it stays in the list."""
        with self._guard:
            place, self._place = self._place, None  # a thread may still have something to say
        if place is not None and not is_kept:
            shutil.rmtree(place, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


class RunList:
    """The list in one directory, which the user's other machines may share."""

    def __init__(self, base: Path, logs: Path | None = None, *, token: str = "") -> None:
        """logs: the directory of the logs that are removed with their runs; None: all logs stay.

        token: that of the launch host, if it has taken the run's id; its list may be this one.
        """
        self.base = base
        self._logs = logs
        self._token = token

    @staticmethod
    def of_user(variables: Mapping[str, str]) -> "RunList":
        """Return the list of this user on this machine; variables: the environment."""
        return RunList(find_state(variables) / "runs")

    def claim(self, run_id: str) -> bool:
        """Take an id for a run that will begin; return False if another run has it.

        A run needs no list, so in an unwritable directory nobody has it.
        """
        with contextlib.suppress(OSError):
            return claim_place(self.base, run_id) or bool(
                self._token and _read_json(self.base / run_id / WAY).get("token") == self._token
            )
        return True

    def release(self, run_id: str) -> None:
        """Give back the id of a run that has not begun."""
        with contextlib.suppress(OSError):  # it was never taken, or is the launch host's
            (self.base / run_id).rmdir()

    def begin(self, run_id: str, name: str | None, folder: Path) -> RunListEntry:
        """List a run of this process; a run needs no list, so an unwritable directory is no error."""
        # Whoever started this process may have made it ignore SIGINT, as a script does with `&`.
        stop_signal = signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT
        controller = Controller(
            run_id, name, str(folder.absolute()), pid=os.getpid(), stop_signal=stop_signal,
            began_at=time.time(), **_describe_machine(),
        )  # fmt: skip
        with contextlib.suppress(LauncherError):
            self._prune()
        place = self.base / run_id
        lock = None
        try:
            claim_place(self.base, run_id)
            if (place / CONTROLLER).exists():
                raise FileExistsError(errno.EEXIST, "another run has this id", str(place))
            lock = open(place / LOCK, "w", opener=open_private)  # noqa: SIM115 - until the end of the run
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_private(place / _STOP, "")
            entry = RunListEntry(place, lock, controller)
            entry.replace(is_synced=False)  # which may take a moment at each start
        except OSError as error:
            if lock is not None:
                shutil.rmtree(place, ignore_errors=True)
                lock.close()
            self.release(run_id)
            return RunListEntry(error=error)
        return entry

    def take_id(self, now: datetime, token: str) -> str:
        """Take an id for a run that another machine will control; raise OSError if that can't be written.

        token: that of the run, which its controller knows.
        """
        for run_id in propose_ids(now):
            if claim_place(self.base, run_id, token):
                return run_id
        raise FileExistsError(errno.EEXIST, "too many runs started in one second", str(self.base))

    def add(self, run: RemoteRun) -> None:
        """List a run whose id was taken; raise OSError if that can't be written."""
        with contextlib.suppress(LauncherError):
            self._prune()
        replace_private(self.base / run.id / WAY, json.dumps(asdict(run)))

    def note_seen(self, run: RemoteRun, row: RunRow) -> None:
        """Remember how a run elsewhere ended, if this row says so; a full disk is no error."""
        path = self.base / run.id / WAY
        if not row.may_live and (known := _read_json(path)):  # it was started here
            with contextlib.suppress(OSError):
                replace_private(path, json.dumps({**known, "seen": {"row": asdict(row)}}))

    def keep(self, run_id: str, name: str, data: bytes) -> None:
        """Keep something of a run that was started here; a disk that can't be written is no error."""
        with contextlib.suppress(OSError):
            replace_private(self.base / run_id / name, data)

    def read_kept(self, run_id: str, name: str) -> bytes | None:
        """Return what `keep` has kept; None if there is nothing."""
        try:
            return (self.base / run_id / name).read_bytes()
        except OSError:
            return None

    def discard(self, run_id: str) -> None:
        """Forget a run elsewhere, or an id that was taken for one; its controller may use the same directory."""
        with contextlib.suppress(OSError):
            self._remove_remote(run_id)

    def _remove_remote(self, run_id: str) -> None:
        place = self.base / run_id
        if (place / CONTROLLER).exists():  # a controller uses the same directory
            (place / WAY).unlink(missing_ok=True)
        elif place.exists():
            shutil.rmtree(place)

    def read(self) -> list[ListedRun]:
        """Return the runs that this machine controls, or one with the same home directory, the newest first."""
        return _sort([run for place in list_places(self.base) if (run := _read_listed(place)) is not None])

    def read_all(self, most: int | None = None) -> list[ListedRun | RemoteRun]:
        """Return these and the runs that were started here and are controlled elsewhere, the newest first.

        most: of the newest, by their ids.
        """
        places = sorted(list_places(self.base), key=lambda place: place.name, reverse=True)[:most]
        return _sort([run for place in places if (run := _read_any(place)) is not None])

    def find(self, word: str | None) -> ListedRun:
        """Return the run of `read` that this word means; raise UsageError if there is none, or several."""
        return choose_run(self.read(), word)

    def forget(self, run: ListedRun | RemoteRun) -> None:
        """List a run no more; its logs stay. Raise LauncherError if that can't be written."""
        try:
            if isinstance(run, RemoteRun):
                self._remove_remote(run.id)
            else:
                shutil.rmtree(run.place)
        except OSError as error:
            raise LauncherError(f"can't remove {self.base / run.id}: {error.strerror}") from None

    def _prune(self) -> None:
        """Forget runs that ended long ago, the oldest ones beyond KEPT_BYTES of logs, and ids without a run."""
        pruned = self.base.with_name(f"{self.base.name}.pruned")
        with contextlib.suppress(OSError):  # the first look, or nobody may write there
            if _age(pruned) < PRUNE_S:
                return
        with contextlib.suppress(OSError):
            pruned.touch()
        for place in list_places(self.base):
            with contextlib.suppress(OSError):  # another run has just removed it
                is_taken = {path.name for path in place.iterdir()} <= {WAY} and _read_remote(place) is None
                if is_taken and _age(place) > CLAIMED_S:
                    shutil.rmtree(place, ignore_errors=True)
            remote = _read_remote(place)
            if remote is not None and time.time() - remote.began_at > (UNSEEN_S if remote.row is None else KEPT_S):
                self.discard(remote.id)
        total = 0
        for run in self.read():
            is_owned = run.folder.parent == self._logs
            with contextlib.suppress(FileNotFoundError):  # another run has just removed it
                total += _measure(run.folder) if is_owned else 0
                paths = (run.place, run.place / CONTROLLER, *run.folder.glob("*.log"))
                is_old = min((_age(path) for path in paths if path.exists()), default=0.0) > KEPT_S
                is_much = is_owned and total > KEPT_BYTES
                if run.is_alive is False and (is_old or is_much):
                    for folder in (run.folder, run.place) if is_owned else (run.place,):
                        shutil.rmtree(folder, ignore_errors=True)


AnyRunT = TypeVar("AnyRunT", bound=ListedRun | RemoteRun)


class UnknownRunError(UsageError):
    """No run here has this id, its beginning or this name."""


def find_meant(runs: Sequence[AnyRunT], word: str) -> list[AnyRunT]:
    """Return the runs that a word may mean: that with this id, those with this name, or those whose ids begin so.

    `latest` is the newest one, as in the name of the link to its logs.
    Of several with this name those that may live are meant, or else the newest. runs: the newest first.
    """
    if not word:  # as of a variable that isn't set; every id begins so
        return []
    if exact := [run for run in runs if run.id == word]:
        return exact
    if named := [run for run in runs if run.name == word]:
        return [run for run in named if run.is_alive is not False] or named[:1]
    return [*runs[:1]] if word == "latest" else [run for run in runs if run.id.startswith(word)]


def choose_run(runs: Sequence[AnyRunT], word: str | None) -> AnyRunT:
    """Return the run that a word means; None: the newest one. Raise UsageError if there is none, or several."""
    if word is None and not runs:
        raise UsageError("no run was started on this machine yet", "start one, or ask where it was started")
    found = find_meant(runs, word) if word is not None else [*runs[:1]]
    if not found:
        raise UnknownRunError(f"no run {word!r}", "see launch ps for the runs of this machine")
    if len(found) > 1:
        ids = name_runs(found, with_names=False)
        raise UsageError(f"{word!r} means {len(found)} runs: {ids}", "name one by its id, as launch ps shows it")
    return found[0]


def list_places(base: Path) -> list[Path]:
    """Return the directories of all runs in a list; raise LauncherError if it can't be read, or trusted."""
    try:
        if base.exists():
            own_state(base.parent, base.name)
        return [*base.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:  # such as a network file system that does not respond: nothing is known then
        text = f"can't read the list of runs in {error.filename or base}: {error.strerror}"
        fix = "chmod go-w that directory if it is yours, or choose another with XDG_STATE_HOME"
        raise LauncherError(text, fix if error.errno == errno.EPERM else "") from None


def name_runs(runs: Sequence[ListedRun | RemoteRun], *, with_names: bool = True) -> str:
    """Return `20261120-091233 (baseline), 20261120-101500`, of ids and the names that runs may have."""
    titles = [f"{run.id} ({run.name})" if run.name and with_names else run.id for run in runs[:_MOST_NAMED]]
    return ", ".join(titles + ["..."] * (len(runs) > _MOST_NAMED))


def find_state(variables: Mapping[str, str]) -> Path:
    """Return the directory below XDG_STATE_HOME, by default ~/.local/state (XDG Base Directory 0.8).

    What is read there names processes to signal, and programs and ssh_config files that run: nobody else may write it.
    """
    base = variables.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"  # a relative one is invalid
    return state / "launch"


def own_state(state: Path, folder: str = "") -> None:
    """Make the directory of find_state, and one in it, with mode 0700, as make_own does.

    Raise OSError if that fails, or if another user could write there, or put another directory in its place.
    """
    for path in (state, state / folder) if folder else (state,):
        make_own(str(path.absolute()))


def claim_place(base: Path, run_id: str, token: str = "") -> bool:
    """Make the directory of a run; return False if another one has this id.

    token: by which the controller of the run knows that the id was taken for it.
    """
    own_state(base.parent, base.name)
    place = base / run_id
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        return False
    if token:
        write_private(place / WAY, json.dumps({"token": token}))
    return True


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object that a file holds, which may be empty; any damage makes it so."""
    try:
        found = load_json(path.read_bytes())
    except (OSError, FormError):
        return {}
    return found if isinstance(found, dict) else {}


def _age(path: Path) -> float:
    """Return the seconds since a file was written."""
    return time.time() - path.stat().st_mtime


def _measure(folder: Path) -> int:
    """Return how many bytes the files below a directory have."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _describe_machine() -> dict[str, str]:
    """Return what a controller's entry has of its machine; a value is empty where the system has none."""
    found = {
        "host": os.uname().nodename, "machine_id": system.machine_id(), "boot_id": boot_id(),
        "pid_namespace": system.pid_namespace(),
    }  # fmt: skip
    return {name: value or "" for name, value in found.items()}


def _sort(runs: list[AnyRunT]) -> list[AnyRunT]:
    return sorted(runs, key=lambda run: run.began_at, reverse=True)


def _read_any(place: Path) -> ListedRun | RemoteRun | None:
    """Return the run of a directory; of one that has both entries this machine knows only what it controls itself."""
    listed, remote = _read_listed(place), _read_remote(place)
    return remote if remote is not None and not (listed is not None and listed.is_here) else listed


def _read_listed(place: Path) -> ListedRun | None:
    # Before its end is read, which is written before the lock is released.
    is_locked = system.is_locked(str(place / LOCK))
    said = _read_json(place / CONTROLLER)
    controller: Controller | None = _as_form(Controller, said)
    if controller is None:  # it is being made, or is none of ours
        return None
    end = _as_form(End, said.get("end") or _read_json(place / _END_BEFORE))
    run = ListedRun(place, controller, is_locked, end)
    return replace(run, is_alive=_find_life(run, is_locked=is_locked))


def _read_remote(place: Path) -> RemoteRun | None:
    known = _read_json(place / WAY)
    found: RemoteRun | None = _as_form(RemoteRun, {**known, "id": place.name, "row": None})
    if found is None:  # it is being written, or is none of ours
        return None
    seen = known.get("seen") or _read_json(place / _SEEN_BEFORE)
    row: RunRow | None = _as_form(RunRow, seen.get("row")) if isinstance(seen, dict) else None
    return replace(found, row=None if row is None or row.may_live else row)  # earlier versions noted living ones, too


def _as_form(form: Any, value: Any) -> Any:
    """Return a value in its form; None if it can't be that. A newer version may have written more."""
    try:
        return reader_of(form)(value)
    except FormError:
        return None


def _find_life(run: ListedRun, *, is_locked: bool | None) -> bool | None:
    """Return whether the controller of a run lives; None: only its own machine can tell."""
    if is_locked or run.end is not None:
        return bool(is_locked)
    here, controller = _describe_machine(), run.controller
    # One kernel has all locks; on a system without boot ids, the host name stands for it.
    if controller.boot_id == here["boot_id"] and (here["boot_id"] or controller.host == here["host"]):
        return _has_process(controller.pid) if is_locked is None else False
    # Many network file systems keep the locks of each machine apart. This one, if it is the same, was started again.
    is_same = here["machine_id"] and all(getattr(controller, name) == here[name] for name in ("host", "machine_id"))
    return False if is_same else None


def _has_process(pid: int) -> bool:
    """Tell whether there is such a process of this user: without locks, that is all there is to know."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # the latter: the id was used again
        return False
    return True
