"""What launcher and relays say to each other over srun or pdsh, in lines. Pure.

The words stand in launcher/node/relays/relay.py.
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from launcher.transports.base import STDERR, STDOUT

# srun sends every line to every node, so what is meant for many nodes (our code, above all) shall travel once: data is
# cut from its end, where hosts get the same, and a whole block that was sent to one host is named to the next.
BLOCK_BYTES = 4 << 10
KEPT_BLOCKS = 1024
MAX_LINE_BYTES = 64 << 10  # a relay's have 16 KiB at most; noise without a newline comes in pieces

_MAX_CODE = 255
_STREAMS = {b"out": STDOUT, b"err": STDERR}


@dataclass(frozen=True, slots=True)
class RelayStarted:
    """A relay has started."""

    task: int
    node: str
    pid: int
    started: int  # clock ticks since boot


@dataclass(frozen=True, slots=True)
class Output:
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
    """What no relay has said: a prolog, a login shell, or a line that was cut when its relay was killed."""

    text: bytes


Event = RelayStarted | Output | Exit | Noise


def open_line(channel: int, task: int, command: str) -> bytes:
    """Have the relay of a task start a process."""
    return b"open %d %d %s" % (channel, task, b2a_base64(command.encode("utf-8", "surrogateescape")))


def took_line(channel: int, size_bytes: int) -> bytes:
    """Let so much more output come."""
    return b"took %d %d\n" % (channel, size_bytes)


def shut_line(channel: int) -> bytes:
    """Close the pipes of a process."""
    return b"shut %d\n" % channel


def hang_line(task: int, lost: RelayStarted) -> bytes:
    """Have a relay tell the one of a lost step on its node that nobody listens."""
    return b"hang %d %d %d\n" % (task, lost.pid, lost.started)


class DataLines:
    """Cuts what goes to processes into lines; must see all of it, in the order in which it is sent."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}  # of the kept blocks, oldest first
        self._count = 0

    def encode(self, channel: int, data: bytes) -> Iterator[bytes]:
        """Yield the lines."""
        first = len(data) % BLOCK_BYTES
        for start in range(first - BLOCK_BYTES if first else 0, len(data), BLOCK_BYTES):
            block = data[max(0, start) : start + BLOCK_BYTES]
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
    """Takes apart what srun or pdsh prints: lines of all relays in any order, and noise."""

    def __init__(self, nonce: str) -> None:
        self._mark = b"~%s " % nonce.encode()
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Return what `data` completes; neighbouring pieces of one stream come as one."""
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
        return Output(int(channel), _STREAMS[verb], a2b_base64(content))
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
    """Merge neighbouring pieces: a chunk of srun's holds hundreds of lines."""
    first: Output | None = None
    pieces: list[bytes] = []
    for event in events:
        if isinstance(event, Output):
            if first is not None and (first.channel, first.stream) == (event.channel, event.stream):
                pieces.append(event.data)
                continue
            if first is not None:
                yield Output(first.channel, first.stream, b"".join(pieces))
            first, pieces = event, [event.data]
            continue
        if first is not None:
            yield Output(first.channel, first.stream, b"".join(pieces))
            first = None
        yield event
    if first is not None:
        yield Output(first.channel, first.stream, b"".join(pieces))
