"""launch top: what the GPUs of all hosts do now."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.error_lines import tell
from launcher.cli.find_run import find_active_run, find_run, take_samples
from launcher.cli.options.help import Command
from launcher.cli.options.launcher_toml import CONFIG
from launcher.cli.options.request import AS_JSON, HELPER_PYTHON, HOSTS, LIFE, NAME_HOSTS, REACH, RUN, Option, Request
from launcher.cli.options.sources import gather, is_on_command_line
from launcher.errors import EXIT_SIGNAL_BASE, UsageError
from launcher.output.lines import STDERR

if TYPE_CHECKING:
    from launcher.commands.top import Show
    from launcher.commands.top_screen import RunNow
    from launcher.output.console import Console
    from launcher.output.output_streams import Line
    from launcher.runs.run_list import ListedRun, RemoteRun
    from launcher.session.session import Session

_LINES_BELOW = 1  # the table


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
    from launcher.commands.top import watch_run
    from launcher.commands.top_screen import parse_now
    from launcher.runs.run_list import RemoteRun

    has_shown = False

    def take(now: RunNow | None) -> None:
        nonlocal has_shown
        if now is not None:
            has_shown = has_shown or bool(now.hosts)
            show(now)
            if once:
                raise _DoneError

    try:
        if isinstance(found, RemoteRun):
            take_samples(found, lambda line: take(parse_now(line)))
        else:
            for now in watch_run(found):
                take(now)
    except _DoneError:
        return 0 if has_shown else 1
    if not has_shown:
        raise UsageError(f"run {found.id} has ended", "see launch report, or name hosts: launch top --hosts LIST")
    return 0


class _DoneError(Exception):
    """Enough was shown."""


def _watch_hosts(request: Request, show: Show, *, once: bool) -> int:
    from launcher.cli.host_commands import act_on_hosts
    from launcher.commands.top import watch_hosts

    async def watch(session: Session, console: Console) -> int:
        return await watch_hosts(session, show=show, once=once)

    return act_on_hosts("top", replace(request, as_json=False), watch, lambda console, code: code)


def _print_table(title: str) -> Show:
    def show(now: RunNow) -> None:
        from launcher.commands.top_screen import describe_size, draw

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
        heading = ", ".join(filter(None, [title, now.doing or describe_size(now)]))
        for line in draw(now, width, None, heading):
            click.echo(line.text)

    return show


def _print_samples() -> Show:
    last: dict[str, float] = {}

    def show(now: RunNow) -> None:
        from launcher.commands.top import as_lines

        lines, newest = as_lines(now, last)
        last.update(newest)
        for line in lines:
            click.echo(line)

    return show


class Screen:
    """The screen of `launch top`."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._now: RunNow | None = None
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
            self._draw()
            yield

    def show(self, now: RunNow) -> None:
        """Show what all hosts do."""
        self._now = now
        self._draw()

    def _draw(self) -> None:
        from rich.text import Text

        from launcher.commands.top_screen import describe_size, draw

        columns, rows = self._live.console.size
        lines: list[Line] = []
        if self._now is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(self._now.at))
            title = ", ".join(filter(None, [self.title, self._now.doing or describe_size(self._now), clock]))
            lines = draw(self._now, columns, rows - _LINES_BELOW, title)
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
