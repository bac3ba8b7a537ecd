"""launch fetch: copy the logs of a run, what its ranks have written, or its code."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from launcher.cli.file_receiver import Wish, fetch_files, refuse_pattern
from launcher.cli.find_run import (
    CONNECT_TIMEOUT_S,
    ask_value,
    find_run,
    open_way,
    read_record,
    tell_lost,
    unreadable,
)
from launcher.cli.host_choice import choose_way, make_opener, open_this_machine
from launcher.cli.options.command import Command, gather, is_chosen
from launcher.cli.options.completion import complete_files
from launcher.cli.options.file_owners import refuse_strange_folder
from launcher.cli.options.request import LOG_DIR, RUN, RUN_PLACE, SIZE, Option
from launcher.cli.repetition import read_origin, read_reach, read_version
from launcher.errors import EXIT_FAILED, EXIT_UNREACHABLE, LauncherError, UsageError
from launcher.escapes import listed_names
from launcher.hosts.host import Host
from launcher.hosts.ranges import shown
from launcher.output.output_streams import describe_error, tell
from launcher.output.run_folder import SAMPLES
from launcher.runs.run_list import LISTING, ListedRun, RemoteRun, RunList
from launcher.session.settings import loader_pythons
from launcher.sync.kept_code import read_listing, write_tree
from launcher.transports.base import Transport, TransportError
from launcher.wording import count, size

_MOST_LOG_BYTES = 64 << 30
_LOGS = ("run.json", "launch.log", "node_*.log", SAMPLES, "stacks-*.txt", "files", "bisection")


@click.command("fetch", cls=Command, params=[
    RUN, click.Argument(["paths"], metavar="[PATH]...", nargs=-1, shell_complete=complete_files),
    Option(
        ["--code"], is_flag=True, help="Copy the code of RUN to PATH instead.  [default PATH: RUN-code]",
        heading="Code",
    ),
    Option(
        ["--all", "from_all"], is_flag=True, help="Copy PATH from all hosts, not only from node 0.", heading="Output",
        needs="paths",
    ),
    Option(
        ["--limit"], metavar="SIZE", type=SIZE, default="2GB", show_default=True,
        help="With PATH, copy at most SIZE from each host.", heading="Output", needs="paths",
    ),
    LOG_DIR.but(help="Directory for the copy."), *RUN_PLACE,
])  # fmt: skip
@gather
def command(
    *, run: str | None, paths: tuple[str, ...], code: bool, from_all: bool, limit: int, log_dir: Path,
    controller: str | None, ssh_config: Path | None,
) -> int:  # fmt: skip
    """Copy the logs, run.json and the ranks' files of RUN from its controller host.  [default: the newest run]

    The copy is DIR/RUN, with DIR from --log-dir. Only what is missing there is copied, and if DIR/RUN is anything else
    than an earlier copy, nothing.

    With PATH, such as outputs/ or 'outputs/*.pt', copy these files of RUN from node 0 to DIR/RUN-fetched instead. PATH
    is relative to the directory in which the ranks run. The newest run is `latest`.

    With --code, the code of RUN: the files that it sent with --sync, or else the patch against its commit. PATH and
    --code need the machine where RUN was started.
    """
    found = find_run(run, controller, ssh_config)
    if code:
        if len(paths) > 1:
            raise UsageError(f"--code takes one directory, got {shown(paths[1])}", "see launch fetch --help")
        return _fetch_code(found.id, Path(paths[0] if paths else f"{found.id}-code"))
    if paths:
        return _fetch_paths(found, paths, log_dir, from_all=from_all, most_bytes=limit)
    if isinstance(found, RemoteRun):
        return fetch_logs(found, log_dir, is_chosen=is_chosen("log_dir"))
    tell(f"launch: the logs of run {found.id} are on this machine, in {found.folder}")
    return 0


# ---- logs, and what the ranks have written ----------------------------------------------------------------------


def fetch_logs(found: RemoteRun, log_dir: Path, *, is_chosen: bool) -> int:
    """Copy the logs of a run below `log_dir`; return the exit code. is_chosen: the user has named the directory."""
    if not is_chosen:
        refuse_strange_folder(log_dir)
    folder = ask_value(found, "logs")
    if not isinstance(folder, str):
        raise unreadable(found.way.name)
    way = found.way
    again = _name_command(log_dir if is_chosen else None, found.id)
    origin = {"run": found.id, "host": way.name, "user": way.user, "port": way.port}
    wish = Wish(folder, _LOGS, _MOST_LOG_BYTES, may_grow=True)
    return _copy(_Login(way.host, open_way(way), way.python), wish, log_dir / found.id, again, origin)


def _fetch_paths(
    found: ListedRun | RemoteRun, patterns: Sequence[str], log_dir: Path, *, from_all: bool, most_bytes: int
) -> int:
    """Copy files of node 0, or of all hosts, below `log_dir`; return the exit code."""
    for pattern in patterns:
        if why := refuse_pattern(pattern):
            raise UsageError(f"{shown(pattern)} {why}", "name it as the script does, such as outputs/")
    is_named = is_chosen("log_dir")
    log_dir = log_dir.absolute()
    if not is_named:
        refuse_strange_folder(log_dir)
    folders = {node.host: node.cwd for node in read_record(found).plan.nodes}  # by node rank
    if not folders:
        raise UsageError(f"run {found.id} has started no ranks, so its hosts have no files of it")
    again = _name_command(log_dir if is_named else None, *["--all"] * from_all, found.id, *patterns)
    worst = 0
    for login in _log_in(found, [*folders] if from_all else [*folders][:1]):
        wish = Wish(folders[login.host.name], tuple(patterns), most_bytes)
        try:
            code = _copy(login, wish, log_dir / f"{found.id}-fetched" / login.host.name, again)
        except LauncherError as error:  # the other hosts may have theirs
            tell(describe_error(error))
            code = error.exit_code
        worst = worst or code
    return worst


def _name_command(log_dir: Path | None, *words: str) -> str:
    return shlex.join(["launch", "fetch", *(["--log-dir", str(log_dir)] if log_dir is not None else []), *words])


@dataclass(frozen=True, slots=True)
class _Login:
    """A host, what reaches it, and the Python of the run there."""

    host: Host
    transport: Transport
    python: str | None


def _log_in(found: ListedRun | RemoteRun, names: Sequence[str]) -> list[_Login]:
    """Return how these hosts are reached: as the run reached them, whatever the controller's host says of that."""
    hosts, settings, python = read_reach(RunList.of_user(os.environ), found.id)
    if unknown := [name for name in names if name not in hosts]:
        raise LauncherError(f"run {found.id} was started without {listed_names(unknown)}", "copy its files with scp")
    wanted = [hosts[name] for name in names]
    if settings is None:
        opener = open_this_machine()
    else:
        chosen, settings = choose_way(settings, wanted)
        if chosen.needs_allocation:
            text = f"launch fetch PATH: --transport {chosen.name} can't copy files back"
            raise UsageError(text, "use --transport fabric or ssh, or copy them with scp or rsync")
        opener = make_opener(chosen, settings, python=python)
    transport = opener(wanted, lambda text: None)
    return [_Login(host, transport, python) for host in wanted]


def _copy(
    login: _Login, wish: Wish, target: Path, again: str, origin: Mapping[str, object] | None = None
) -> int:  # fmt: skip
    """Copy files of one host, and say what came of it; return an exit code. again: the command that continues it."""
    host, pythons = login.host, loader_pythons(login.python)
    try:
        got = fetch_files(login.transport, host, pythons, CONNECT_TIMEOUT_S, wish, target, origin)
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


# ---- its code ---------------------------------------------------------------------------------------------------


def _fetch_code(run_id: str, folder: Path) -> int:
    """Write the files that a run sent to a new directory, or say which commit it ran; return the exit code."""
    runs = RunList.of_user(os.environ)
    listing = runs.read_kept(run_id, LISTING)
    if listing is not None:
        return _copy_tree(run_id, listing, folder)
    version = read_version(runs, run_id)
    if version is None:
        text = f"the code of run {run_id} isn't kept on this machine"
        raise UsageError(text, "run launch fetch --code where it was started; it keeps what --sync sends or git has")
    changes = "" if version.dirty is False else ", with changes that aren't kept"  # None: there may have been some
    tell(f"launch: run {run_id} ran commit {version.commit}{changes}; to get it back:")
    directory = shlex.quote(read_origin(runs, run_id)["directory"])
    print(f"  git -C {directory} worktree add {shlex.quote(str(folder.absolute()))} {version.commit}")
    return 0


def _copy_tree(run_id: str, listing: bytes, folder: Path) -> int:
    entries = read_listing(listing)
    try:
        lacking = write_tree(entries, folder, os.environ)
    except FileExistsError:
        raise UsageError(f"{folder} exists", f"name another directory: launch fetch --code {run_id} DIR") from None
    except OSError as error:
        raise LauncherError(f"can't write {folder}: {error.strerror}") from None
    tell(f"launch: copied the code of run {run_id} ({count(len(entries) - len(lacking), 'file')}) to {folder}")
    if lacking:
        tell(f"launch: not kept any more: {listed_names(lacking)}")
    return EXIT_FAILED if lacking else 0
