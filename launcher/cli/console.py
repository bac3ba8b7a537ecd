"""What the user sees: our own words on stderr, the ranks' output on stdout and stderr, progress while connecting."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from launcher.clock import iso_time, wall_clock
from launcher.escapes import clean
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.output.display import Display, JsonDisplay, PrefixDisplay
from launcher.output.folding import group, make_folds
from launcher.output.lines import STDERR, STDOUT
from launcher.output.node_log import NodeLog, NodeOutput
from launcher.output.run_folder import RunRecord
from launcher.output.style import Style, render
from launcher.output.terminal import Terminal
from launcher.output.traceback_filter import Source, TracebackFilter


class Console:
    """The terminal, as one run uses it."""

    def __init__(
        self,
        hosts: Sequence[Host],
        *,
        is_folding: bool = False,
        is_patient: bool = False,
        is_quiet: bool = False,
        is_mute: bool = False,
        as_json: bool = False,
        ranks: Collection[int] | None = None,
    ) -> None:
        names = [host.name for host in hosts]
        self._displays = {fd: _make_display(fd, names, as_json=as_json) for fd in (STDOUT, STDERR)}
        self._terminals = _open_terminals(math.inf if is_patient else None)
        self._is_quiet = is_quiet or is_mute
        self._is_mute = is_mute  # one of several runs, of which our caller tells
        self._as_json = as_json
        self._ranks = ranks
        self._folds = make_folds(names) if is_folding else {}
        self._shows_progress = sys.stderr.isatty() and not is_mute
        self._progress = ""
        self._said_disk = False
        self._filter: TracebackFilter | None = None  # where there are logs that have what it keeps off the screen

    def say(self, text: str, style: Style = Style.AS_IS) -> None:
        """Print a message of `launch` on stderr."""
        if self._is_mute:
            return
        self.progress("")
        with contextlib.suppress(OSError):  # it is no terminal, or none any more
            columns = os.get_terminal_size(STDERR).columns
            text = render(text, style, columns, with_colour=_wants_colour(STDERR))
        self._terminals[STDERR].say(text, STDERR)

    def show(self, text: str) -> None:
        """Put a result of ours on stdout; with --json it is there as an object."""
        self.progress("")
        if self._as_json:
            return
        self._terminals[STDOUT].say(text, STDOUT)

    def emit(self, event: str, **values: object) -> None:
        """With --json: put one object on stdout."""
        if self._as_json:
            self._terminals[STDOUT].say(json.dumps(dated(event, **values), default=str), STDOUT)

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces; on a terminal only."""
        if not self._shows_progress or text == self._progress:
            return
        self._progress = text
        self._terminals[STDERR].put(STDERR, b"\r\x1b[K" + text.encode())

    def show_folded(self) -> None:
        """Show equal output of several hosts once."""
        groups = group(self._folds)
        for each in groups:
            shown = clean(each.text) if os.isatty(STDOUT) else each.text
            self._terminals[STDOUT].put(STDOUT, f"---- {fold_names(each.hosts)} ----\n".encode() + shown)
        cut = [host for each in groups if each.left_out for host in each.hosts]
        if cut:
            self.say(f"launch: {fold_names(cut)} printed too much for --fold, lines in the middle were left out")
            self.say("  fix: run the command without --fold, which shows every line")

    def outputs(
        self, hosts: Sequence[Host], record: RunRecord | None, *, has_ranks: bool = True, first_node: int = 0
    ) -> list[NodeOutput]:
        """Return where each node's output goes."""
        show = None if self._is_quiet else self._show
        if show is not None and record is not None and not self._as_json:
            self._filter = TracebackFilter(show)
            show = self._filter_output
        return [
            NodeOutput(
                host.name,
                NodeLog(record.log_path(index), record.complain) if record else None,
                show,
                has_ranks=has_ranks,
            )
            for index, host in enumerate(hosts, first_node)
        ]

    def withhold(self) -> None:
        """Keep the tracebacks of further ranks off the screen: the first failure is known."""
        if self._filter is not None and not self._said_disk:
            self._filter.withhold()

    def release(self, sources: Collection[Source] | None = None, alike: Collection[Source] = ()) -> frozenset[Source]:
        """Show what was kept off of these sources, or of all; return those whose tracebacks are in the logs alone.

        alike: sources with the same error; if it was shown of one of them, it is not shown again. If the logs can't be
        written they have nothing, so all is shown.
        """
        if self._filter is None:
            return frozenset()
        return self._filter.release(None if self._said_disk else sources, alike)

    def complain(self, path: Path, error: OSError) -> None:
        """Say once that our own disk is in trouble; the run goes on."""
        if not self._said_disk:
            self._said_disk = True
            text = f"can't write {path}: {error.strerror}; the run goes on, its logs will have gaps"
            self.say(f"launch: {text}", Style.STRONG)

    def close(self) -> None:
        """Write what is queued."""
        self.progress("")
        for terminal in set(self._terminals.values()):
            terminal.close()

    def _filter_output(self, host: str, rank: int | None, stream: int, lines: bytes, at: float) -> None:
        if self._filter is not None and self._is_shown(rank):  # or the one traceback that it lets through may be hidden
            self._filter.take(host, rank, stream, lines, at)

    def _is_shown(self, rank: int | None) -> bool:
        return self._ranks is None or rank is None or rank in self._ranks

    def _show(self, host: str, rank: int | None, stream: int, lines: bytes, at: float) -> None:
        if not self._is_shown(rank):
            return
        if self._folds:
            self._folds[host].add(lines)
            return
        self.progress("")
        # JSON names the stream, and a reader wants one order.
        fd = STDOUT if self._as_json else stream
        self._terminals[fd].put(fd, self._displays[fd].render(host, rank, stream, lines, at))


def dated(event: str, **values: object) -> dict[str, object]:
    """Return one object of --json, with the time at which it is made."""
    return {"event": event, "time": iso_time(wall_clock()), **values}


def _make_display(fd: int, names: Sequence[str], *, as_json: bool) -> Display:
    """Each stream by itself: stdout may be a file, whose bytes are a program's, and stderr a terminal."""
    if as_json:
        return JsonDisplay()
    return PrefixDisplay(names, is_terminal=os.isatty(fd), with_colour=_wants_colour(fd))


def _wants_colour(fd: int) -> bool:
    """Whether a stream is a terminal whose user has not asked for plain text (https://no-color.org)."""
    return os.isatty(fd) and not os.environ.get("NO_COLOR")


def _open_terminals(patience_s: float | None) -> dict[int, Terminal]:
    """One thread for stdout and stderr where they are the same file, which keeps their order; else one each.

    So a pager that is not read holds back its own stream alone, and the cause is told on the other one.
    """
    shared = Terminal(is_terminal=os.isatty(STDOUT), patience_s=patience_s)
    if os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR)):
        return {STDOUT: shared, STDERR: shared}
    return {STDOUT: shared, STDERR: Terminal(is_terminal=os.isatty(STDERR), patience_s=patience_s)}
