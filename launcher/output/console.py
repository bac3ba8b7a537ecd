"""What the user sees: messages of `launch` on stderr, output on stdout and stderr, progress while connecting."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from launcher.clock import iso_time, wall_clock
from launcher.escapes import clean
from launcher.hosts.host import Host
from launcher.hosts.ranges import fold_names
from launcher.output.display import PrefixDisplay, json_lines
from launcher.output.lines import STDERR, STDOUT, BarTurn
from launcher.output.log_writer import Transcript
from launcher.output.node_output import NodeOutput
from launcher.output.output_streams import OutputStreams, Style, paint
from launcher.output.run_folder import RunRecord
from launcher.output.terminal import Terminal
from launcher.output.traceback_filter import Source, TracebackFilter
from launcher.output.write_queue import StalledError

MOST_FOLDED_BYTES = 64 << 20  # of all hosts together


class Folds:
    """The output of each host, to show equal output of several hosts once; what is too much is left out."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._share = MOST_FOLDED_BYTES // max(1, len(hosts))
        self._texts = {host: bytearray() for host in hosts}
        self.cut: list[str] = []  # the hosts of which the last lines are missing

    def add(self, host: str, lines: bytes) -> None:
        """Add whole lines."""
        text = self._texts[host]
        if host in self.cut:
            return
        if len(text) + len(lines) > self._share:
            self.cut.append(host)
            lines = lines[: lines.rfind(b"\n", 0, self._share - len(text)) + 1]
        text += lines

    def group(self) -> list[tuple[list[str], bytes]]:
        """Return which hosts printed what; one that was cut is alone, as its further lines aren't known."""
        alike: dict[tuple[bytes, str], list[str]] = {}
        for host, text in self._texts.items():
            if text:
                alike.setdefault((bytes(text), host if host in self.cut else ""), []).append(host)
        return [(hosts, text) for (text, _), hosts in alike.items()]


class Console:
    """The terminal as one run uses it: messages, output and progress."""

    def __init__(
        self,
        hosts: Sequence[Host],
        streams: OutputStreams | None,
        *,
        is_folding: bool = False,
        is_patient: bool = False,
        is_quiet: bool = False,
        as_json: bool = False,
        ranks: Collection[int] | None = None,
    ) -> None:
        """streams: None: for one of many runs, of which nothing is shown; the logs are kept."""
        names = [host.name for host in hosts]
        self._streams = streams or OutputStreams(frozenset(), is_one_file=False, with_color=False)
        self._display = PrefixDisplay(names, self._streams)
        self._terminals = _open_terminals(streams, math.inf if is_patient else None) if streams is not None else {}
        self._is_quiet = is_quiet or streams is None
        self._as_json = as_json
        self._ranks = ranks
        self._folds = Folds(names) if is_folding else None
        self._shows_progress = STDERR in self._streams.terminals
        self._progress = ""
        self._said_disk = False
        self._transcript: Transcript | None = None
        self._is_detached = streams is None
        self._filter: TracebackFilter | None = None  # only with logs, which keep what it hides

    def say(self, text: str, style: Style = Style.TEXT) -> None:
        """Print a message of `launch` on stderr."""
        if self._transcript is not None:
            self._transcript.add(text)
        if self._is_detached:
            return
        self.progress("")
        if self._streams.has_color(STDERR):
            text = paint(text, style)
        self._terminals[STDERR].say(text, STDERR)

    def show(self, text: str) -> None:
        """Print a result on stdout; nothing with --json, which prints it as an object."""
        self.progress("")
        if not self._as_json and not self._is_detached:
            self._terminals[STDOUT].say(text, STDOUT)

    def emit(self, event: str, **values: object) -> None:
        """Print one object on stdout, if --json was given."""
        if self._as_json and not self._is_detached:
            self._terminals[STDOUT].say(json.dumps(dated(event, **values), default=str), STDOUT)

    def end_with_reader(self, end: Callable[[], object]) -> None:
        """Call `end`, in another thread, once the reader of stdout or stderr is gone, as with `| head`."""
        for terminal in self._terminals.values():
            terminal.on_gone = end

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces, on a terminal only."""
        if not self._shows_progress or text == self._progress:
            return
        self._progress = text
        self._terminals[STDERR].put(STDERR, b"\r\x1b[K" + text.encode())

    def show_folded(self) -> None:
        """Show identical output of several hosts once."""
        if self._folds is None:
            return
        for hosts, text in self._folds.group():
            shown = clean(text) if STDOUT in self._streams.terminals else text
            self._terminals[STDOUT].put(STDOUT, f"---- {fold_names(hosts)} ----\n".encode() + shown)
        if cut := self._folds.cut:
            self.say(f"launch: {fold_names(cut)} printed too much for --fold; its last lines were omitted")
            self.say("  fix: run the command without --fold to see every line")

    def outputs(
        self, hosts: Sequence[Host], record: RunRecord | None, *, has_ranks: bool = True, first_node: int = 0
    ) -> list[NodeOutput]:
        """Return the destination of each node's output."""
        show = None if self._is_quiet else self._show
        if show is not None and record is not None and not self._as_json:
            self._filter = TracebackFilter(show)
            show = self._filter_output
        bars = BarTurn(self._is_shown) if has_ranks and not self._as_json else None
        return [
            NodeOutput(host.name, record.open_log(index) if record else None, show, has_ranks=has_ranks, bars=bars)
            for index, host in enumerate(hosts, first_node)
        ]

    def withhold(self) -> None:
        """Hide the tracebacks of further ranks from the screen, since the first failure is known."""
        if self._filter is not None and not self._said_disk:
            self._filter.withhold()

    def release(
        self, sources: Collection[Source] | None = None, alike: Collection[Source] = (), *, ended_well: bool = False
    ) -> frozenset[Source]:
        """Show what was hidden, as a TracebackFilter does; all of it if the logs can't be written."""
        if self._filter is None:
            return frozenset()
        return self._filter.release(None if self._said_disk else sources, alike, ended_well=ended_well)

    def complain(self, path: Path, error: OSError) -> None:
        """Report once that the launch host's disk fails, and each time that it does not respond; the run continues."""
        if isinstance(error, StalledError):
            text = f"the disk of {path} does not respond; the run continues, and what is to be written waits in memory"
            self.say(f"launch: {text}", Style.STRONG)
        elif not self._said_disk:
            self._said_disk = True
            text = f"can't write {path}: {error.strerror}; the run continues, but its logs will have gaps"
            self.say(f"launch: {text}", Style.STRONG)

    def transcribe(self, transcript: Transcript) -> None:
        """Keep all messages of `launch` from now on."""
        self._transcript = transcript

    def detach(self) -> None:
        """Write what is queued, and use the terminal no more: what follows is in the logs only."""
        self.progress("")
        self._is_detached = True
        self._shows_progress = False
        self.close()

    def close(self) -> None:
        """Write what is queued."""
        self.progress("")
        for terminal in set(self._terminals.values()):
            terminal.close()

    def _filter_output(self, host: str, rank: int | None, stream: int, lines: bytes, at: float) -> None:
        if self._filter is not None and self._is_shown(rank):  # otherwise the one traceback shown may be hidden
            self._filter.take(host, rank, stream, lines, at)

    def _is_shown(self, rank: int | None) -> bool:
        return self._ranks is None or rank is None or rank in self._ranks

    def _show(self, host: str, rank: int | None, stream: int, lines: bytes, at: float) -> None:
        if self._is_detached or not self._is_shown(rank):
            return
        if self._folds is not None:
            self._folds.add(host, lines)
            return
        self.progress("")
        if self._as_json:  # the object names the stream, and a reader needs all lines in one order
            self._terminals[STDOUT].put(STDOUT, json_lines(iso_time(at), host, rank, stream, lines))
        else:
            self._terminals[stream].put(stream, self._display.render(host, rank, stream, lines))


def dated(event: str, **values: object) -> dict[str, object]:
    """Return one object of --json, with the current time."""
    return {"event": event, "time": iso_time(wall_clock()), **values}


def _open_terminals(streams: OutputStreams, patience_s: float | None) -> dict[int, Terminal]:
    """Return one thread for stdout and stderr if they are the same file, to keep their order; otherwise one for each.

    So a pager that isn't read blocks only its own stream, and the other one reports it.
    """
    shared = Terminal(is_terminal=STDOUT in streams.terminals, patience_s=patience_s)
    if streams.is_one_file:
        return {STDOUT: shared, STDERR: shared}
    return {STDOUT: shared, STDERR: Terminal(is_terminal=STDERR in streams.terminals, patience_s=patience_s)}
