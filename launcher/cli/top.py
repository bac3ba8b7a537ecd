"""launch top: what the GPUs of all hosts do now."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.answer import is_running
from launcher.cli.find_run import find_active_run, find_run, read_samples
from launcher.cli.options.command import Command, gather, is_on_command_line
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, HELPER_PYTHON, HOSTS, LIFE, NAME_HOSTS, REACH, RUN, Option, Request
from launcher.cli.top_screen import HostNow, RunNow, describe_size, draw, now_as_text, parse_now
from launcher.clock import iso_time, wall_clock
from launcher.errors import EXIT_SIGNAL_BASE, EXIT_UNREACHABLE, UsageError
from launcher.job.facts import BoxClaim, GpuSample, GpuUse, HostSample, NodeFacts
from launcher.node import messages
from launcher.output.lines import STDERR
from launcher.output.output_streams import Line, tell
from launcher.output.run_folder import SAMPLES
from launcher.runs.odd_gpus import INTERVAL_S, OddWatch, Samples
from launcher.runs.run_list import ListedRun, RemoteRun
from launcher.runs.run_state import Activity

if TYPE_CHECKING:
    from launcher.session.connection import Event
    from launcher.session.session import Session

PERIOD_S = 2.0
_CLAIMS_S = 10.0  # between two looks for claims
_LOOK_S = 0.5  # between two looks for something new
_SILENT_S = 2.5 * INTERVAL_S  # without anything new: no ranks run
_TAIL_BYTES = 1 << 20  # of the samples of a run: of the last interval of 1,000 hosts
_LINES_BELOW = 1  # the table

Show = Callable[[RunNow], object]


@click.command("top", cls=Command, params=[
    RUN, CONFIG, *HOSTS, *REACH, *LIFE, HELPER_PYTHON,
    AS_JSON.but(help="Print one JSON object per sample of a host."),
    Option(["--once"], is_flag=True, help="Print the table once.", heading="Output"),
])  # fmt: skip
@gather
def command(*, run: str | None, once: bool, request: Request) -> int:
    """Show what the GPUs of RUN's hosts do, or of other hosts, and why their clocks are held down.

    [default: the only active run, else the hosts of launcher.toml or of the Slurm job]

    What stands out comes first. Hosts of a run are not logged in to: the run tells what they do. Ctrl-C quits.
    """
    names_hosts = any(map(is_on_command_line, NAME_HOSTS))
    if run is not None and names_hosts:
        raise UsageError("a run and hosts are both given", "name only one of them")
    found = None
    if not names_hosts:
        found = find_run(run) if run is not None else find_active_run(None, None)
    if found is not None and is_on_command_line("ssh_config"):
        raise UsageError("--ssh-config works only for hosts", "name them with --hosts, or omit --ssh-config")
    once = once or not (request.as_json or (sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")))
    screen = Screen(f"run {found.id}" + (f" ({found.name})" if found.name else "") if found is not None else "")
    show = _print_samples() if request.as_json else screen.show if not once else _print_table(screen.title)
    with screen.shown() if not once and not request.as_json else contextlib.nullcontext():
        try:
            code = _watch_run(found, show, once=once) if found is not None else _watch_hosts(request, show, once=once)
        except KeyboardInterrupt:
            code = EXIT_SIGNAL_BASE + signal.SIGINT
    if found is not None and not once and code == 0:
        tell(f"launch: run {found.id} has ended")
    return code


def _watch_run(found: ListedRun | RemoteRun, show: Show, *, once: bool) -> int:
    found_now = watch_run(found) if isinstance(found, ListedRun) else map(parse_now, read_samples(found))
    has_shown = False
    for now in filter(None, found_now):
        show(now)
        has_shown = has_shown or bool(now.hosts)
        if once:
            return 0 if has_shown else 1
    if not has_shown:
        raise UsageError(f"run {found.id} has ended", "see launch report, or name hosts: launch top --hosts LIST")
    return 0


def _watch_hosts(request: Request, show: Show, *, once: bool) -> int:
    from launcher.cli.host_session import act_on_hosts

    request = replace(request, as_json=False)  # the console prints nothing but messages
    return act_on_hosts("top", request, lambda session, _: watch_hosts(session, show, once=once))


def _print_table(title: str) -> Show:
    def show(now: RunNow) -> None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
        heading = ", ".join(filter(None, [title, now.doing or describe_size(now)]))
        for line in draw(now, width, None, heading):
            click.echo(line.text)

    return show


def _print_samples() -> Show:
    last: dict[str, float] = {}

    def show(now: RunNow) -> None:
        lines, newest = as_lines(now, last)
        last.update(newest)
        for line in lines:
            click.echo(line)

    return show


class Screen:
    """The screen of `launch top`."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._live: Any = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Use the whole terminal while the block runs."""
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False, markup=False, emoji=False)
        with (
            _signals_end_it(),
            _stderr_later(),
            Live(screen=True, auto_refresh=False, console=console) as live,
        ):
            self._live = live
            self.show(None)
            yield

    def show(self, now: RunNow | None) -> None:
        """Show what all hosts do; None: not known yet."""
        from rich.text import Text

        columns, rows = self._live.console.size
        lines: list[Line] = []
        if now is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(now.at))
            title = ", ".join(filter(None, [self.title, now.doing or describe_size(now), clock]))
            lines = draw(now, columns, rows - _LINES_BELOW, title)
        texts = [Text(line.text, style=_STYLES.get(line.style.name, "")) for line in lines]
        texts += [Text("waiting for the hosts")] if not lines else []
        texts += [Text("")] * (rows - _LINES_BELOW - len(texts))
        texts.append(Text("Ctrl-C quits"[:columns], style="reverse"))
        self._live.update(Text("\n", no_wrap=True, overflow="crop").join(texts), refresh=True)


_STYLES = {"STRONG": "bold", "FAILURE": "bold red"}


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """Let signals end the block, so that the terminal is restored; Ctrl-Z would leave it as it is, and is ignored."""

    def end(number: int, _: object) -> None:
        raise SystemExit(EXIT_SIGNAL_BASE + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _stderr_later() -> Iterator[None]:
    """Keep what is written to stderr while the block runs, and write it afterwards: it would be lost on the screen."""
    if not os.isatty(STDERR):
        yield
        return
    with tempfile.TemporaryFile() as kept:
        terminal = os.dup(STDERR)
        os.dup2(kept.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(terminal, STDERR)
            os.close(terminal)
            kept.seek(0)
            os.write(STDERR, kept.read())


class HostWatch:
    """Takes what the hosts of a session tell, with whoever uses their GPUs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        names = [host.name for host in session.hosts]
        self._names = names
        self._now: dict[str, HostNow] = {name: HostNow(0.0) for name in names}
        self._counts = dict.fromkeys(names, 0)
        self._uses: dict[str, list[GpuUse]] = {}
        self._since = {name: Samples() for name in names}
        self._odd = OddWatch({}, {})
        self._compared_at = time.monotonic()

    @property
    def has_all(self) -> bool:
        """Whether each host has told enough for rates, or can't be asked."""
        return all(
            count >= 2 or state.failure is not None
            for count, state in zip(self._counts.values(), self._session.states, strict=True)
        )

    def take(self, event: Event) -> None:
        """Take what one host tells."""
        name, fields = self._names[event.index], event.fields
        chosen = self._session.hosts[event.index].gpus
        gpus = tuple(gpu for gpu in fields["gpus"] if chosen is None or gpu.index in chosen)
        self._since[name].add(fields["host"], gpus, fields["error"])
        self._counts[name] += 1
        if fields["processes"] is not None:
            self._uses[name] = fields["processes"]
        self._now[name] = self._now[name].after(event, gpus)

    def find(self) -> RunNow:
        """Return what all hosts do now."""
        at = wall_clock()
        if time.monotonic() - self._compared_at >= INTERVAL_S:
            self._compared_at = time.monotonic()
            self._odd.take({name: summed for name, each in self._since.items() if (summed := each.sum_up())})
            self._since = {name: Samples() for name in self._names}
        hosts = {}
        for name, state in zip(self._names, self._session.states, strict=True):
            lost = state.failure.text if state.failure is not None else None
            claims = tuple(state.claimed["rivals"]) if state.claimed is not None else ()
            users = find_users(state.facts, claims, self._uses.get(name, ()))
            hosts[name] = replace(self._now[name], lost=lost, users=users)
        return RunNow(at, hosts, tuple(odd.describe() for odd in self._odd.current))


def find_users(facts: NodeFacts | None, claims: Sequence[BoxClaim], uses: Sequence[GpuUse]) -> dict[str, str]:
    """Return who uses each GPU, by its number: the run that has claimed it, else a process and its user."""
    users: dict[str, list[str]] = {}
    for claim in claims:
        for index in claim.gpus if not claim.is_waiting else ():
            users.setdefault(str(index), []).append(f"{claim.user}'s {claim.name or claim.run or 'unresponsive run'}")
    indexes = {gpu.uuid: str(gpu.index) for gpu in facts.gpus} if facts is not None else {}
    claimed = {*users}
    for use in uses:
        place = indexes.get(use.gpu)
        if place is not None and place not in claimed:
            name = use.name or f"process {use.pid}"
            users.setdefault(place, []).append(f"{name} ({use.owner})" if use.owner else name)
    return {index: ", ".join(dict.fromkeys(names)) for index, names in users.items()}


async def watch_hosts(session: Session, show: Show, *, once: bool) -> int:
    """Show what the hosts do until a signal comes, or once; return the exit code: not 0 if a host can't be reached."""
    from launcher.cli.free import look

    watch = HostWatch(session)
    period_s = 1.0 if once else PERIOD_S
    async with session.asking():
        await look(session)
        session.send_to_all(messages.SAMPLE, period_s=period_s)
        claims_at = time.monotonic()
        while not (once and watch.has_all):
            await session.pump(lambda: False, time.monotonic() + (_LOOK_S if once else period_s))
            for event in session.take_samples():
                watch.take(event)
            if not once:
                show(watch.find())
            if time.monotonic() - claims_at >= _CLAIMS_S:
                claims_at = time.monotonic()
                session.send_to_all(messages.CLAIM, is_look=True, gpus=[])
            if all(state.failure is not None for state in session.states):
                if not once:
                    session.say_failures()  # the screen, which has them, goes now
                break
    if once:
        show(watch.find())
    return EXIT_UNREACHABLE if any(state.failure is not None for state in session.states) else 0


def watch_run(run: ListedRun) -> Iterator[RunNow]:
    """Yield what the hosts of a run do, whenever its samples have something new, until it ends; else what it does."""
    path, hosts, odd = run.folder / SAMPLES, dict[str, HostNow](), dict[str, list[str]]()
    position, told = -1, ""
    began_at = wall_clock()
    while is_running(run):
        lines, position = _read_on(path, position)
        for name, host, texts in filter(None, map(_read_line, lines)):
            hosts[name], odd[name] = host, texts
        heard_at = max((host.at for host in hosts.values()), default=0.0)
        recent = {name: host for name, host in hosts.items() if host.at > heard_at - _SILENT_S}
        now = wall_clock()
        if now - heard_at < _SILENT_S:
            if lines:
                yield RunNow(now, recent, tuple(text for name in recent for text in odd[name]))
            told = ""
        elif (doing := _describe_silence(run, now - max(began_at, heard_at))) != told:
            told = doing
            if doing:
                yield RunNow(now, doing=doing)
        time.sleep(_LOOK_S)


def _describe_silence(run: ListedRun, seconds: float) -> str:
    """Return why the hosts of a run have told nothing for these seconds; empty if they soon may."""
    doing = run.read_doing(time.time())
    if seconds < _SILENT_S and (doing is None or doing.what in (Activity.STARTING, Activity.RUNNING)):
        return ""
    is_at_work = doing is None or doing.what is Activity.RUNNING
    return "no samples (a full disk)" if is_at_work else str(doing)


def _read_on(path: Path, position: int) -> tuple[list[bytes], int]:
    """Return the whole lines from a position on, of a negative one those at the end, and where they end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(position if position >= 0 else max(0, size - _TAIL_BYTES))
            *lines, rest = file.read(size).split(b"\n")
            return lines, file.tell() - len(rest)
    except OSError:  # no interval is over yet
        return [], 0


def _read_line(line: bytes) -> tuple[str, HostNow, list[str]] | None:
    """Return which host a line is about, what that did, and what stood out there; None for any other line."""
    gpus: list[GpuSample] = []
    ranks: dict[str, int] = {}
    try:
        found = json.loads(line)
        for index, row in found["gpus"].items():
            busy, used, power, temperature, clock, reasons, rank, memory, limit, top = row
            name = found["model"]
            gpus.append(GpuSample(int(index), name, busy, used, memory, power, limit, temperature, clock, top, reasons))
            ranks |= {index: rank} if rank is not None else {}
        cpu, load, free, network = (found[name] for name in ("cpu", "load", "disk_free", "network"))
        memory, used = (found[name] and int(found[name] * 1024) for name in ("memory_gib", "memory_used_gib"))
        host = HostSample(cpu, load, memory, used, None, free, network)
        now = HostNow(found["at"], host, tuple(gpus), found.get("error"), ranks=ranks)
        return found["host"], now, found.get("odd", [])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # it is about something that stands out, or of an earlier version


def print_now(run: ListedRun) -> int:
    """Print what the hosts of a run do, a JSON line each time, until it ends or nobody reads any more."""
    for now in watch_run(run):
        print(now_as_text(now), flush=True)
    return 0


def as_lines(now: RunNow, last: Mapping[str, float]) -> tuple[list[str], dict[str, float]]:
    """Return a line of JSON for each host that has told something new, and when each has; last: when it had before."""
    lines = []
    for name, host in now.hosts.items():
        if host.at != last.get(name) or host.lost is not None:
            values = {
                "event": "sample", "time": iso_time(host.at) if host.at else None,
                "host": name, "lost": host.lost, "error": host.error,
                "odd": [text for text in now.odd if text.startswith((f"{name} ", f"{name}:"))],
                **asdict(host.host or HostSample()),
                "gpus": [asdict(gpu) | _used(host, gpu.index) for gpu in host.gpus],
            }  # fmt: skip
            lines.append(json.dumps(values))
    return lines, {name: host.at for name, host in now.hosts.items()}


def _used(host: HostNow, gpu: int) -> dict[str, object]:
    return {"rank": host.ranks.get(str(gpu)), "user": host.users.get(str(gpu))}
