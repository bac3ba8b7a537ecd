"""The lines that the launcher and the relays exchange over srun. Pure.

launcher/node/relays/relay.py, the other side, describes the format: a verb, a channel, and data in base64.
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from launcher.transports.base import STDERR, STDOUT

# srun sends every line to every node, so what several nodes get (the node's code, above all) is sent once: data is cut
# into blocks from its end, where it is equal for all nodes, and a block that was sent before is named by its number.
BLOCK_BYTES = 4 << 10
KEPT_BLOCKS = 1024
MAX_LINE_BYTES = 64 << 10  # a relay's have 16 KiB at most; other output without a newline is cut into pieces

_MAX_CODE = 255
_STREAMS = {b"out": STDOUT, b"err": STDERR}


@dataclass(frozen=True, slots=True)
class RelayStarted:
    """A relay has started; process id and start time distinguish it from an earlier one on its node."""

    task: int
    node: str
    pid: int
    started: int  # clock ticks since boot


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """A piece of a process's stdout or stderr."""

    channel: int
    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Exit:
    """A process has ended, and all its output has come."""

    channel: int
    code: int  # 128+n for a signal


@dataclass(frozen=True, slots=True)
class Noise:
    """Output that belongs to no process: a prolog's, a login shell's, or a line cut off when its relay was killed."""

    text: bytes


Event = RelayStarted | ProcessOutput | Exit | Noise


def open_line(channel: int, task: int, command: str) -> bytes:
    """Return the line that makes a task's relay start a process, whose streams get this channel number."""
    return b"open %d %d %s" % (channel, task, b2a_base64(command.encode("utf-8", "surrogateescape")))


def took_line(channel: int, size_bytes: int) -> bytes:
    """Return the line that tells the relay how much output was read, so that it may send more."""
    return b"took %d %d\n" % (channel, size_bytes)


def shut_line(channel: int) -> bytes:
    """Return the line that makes the relay close the pipes of a process."""
    return b"shut %d\n" % channel


def hang_line(task: int, lost: RelayStarted) -> bytes:
    """Return the line that makes a relay end an earlier step's on its node, which may not know its srun is gone."""
    return b"hang %d %d %d\n" % (task, lost.pid, lost.started)


def cut_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the blocks of the input of a process, cut from its end: there it is equal for all nodes."""
    first = len(data) % BLOCK_BYTES
    for start in range(first - BLOCK_BYTES if first else 0, len(data), BLOCK_BYTES):
        yield data[max(0, start) : start + BLOCK_BYTES]


class DataLines:
    """An encoder that cuts the input of processes into lines, and numbers the blocks that relays keep.

    The numbers are right only if one instance encodes all data of a step, and in the order in which it is sent.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}  # of the kept blocks, oldest first
        self._count = 0

    def encode(self, channel: int, data: bytes) -> Iterator[bytes]:
        """Yield the lines that carry `data` to a channel."""
        for block in cut_blocks(data):
            number = self._numbers.get(block)
            if number is not None:
                yield b"again %d %d\n" % (channel, number)
                continue
            if len(block) == BLOCK_BYTES:
                self._keep(block)
            yield b"data %d %s" % (channel, b2a_base64(block))

    def _keep(self, block: bytes) -> None:
        self._numbers[block] = self._count
        self._count += 1
        if len(self._numbers) > KEPT_BLOCKS:
            del self._numbers[next(iter(self._numbers))]


class LineDecoder:
    """A parser of what srun prints: lines of all relays in any order, with other output among them."""

    def __init__(self, nonce: str) -> None:
        self._mark = b"~%s " % nonce.encode()
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of the lines that `data` completes; adjacent pieces of one stream are joined."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return list(_join(event for line in lines for event in self._read(line)))

    def _read(self, line: bytes) -> Iterator[Event]:
        # A relay that was killed leaves half a line, and the next one's begins behind it: base64 has no tilde.
        start = line.rfind(self._mark)
        if start:
            yield Noise(line if start < 0 else line[:start])
        if start >= 0:
            try:
                yield _parse(line[start + len(self._mark) :])
            except (Error, ValueError, KeyError):
                yield Noise(line[start:])


def _parse(text: bytes) -> Event:
    verb, *words = text.split(b" ")
    if verb in _STREAMS:
        channel, content = words
        return ProcessOutput(int(channel), _STREAMS[verb], a2b_base64(content))
    if verb == b"exit":
        channel, code = words
        if not 0 <= int(code) <= _MAX_CODE:
            raise ValueError(code)
        return Exit(int(channel), int(code))
    if verb == b"here":
        task, node, pid, started = words
        return RelayStarted(int(task), node.decode(), int(pid), int(started))
    raise ValueError(verb)


def _join(events: Iterable[Event]) -> Iterator[Event]:
    """Join adjacent pieces of one stream: one read from srun returns hundreds of lines."""
    first: ProcessOutput | None = None
    pieces: list[bytes] = []
    for event in events:
        if isinstance(event, ProcessOutput):
            if first is not None and (first.channel, first.stream) == (event.channel, event.stream):
                pieces.append(event.data)
                continue
            if first is not None:
                yield ProcessOutput(first.channel, first.stream, b"".join(pieces))
            first, pieces = event, [event.data]
            continue
        if first is not None:
            yield ProcessOutput(first.channel, first.stream, b"".join(pieces))
            first = None
        yield event
    if first is not None:
        yield ProcessOutput(first.channel, first.stream, b"".join(pieces))
