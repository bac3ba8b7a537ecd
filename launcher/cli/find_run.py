"""Find the run that a command names, here or where it is controlled, and do there what the command is for.

What there is to say of runs elsewhere, their hosts are asked for, all at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.answer import ASK, answer, find_value
from launcher.cli.host_choice import choose_opener
from launcher.cli.repetition import read_typed, write_options
from launcher.concurrency import start_thread
from launcher.errors import (
    EXIT_UNREACHABLE,
    HostFailure,
    HostFailureKind,
    LauncherError,
    UsageError,
)
from launcher.escapes import one_line
from launcher.forms import load_json
from launcher.hosts.hostfiles import parse_hosts
from launcher.hosts.ranges import fold_names
from launcher.hosts.unreachable import failure_lines
from launcher.output.lines import STDERR
from launcher.output.output_streams import OutputStreams, find_streams, tell
from launcher.runs.run_json import RunJson, read_run_json
from launcher.runs.run_list import (
    ListedRun,
    RemoteRun,
    RunList,
    UnknownRunError,
    Way,
    choose_run,
    find_meant,
    name_runs,
)
from launcher.runs.run_rows import RunRow, make_row, read_row
from launcher.session.settings import loader_pythons
from launcher.transports.base import Transport, TransportError, TransportSettings, failure_of
from launcher.wording import age

if TYPE_CHECKING:
    from launcher.controller.remote_launcher import RemoteLauncher

CONNECT_TIMEOUT_S = 10.0
_AT_ONCE_S = 2.0  # for the next host to answer, before it is said who is waited for
_MOST_LINE_BYTES = 16_000_000
_MOST_SAID = 2000
_Answers = SimpleQueue[tuple[Way, "list[RunRow] | HostFailure"]]


def find_asker() -> OutputStreams | None:
    """Return the streams of the `launch` on another machine that runs this command here; None: the user does."""
    context = click.get_current_context(silent=True)
    return context.find_object(OutputStreams) if context is not None else None


def own_streams() -> OutputStreams:
    """Return the streams where the output of this command is shown."""
    return find_asker() or find_streams(os.environ)


def find_run(word: str | None, controller: str | None = None, ssh_config: Path | None = None) -> ListedRun | RemoteRun:
    """Return the run that this word means, see choose_run; with controller, of the runs that this host controls."""
    if controller is not None and find_asker() is None:
        return _find_there(word, controller, ssh_config)
    runs = _list_runs()
    if word is not None and len(find_meant(runs, word)) > 1:
        read_rows()  # of runs elsewhere, only their hosts know which have ended
        runs = _list_runs()
    return choose_run(runs, word)


def _list_runs() -> list[ListedRun | RemoteRun]:
    """Return the runs of this machine, the newest first; for a launch elsewhere, those that this one controls."""
    runs = RunList.of_user(os.environ)
    return runs.read_all() if find_asker() is None else [*runs.read()]


def _find_there(word: str | None, controller: str, ssh_config: Path | None) -> RemoteRun:
    runs = _list_there(controller, ssh_config)
    if not runs:
        raise UsageError(f"{controller} controls no run", "launch ps, where the run was started, names its controller")
    try:
        return choose_run(runs, word)
    except UnknownRunError as error:  # what it is asked about is known here, and not only there
        raise UsageError(error.message, f"see launch ps --hosts {controller}") from None


def _list_there(controller: str, ssh_config: Path | None) -> list[RemoteRun]:
    """Return the runs that a host controls, the newest first."""
    ways = _read_ways(controller, "--controller", ssh_config)
    if len(ways) != 1:
        raise UsageError(f"--controller names {len(ways)} hosts", "name the one that controls the run")
    with _asking(ways[0]) as launcher:
        rows = _ask_rows(launcher)
    return [RemoteRun(row.run, ways[0], row.name, row=None if row.may_live else row) for row in rows]


def run_there(found: RemoteRun, *, is_of_a_run: bool = False) -> int:
    """Run this command on the host that controls a run, copy its output, and return its exit code.

    is_of_a_run: the output is, see RemoteLauncher.copy_output. Raise UnknownRunError if the host knows nothing of it.
    """
    command = click.get_current_context().command
    typed = {name: value for name, value in read_typed().options.items() if name not in ("controller", "ssh_config")}
    words = (str(command.name), found.id, f"--controller={found.way.name}", *write_options(command, typed))
    with _asking_about(found, words) as launcher:
        return launcher.copy_output(is_of_a_run=is_of_a_run) or 0


def carry_out(found: ListedRun | RemoteRun, question: str) -> int:
    """Do for a run what is no command of its own, here or where it is controlled; return an exit code."""
    if isinstance(found, ListedRun):
        return answer(found, question, own_streams())
    with _asking_about(found, (ASK, found.id, question)) as launcher:
        return launcher.copy_output(is_of_a_run=False) or 0


@contextlib.contextmanager
def _asking_about(found: RemoteRun, words: tuple[str, ...]) -> Iterator[RemoteLauncher]:
    """Run a command on the host that controls a run, while the block reads its output."""
    with _asking(found.way, found) as launcher:
        launcher.ask(words, own_streams())
        yield launcher
    if launcher.is_unknown:
        raise _describe_unknown(found)


def read_samples(found: RemoteRun) -> Iterator[bytes]:
    """Yield the lines with what the hosts of a run do, from the host that controls it."""
    rest = b""
    with _asking_about(found, (ASK, found.id, "samples")) as launcher:
        for stream, data in launcher.pieces():
            if stream == STDERR:
                tell(one_line(data.decode("utf-8", "replace"), _MOST_SAID))
                continue
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _MOST_LINE_BYTES:
                raise LauncherError(f"{found.way.name} sent a line that is too long")
            yield from lines


def find_active_run(controller: str | None, ssh_config: Path | None) -> ListedRun | RemoteRun | None:
    """Return the only run of this machine, or of those that a host controls, that may live; None if there is none.

    Raise UsageError if there are several.
    """
    if controller is not None:
        active: Sequence[ListedRun | RemoteRun] = [
            run for run in _list_there(controller, ssh_config) if run.row is None
        ]
    else:
        if any(isinstance(run, RemoteRun) for run in _list_active()):
            read_rows()  # of runs elsewhere, only their hosts know which have ended
        active = _list_active()
    if len(active) > 1:
        raise UsageError(f"{len(active)} runs may be running: {name_runs(active)}", "name one of them")
    return active[0] if active else None


def _list_active() -> list[ListedRun | RemoteRun]:
    # Of a run that another machine with this home directory controls, nothing here can tell whether it lives.
    runs = RunList.of_user(os.environ).read_all()
    return [run for run in runs if run.is_alive or (isinstance(run, RemoteRun) and run.row is None)]


def ask_value(run: ListedRun | RemoteRun, question: str) -> Any:
    """Return what `find_value` says of a run, here or where it is controlled; raise LauncherError."""
    if isinstance(run, ListedRun):
        return find_value(run, question)
    with _asking_about(run, (ASK, run.id, question)) as launcher:
        data = launcher.read_output()
    if launcher.exit_code:
        raise click.exceptions.Exit(launcher.exit_code)  # it has said why
    try:
        return load_json(data)
    except ValueError:
        raise unreadable(run.way.name) from None


def unreadable(host: str) -> LauncherError:
    """Return the error for an answer of a host that has another form."""
    return LauncherError(f"{host} sent an answer that can't be read")


def _describe_unknown(run: RemoteRun) -> UnknownRunError:
    """Return the error of a run that this machine lists, and the host that controlled it doesn't any more."""
    host = run.way.name
    text = f"{host} knows nothing of run {run.id}: {host} was reinstalled, or its list of runs was removed"
    if not run.began_at:
        return UnknownRunError(text, f"see launch ps --hosts {host}")
    if run.row is not None:
        text += f"; what launch ps saw last: {run.row.state}, {run.row.last_line}"
    clean = "" if run.row is not None else "stop what is left of it with launch clean --hosts LIST; "
    return UnknownRunError(text, f"{clean}remove it from the list with launch ps --forget {run.id}")


def tell_lost(failure: HostFailure, known: str = "") -> None:
    """Say that a host could not be asked, as describe_lost has it."""
    tell(f"launch: {describe_lost(failure, known)}")


def describe_lost(failure: HostFailure, known: str = "") -> str:
    """Return that a host could not be asked; known: what to say of the run instead of that nothing is known."""
    lines = [f"{failure.host}: {failure.text}", f"  fix: {failure.fix}" if failure.fix else ""]
    known = known or "launch: whether the run continues is unknown here; see launch ps"
    return "\n".join([*filter(None, lines), known])


class ControllerLost(LauncherError):
    """The host that controls a run can't be reached, or was lost."""

    exit_code = EXIT_UNREACHABLE

    def __init__(self, failure: HostFailure, known: str) -> None:
        super().__init__(describe_lost(failure, known))
        self.failures = [failure]


@contextlib.contextmanager
def _asking(way: Way, run: RemoteRun | None = None) -> Iterator[RemoteLauncher]:
    """Yield this package's code, running where the way leads; raise ControllerLost. run: what is asked about."""
    try:
        with contextlib.closing(_prepare(way)()) as launcher:
            yield launcher
    except TransportError as error:
        known = _describe_unreached(run) if run is not None else ""
        raise ControllerLost(error.failure, known) from None


def _describe_unreached(run: RemoteRun) -> str:
    """Return what this machine knows of a run whose controller host can't be reached, and what to do about it."""
    now, host = time.time(), run.way.name
    began = f"; it was started {age(max(0.0, now - run.began_at))} ago" if run.began_at else ""
    return (
        f"launch: only {host} knows whether run {run.id} continues{began}\n"
        f"  fix: try again when {host} responds; if it has died, all hosts stop the run after --silence"
    )


def read_record(run: ListedRun | RemoteRun) -> RunJson:
    """Return the run.json of a run, see ask_value."""
    return read_run_json(ask_value(run, "record"))


def read_state(run: ListedRun | RemoteRun) -> RunRow:
    """Return the row of one run."""
    now = time.time()
    if isinstance(run, ListedRun):
        return make_row(run, now)
    answers, _ = _ask_for_rows([run.way] if run.row is None else [])
    return read_row_of(run, answers, now)


def read_rows() -> tuple[list[RunRow], list[str]]:
    """Return the rows of the runs that were started on this machine, the newest first, as read_rows_of does."""
    runs, now = _list_runs(), time.time()
    answers, failures = _ask_for_rows({run.way for run in runs if isinstance(run, RemoteRun) and run.row is None})
    rows = [make_row(run, now) if isinstance(run, ListedRun) else read_row_of(run, answers, now) for run in runs]
    return sorted(rows, key=attrgetter("age_s")), failures


def read_row_of(run: RemoteRun, answers: Mapping[Way, list[RunRow]], now: float) -> RunRow:
    """Return the row of a run elsewhere; if its host gave none, only what is known here, and why."""
    if run.row is not None:
        return _complete(run, run.row, now)
    found = next((row for row in answers.get(run.way, ()) if row.run == run.id), None)
    if found is not None:
        RunList.of_user(os.environ).note_seen(run, found)
        return _complete(run, found, now)
    why = "knows nothing of it" if run.way in answers else "doesn't answer"
    return _complete(run, RunRow(run=run.id, state="unknown", last_line=why), now)


def _complete(run: RemoteRun, row: RunRow, now: float) -> RunRow:
    """Return a row with what this machine knows of the run."""
    age_s = round(max(0.0, now - run.began_at), 1)
    return replace(row, name=run.name, controller=run.way.name, age_s=age_s)


def read_rows_of(hosts: str, ssh_config: Path | None) -> tuple[list[RunRow], list[str]]:
    """Return the rows of the runs that these hosts control, and lines about hosts that don't answer."""
    answers, failures = _ask_for_rows(_read_ways(hosts, "--hosts", ssh_config))
    rows: dict[tuple[str, str], RunRow] = {}
    for row in (row for found in answers.values() for row in found):
        place = row.controller, row.run  # with one home directory for all hosts, each of them lists all runs
        if place not in rows or rows[place].state == "unknown":
            rows[place] = row
    return sorted(rows.values(), key=attrgetter("age_s")), failures


def _read_ways(hosts: str, source: str, ssh_config: Path | None) -> list[Way]:
    """Return the ways to these hosts; source: the option that names them."""
    config = str(ssh_config.absolute()) if ssh_config is not None else None
    named = parse_hosts(hosts, source, are_logins=True)
    return [Way(host.name, host.user, host.port, ssh_config=config) for host in named]


def _ask_for_rows(ways: Collection[Way]) -> tuple[dict[Way, list[RunRow]], list[str]]:
    """Ask all of them at once for their rows; return what each has answered, and lines about the others."""
    answers: _Answers = SimpleQueue()
    for way in ways:
        _begin_to_ask(way, answers)
    found: dict[Way, list[RunRow]] = {}
    failures: list[HostFailure] = []
    late = dict.fromkeys(ways)
    patience_s: float | None = _AT_ONCE_S
    while late:
        try:
            way, answer = answers.get(timeout=patience_s)
        except Empty:
            tell(f"launch: waiting for {fold_names([way.name for way in late])}")
            patience_s = None
            continue
        del late[way]
        if isinstance(answer, HostFailure):
            failures.append(answer)
        else:
            found[way] = answer
    return found, failure_lines(failures)


def _begin_to_ask(way: Way, answers: _Answers) -> None:
    try:
        start_thread(partial(_try_for_rows, way, _prepare(way), answers), f"ask {way.name}", lambda error: None)
    except LauncherError as error:  # such as an ssh_config that was removed since
        answers.put((way, HostFailure(way.name, HostFailureKind.CONFIGURATION, error.message, error.fix)))


def _try_for_rows(way: Way, connect: Callable[[], RemoteLauncher], answers: _Answers) -> None:
    """Put the rows of a host, or why there are none: whoever waits must get something."""
    try:
        with contextlib.closing(connect()) as launcher:
            answers.put((way, _ask_rows(launcher)))
    except Exception as error:  # noqa: BLE001 - it becomes a value, whatever it is
        answers.put((way, failure_of(way.name, error)))


def _ask_rows(launcher: RemoteLauncher) -> list[RunRow]:
    launcher.ask(("ps", "--all", "--json"), own_streams())
    try:
        return read_answer(launcher.read_output())
    except ValueError:
        raise unreadable(launcher.host.name) from None


def read_answer(data: bytes) -> list[RunRow]:
    """Return the rows in what a host has answered, without those that can't be one; raise ValueError for no JSON."""
    found = load_json(data or b"[]")
    rows = map(read_row, found if isinstance(found, list) else [])
    return [row for row in rows if row is not None]


def _prepare(way: Way) -> Callable[[], RemoteLauncher]:
    """Return what connects, which any thread may do."""
    from launcher.controller.remote_launcher import RemoteLauncher  # most runs are controlled here

    transport, pythons = open_way(way), loader_pythons(way.python)
    return lambda: RemoteLauncher(transport, way.host, pythons, CONNECT_TIMEOUT_S)


@functools.cache
def open_way(way: Way) -> Transport:
    """Return the transport to the host that controls a run, one for all its logins."""
    settings = TransportSettings(way.transport, Path(way.ssh_config) if way.ssh_config else None, silence_s=0.0)
    open_transport = choose_opener(settings, [way.host], python=way.python)
    return open_transport([way.host], lambda text: None)
