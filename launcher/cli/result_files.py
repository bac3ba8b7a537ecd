"""Copy the logs of a run from the host that controls it, and what its ranks have written from its hosts."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.command_table import COMMANDS
from launcher.cli.error_lines import show_error, tell, tell_lost
from launcher.cli.find_run import CONNECT_TIMEOUT_S, ControllerLost, ask_value, open_way, read_record, unreadable
from launcher.cli.options.file_owners import refuse_strange_folder
from launcher.cli.repetition import read_origin, typed_of
from launcher.commands.fetch import Wish, fetch_files, refuse_pattern
from launcher.errors import EXIT_FAILED, EXIT_UNREACHABLE, LauncherError, UsageError
from launcher.escapes import listed_names
from launcher.hosts.host import Host
from launcher.hosts.ranges import shown
from launcher.runs.run_json import RunJson, read_run_json
from launcher.runs.run_list import ORIGIN, ListedRun, RemoteRun, RunList
from launcher.session.settings import loader_pythons
from launcher.transports.base import Transport, TransportError
from launcher.wording import count, size

if TYPE_CHECKING:
    from launcher.job.job import Job
    from launcher.runs.run_request import Opener
    from launcher.transports.registry import TransportEntry

MOST_BYTES = 2_000_000_000  # of one host
_MOST_LOG_BYTES = 64 << 30
_LOGS = ("run.json", "launch.log", "node_*.log", "samples.jsonl", "stacks-*.txt", "files", "bisection")


def fetch_logs(found: RemoteRun, log_dir: Path, *, is_chosen: bool) -> int:
    """Copy the logs of a run below `log_dir`; return the exit code. is_chosen: the user has named the directory."""
    if not is_chosen:
        refuse_strange_folder(log_dir)
    folder = ask_value(found, "logs")
    if not isinstance(folder, str):
        raise unreadable(found.way.name)
    way, options = found.way, ["--log-dir", str(log_dir)] if is_chosen else []
    wish = Wish(folder, _LOGS, _MOST_LOG_BYTES, may_grow=True)
    again = shlex.join(["launch", "fetch", *options, found.id])
    origin = {"run": found.id, "host": way.name, "user": way.user, "port": way.port}
    host = _Host(way.host, open_way(way), way.python, CONNECT_TIMEOUT_S)
    return _copy(host, wish, log_dir / found.id, again, origin)


def fetch_paths(
    found: ListedRun | RemoteRun, patterns: Sequence[str], log_dir: Path, *,
    is_chosen: bool, from_all: bool, most_bytes: int,
) -> int:  # fmt: skip
    """Copy files of node 0, or of all hosts, below `log_dir`; return the exit code.

    is_chosen: the user has named that directory.
    """
    refuse_patterns(patterns)
    log_dir = log_dir.absolute()
    if not is_chosen:
        refuse_strange_folder(log_dir)
    options = [*(["--all"] if from_all else []), *(["--log-dir", str(log_dir)] if is_chosen else [])]
    folders = _find_folders(read_record(found), found.id)
    names = [*folders] if from_all else [*folders][:1]
    origin = read_origin(RunList.of_user(os.environ), found.id)
    worst = 0
    again = shlex.join(["launch", "fetch", *options, found.id, *patterns])
    for host in _open(origin, names, found.id):
        wish = Wish(folders[host.name], tuple(patterns), most_bytes)
        try:
            code = _copy(host, wish, log_dir / f"{found.id}-fetched" / host.name, again)
        except LauncherError as error:  # the other hosts may have theirs
            show_error(error)
            code = error.exit_code
        worst = worst or code
    return worst


def refuse_patterns(patterns: Sequence[str], option: str = "") -> None:
    """Raise UsageError for what can't be files in the working directory; option: what names them."""
    for pattern in patterns:
        if why := refuse_pattern(pattern):
            raise UsageError(f"{option}{shown(pattern)} {why}", "name it as the script does, such as outputs/")


def refuse_transport(chosen: TransportEntry, what: str) -> None:
    """Raise UsageError for a transport that carries no files back; what: is to use it."""
    if chosen.needs_allocation:
        text = f"{what}: --transport {chosen.name} can't copy files back"
        raise UsageError(text, "use --transport fabric or ssh, or copy them with scp or rsync")


def fetch_at_end(logs: Path, patterns: Sequence[str], hosts: Sequence[Host], open_transport: Opener, job: Job) -> None:
    """Copy files of node 0 at the end of a run of this process, if it has started; say what came of it.

    logs: their directory.
    """
    try:
        folders = _find_folders(read_run_json(json.loads((logs / "run.json").read_text("utf-8"))), logs.name)
    except (OSError, ValueError, UsageError):  # it has never started, and that was said
        return
    name = next(iter(folders))
    host = {host.name: host for host in hosts}[name]  # no other host has run anything
    wish = Wish(folders[name], tuple(patterns), MOST_BYTES)
    again = shlex.join(["launch", "fetch", logs.name, *patterns])
    try:
        transport = open_transport((host,), lambda text: None)
        reached = _Host(host, transport, job.python, job.timeouts.connect_timeout_s)
        _copy(reached, wish, logs.parent.absolute() / f"{logs.name}-fetched" / name, again)
    except LauncherError as error:
        tell(f"launch: {error.message}; fix: {again}")


def fetch_asked(found: RemoteRun, log_dir: Path) -> None:
    """Copy what --fetch named when a run was started here that another machine controls; say what came of it."""
    runs = RunList.of_user(os.environ)
    if runs.read_kept(found.id, ORIGIN) is None:
        return
    patterns = read_origin(runs, found.id).get("fetch")
    if not isinstance(patterns, list) or not patterns:
        return
    try:
        fetch_paths(found, patterns, log_dir, is_chosen=False, from_all=False, most_bytes=MOST_BYTES)
    except ControllerLost as error:
        show_error(error)
    except LauncherError as error:
        tell(f"launch: {error.message}; fix: {shlex.join(['launch', 'fetch', found.id, *map(str, patterns)])}")
    except click.exceptions.Exit:
        pass  # it was said why


@dataclass(frozen=True, slots=True)
class _Host:
    """A host, and how it is reached."""

    host: Host
    transport: Transport
    python: str | None
    timeout_s: float  # for a login

    @property
    def name(self) -> str:
        return self.host.name


def _copy(
    host: _Host, wish: Wish, target: Path, again: str, origin: Mapping[str, object] | None = None
) -> int:  # fmt: skip
    """Copy files of one host, and say what came of it; return an exit code. again: the command that continues it."""
    pythons = loader_pythons(host.python)
    try:
        got = fetch_files(host.transport, host.host, pythons, host.timeout_s, wish, target, origin)
    except TransportError as error:
        tell_lost(error.failure, f"launch: the copy continues with {again}")
        return EXIT_UNREACHABLE
    except KeyboardInterrupt:
        tell(f"launch: stopped by you; the copy continues with {again}")
        raise
    if not got.matched:
        tell(f"launch: {host.name} has nothing in {wish.folder} that matches {listed_names(wish.patterns)}")
        return EXIT_FAILED
    same = got.matched - got.copied - len(got.too_large) - len(got.odd)
    known = f"; {count(same, 'file')} unchanged" if same > 0 else ""
    tell(f"launch: copied {count(got.copied, 'file')} ({size(got.bytes_in_all)}) of {host.name} to {target}{known}")
    if got.too_large:
        named = listed_names([f"{path} ({size(size_bytes)})" for path, size_bytes in got.too_large])
        tell(f"launch: not copied, over {size(wish.most_bytes)}: {named}; fix: {again} --limit SIZE")
    if got.odd:
        tell(f"launch: not copied from {host.name}: {listed_names(got.odd)}")
    return EXIT_FAILED if got.too_large or got.odd else 0


def _find_folders(record: RunJson, run_id: str) -> dict[str, str]:
    """Return the working directory on each host of the last attempt, in the order of their node ranks."""
    if not record.plan.nodes:
        raise UsageError(f"run {run_id} has started no ranks, so its hosts have no files of it")
    return {node.host: node.cwd for node in record.plan.nodes}


def _open(origin: Mapping[str, Any], names: Sequence[str], run_id: str) -> Iterator[_Host]:
    """Yield each of these hosts, as it was reached when the run was started."""
    from launcher.cli.host_choice import choose_way, make_opener, open_this_machine, read_hosts
    from launcher.cli.options.sources import make_request, settle

    typed = typed_of(origin)
    if typed.command not in ("run", "singlenode"):
        raise UsageError(f"run {run_id} was a {typed.command}", "copy its files with scp or rsync")
    command: click.Command = importlib.import_module(COMMANDS[typed.command][0]).command
    with _inside(origin["directory"]), command.make_context(typed.command, typed.rest):
        request = make_request(settle(click.get_current_context().params))
        opener: Opener
        if typed.command == "singlenode":
            hosts, opener, timeout_s = [Host(name, source="this machine") for name in names], open_this_machine(), 10.0
        else:
            # With --queue and with spares, the run may have used other hosts than the first --num-nodes.
            known = {host.name: host for host in read_hosts(replace(request, num_nodes=None))}
            if unknown := [name for name in names if name not in known]:
                text = f"run {run_id} ran on {listed_names(unknown)}, which {command.name} doesn't name any more"
                raise UsageError(text, "copy its files with scp or rsync")
            hosts, timeout_s = [known[name] for name in names], request.connect_timeout_s
            chosen, settings = choose_way(request.reach, hosts)
            refuse_transport(chosen, "launch fetch PATH")
            opener = make_opener(chosen, settings, hosts, python=request.python)
        transport = opener(hosts, lambda text: None)
        for host in hosts:  # here, because a relative --ssh-config is read for each connection
            yield _Host(host, transport, request.python, timeout_s)


@contextlib.contextmanager
def _inside(directory: str) -> Iterator[None]:
    """Be in the directory where the run was started, as its relative paths need it."""
    here = Path.cwd()
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(f"{directory}, where the run was started, can't be entered: {error.strerror}") from None
    try:
        yield
    finally:
        os.chdir(here)
