"""Failures and last lines -> the cause, in words. Pure.

The first failure by time is not always the cause: a rank that raises takes a second to tear down, while its peers
already died of the closed connection. So the class of failure goes first, then time.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import EXIT_FAILED, EXIT_SIGNAL_BASE, EXIT_UNREACHABLE

LAST_LINES = 10
SETTLE_S = 2.0  # how long a failure that looks like a consequence waits for its cause to show up

# What the healthy ranks say when another one died.
_SECONDARY = re.compile(
    r"Connection (closed|reset) by (remote )?peer"
    r"|store->get\(.*got error|possible application crash on rank 0"
    r"|Watchdog caught collective operation timeout"
    r"|Connection refused|Broken pipe|Socket Timeout"
    r"|DistBackendError|DistNetworkError|DistStoreError"
    r"|recvValue failed|sendBytes failed|failed to recv|Application timeout caused pair closure"
)
_TRACEBACK = "Traceback (most recent call last):"
# Also of a data loader's worker, and of an exception group.
_STARTS = (_TRACEBACK, f"Original {_TRACEBACK}", f"Exception Group {_TRACEBACK}")
_GROUP_BORDER = re.compile(r"^  [+|] ")
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line \d+, in ')
_FOREIGN = ("site-packages/", "dist-packages/", "<frozen ", "/lib/python3")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_MAX_LINE = 300
# torch prints every line of an exception twice where torch.distributed is initialised: plain and with `[rank0]:`.
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that ended in a way it should not have."""

    host: str
    node_rank: int
    what: str  # "rank", "torchrun", "supervisor", "connection"
    at: float  # wall-clock seconds of the launcher
    rank: int | None = None
    local_rank: int | None = None
    code: int | None = None
    signal: int | None = None
    text: str = ""  # where there is no process: why
    stdout: str = ""  # the last of it
    stderr: str = ""
    after_stop: bool = False  # it ended after we had asked it to
    gpu: int | None = None

    @property
    def exit_code(self) -> int:
        """The launcher's exit code for this failure."""
        if self.what == "connection":
            return EXIT_UNREACHABLE
        if self.signal is not None:
            return EXIT_SIGNAL_BASE + self.signal
        return self.code or EXIT_FAILED

    @property
    def is_secondary(self) -> bool:
        """Whether it looks like the consequence of another failure."""
        if self.after_stop or self.signal == signal.SIGTERM:
            return True
        if self.what == "connection":
            return False
        error = extract_traceback(self.stderr)[-1:] or self.stderr.splitlines()[-3:]
        return any(_SECONDARY.search(line) for line in error)

    @property
    def subject(self) -> str:
        """Who failed, in a few words."""
        if self.what == "rank":
            return f"{self.host} rank {self.rank}"
        return f"{self.host} {self.what}"

    @property
    def headline(self) -> str:
        """Who failed first and how, in one line."""
        if self.what == "connection":
            return f"lost {self.host} ({self.ending})"
        return f"{self.subject} failed first ({self.ending})"

    @property
    def ending(self) -> str:
        """How it ended, in a few words."""
        if self.text:
            return self.text
        if self.signal is not None:
            return f"killed by {signal_name(self.signal)}"
        if self.code is None:
            return "exit code unknown"
        return f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Cause:
    """The first failure and what belongs to it."""

    failure: Failure
    traceback: tuple[str, ...]
    last_lines: tuple[str, ...]


def find_cause(failures: Sequence[Failure]) -> Cause | None:
    """Return the cause of a failed run, or None where nothing failed."""
    if not failures:
        return None
    first = min(failures, key=lambda failure: (failure.is_secondary, failure.at))
    stdout, stderr = first.stdout.splitlines(), first.stderr.splitlines()
    found: list[str] = []
    if first.signal != signal.SIGKILL:  # no exception ends in it: a traceback before it was handled
        found = extract_traceback(first.stderr)
        start, end = _find_last_group(stderr)
        stderr = stderr[:start] + stderr[end:]
    lines = [line for line in stderr if line.strip()][-LAST_LINES // 2 :]
    lines += [line for line in stdout if line.strip()][-LAST_LINES // 2 :]
    last_lines = tuple(line.rstrip()[-_MAX_LINE:] for line in lines)
    return Cause(first, tuple(shorten_traceback(found)), last_lines)


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def extract_traceback(stderr: str) -> list[str]:
    """Return the last Python traceback of a stream, with its error line, or an empty list."""
    blocks = _find_blocks(stderr.splitlines())
    return list(blocks[-1].lines) if blocks else []


@dataclass(frozen=True, slots=True)
class _Block:
    """A traceback: where it stands, and its lines without prefixes."""

    start: int
    end: int
    lines: tuple[str, ...]


def _find_blocks(lines: Sequence[str]) -> list[_Block]:
    plain = [_GROUP_BORDER.sub("", _RANK_PREFIX.sub("", line)) for line in lines]
    blocks: list[_Block] = []
    for start, line in enumerate(plain):
        if line.strip() not in _STARTS or (blocks and start < blocks[-1].end):
            continue
        # The error itself is the first line at the margin.
        ends = (place + 1 for place in range(start + 1, len(plain)) if plain[place] and plain[place][0] != " ")
        end = next(ends, len(plain))
        blocks.append(_Block(start, end, (_TRACEBACK, *plain[start + 1 : end])))
    return blocks


def _find_last_group(lines: Sequence[str]) -> tuple[int, int]:
    """Return where the last tracebacks that belong together begin and end: chained, or torch's plain and `[rank0]:`."""
    blocks = _find_blocks(lines)
    if not blocks:
        return len(lines), len(lines)
    first = last = blocks[-1]
    for block in reversed(blocks[:-1]):
        between = [_RANK_PREFIX.sub("", line).strip() for line in lines[block.end : first.start]]
        is_chained = all(not line or line.startswith(_CHAINED) for line in between)
        if not is_chained and block.lines[-1] != first.lines[-1]:
            break
        first = block
    return first.start, last.end


def shorten_traceback(lines: Sequence[str]) -> list[str]:
    """Return the user's innermost frame and the error, as one reads them first."""
    if not lines:
        return []
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    own = [index for index in frames if not any(part in lines[index] for part in _FOREIGN)] or frames
    short = []
    if own:
        following = [index for index in frames if index > own[-1]] or [len(lines) - 1]
        short = [line for line in lines[own[-1] : following[0]] if not re.fullmatch(r"\s*[\^~]+\s*", line)]
    return [line[2:] if line.startswith("  ") else line for line in [*short, lines[-1]]]
