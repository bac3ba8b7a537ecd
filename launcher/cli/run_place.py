"""Find the run that a command names, here or where it is controlled, and carry the command out there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli.error_lines import tell, tell_lost
from launcher.cli.file_owners import refuse_strange_folder
from launcher.cli.options import FILE, option
from launcher.cli.run_rows import prepare, read_rows, read_runs, read_ways
from launcher.errors import EXIT_FAILED, EXIT_UNREACHABLE, LauncherError, UsageError
from launcher.hosts.ranges import shown
from launcher.runs.run_list import ListedRun, choose_run, find_meant, is_run_id
from launcher.wording import age

if TYPE_CHECKING:
    from launcher.controller.planted_runs import PlantedRun, Way
    from launcher.controller.remote_launcher import RemoteLauncher
    from launcher.controller.requests import Request

_OPTIONS = (
    option(
        "--controller",
        metavar="HOST",
        help="The host that controls the run.  [default: as launch ps shows it]",
        heading="Output",
    ),
    option(
        "--ssh-config",
        metavar="FILE",
        type=FILE,
        help="With --controller, read FILE instead of ~/.ssh/config.",
        heading="Hosts",
    ),
)


def controller_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name where a run is controlled."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run is controlled, as the user says."""

    controller: str | None = None  # None: as launch remembers it
    ssh_config: Path | None = None


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run that is controlled from another machine."""

    id: str  # its run id there
    way: Way
    known: PlantedRun | None = None  # what this machine remembers of it, if it was started here


def find_run(word: str | None, place: RunPlace) -> ListedRun | RemoteRun:
    """Return the run that this word means, see choose_run; place: for runs that were started elsewhere."""
    if place.controller is not None:
        return _find_there(word, place)
    runs = _read_all()
    if word is not None and len(find_meant(runs, word)) > 1:
        read_rows()  # of runs elsewhere, only their hosts know which have ended
        runs = _read_all()
    found = choose_run(runs, word)
    return found if isinstance(found, ListedRun) else RemoteRun(found.id, found.way, found)


def _read_all() -> list[PlantedRun | ListedRun]:
    planted, listed = read_runs()
    return sorted([*planted, *listed], key=lambda run: run.began_at, reverse=True)


def _find_there(word: str | None, place: RunPlace) -> RemoteRun:
    """Return the run on the host that the user names."""
    from launcher.controller import requests
    from launcher.output.output_streams import find_streams

    assert place.controller is not None  # the caller looked
    ways = read_ways(place.controller, "--controller", place.ssh_config)
    if len(ways) != 1:
        raise UsageError(f"--controller names {len(ways)} hosts", "name the one that controls the run")
    with asking(ways[0]) as launcher:
        launcher.ask(requests.Find(word), find_streams(os.environ))
        found = launcher.read_output().decode("utf-8", "replace").strip()
    if launcher.exit_code:
        raise click.exceptions.Exit(launcher.exit_code)  # it has said why
    if not is_run_id(found):
        raise LauncherError(f"{ways[0].name} answered with {shown(found)}, which is no run id")
    return RemoteRun(found, ways[0])


def ask(run: RemoteRun, request: Request) -> int:
    """Carry out a request about a run where it is controlled, with its output here; return its exit code."""
    from launcher.controller import requests
    from launcher.output.output_streams import find_streams

    with asking(run.way) as launcher:
        launcher.ask(request, find_streams(os.environ))
        code = launcher.copy_output(is_of_a_run=isinstance(request, (requests.Attach, requests.Logs))) or 0
    if launcher.is_unknown:
        error, row = describe_unknown(run, time.time()), run.known.row if run.known is not None else None
        if row is None or row["exit_code"] is None or not isinstance(request, requests.Wait):
            raise error
        tell(f"launch: {error.message}")
        code = int(row["exit_code"])
    return code


def describe_unknown(run: RemoteRun, now: float) -> UsageError:
    """Return the error of a run that this machine lists, and the host that controlled it doesn't any more."""
    known, host = run.known, run.way.name
    began = "" if known is None else f", which was started {age(max(0.0, now - known.began_at))} ago"
    text = f"{host} knows nothing of run {run.id}{began}: {host} was reinstalled, or its list of runs was removed"
    if known is None:
        return UsageError(text, f"see launch ps --hosts {host}")
    forget = f"remove it from the list with launch ps --forget {run.id}"
    if known.row is not None:
        text += f"; what launch ps saw last: {known.row['state']}, {known.row['last_line']}"
    else:
        forget = f"stop what is left of it with launch clean --hosts LIST; {forget}"
    copy = Path("logs", run.id)
    return UsageError(text + (f"; a copy of its logs is in {copy}" if copy.is_dir() else ""), forget)


@contextlib.contextmanager
def asking(way: Way) -> Iterator[RemoteLauncher]:
    """Yield this package's code, running where the way leads; exit with 69 if it can't be reached, or is lost."""
    from launcher.transports.base import TransportError

    try:
        launcher = connect(way)
        try:
            yield launcher
        finally:
            launcher.close()
    except TransportError as error:
        tell_lost(error.failure)
        raise click.exceptions.Exit(EXIT_UNREACHABLE) from None


def connect(way: Way) -> RemoteLauncher:
    """Return this package's code, running where the way leads; raise TransportError."""
    return prepare(way)()


def answer(found: ListedRun | RemoteRun, here: Callable[[ListedRun], int], there: Callable[[str], Request]) -> int:
    """Carry out a command for a run of this machine, or ask for it where the run is controlled."""
    return here(found) if isinstance(found, ListedRun) else ask(found, there(found.id))


def fetch(found: RemoteRun, log_dir: Path, *, is_chosen: bool) -> int:
    """Copy the logs of a run below `log_dir`; return the exit code. is_chosen: the user has named the directory."""
    from launcher.controller import requests
    from launcher.controller.fetching import take_logs
    from launcher.output.output_streams import find_streams

    if not is_chosen:
        refuse_strange_folder(log_dir)
    with asking(found.way) as launcher:
        launcher.ask(requests.Fetch(found.id), find_streams(os.environ))
        folder, said = take_logs(launcher, found.way, found.id, log_dir)
    if launcher.is_unknown:
        raise describe_unknown(found, time.time())
    if folder is None:
        tell(said.rstrip("\n") or f"launch: {found.way.name} sent no logs")
        return EXIT_FAILED
    why = "" if folder.name == found.id else f": {log_dir / found.id} is no copy of this run"
    tell(f"launch: copied the logs to {folder}{why}")
    return 0
