"""The wire format between the launcher and a supervisor.

A message is one line of JSON; where it has a `size`, that many raw bytes follow the line.
So output travels as it is, in pieces, and damage to the stream shows at the next header.
"""

from __future__ import annotations

from launcher.node import fast_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Header = dict[str, Any]

MAX_HEADER_BYTES = 4 << 20  # of a node's; the launcher's may hold large arguments for many ranks
MAX_PAYLOAD_BYTES = 64 << 20
MAX_OUTPUT_BYTES = 1 << 18  # in one message
MAX_STACK_BYTES = 1 << 20  # of one rank's text
MAX_FILES_BYTES = 32 << 20  # that the ranks of a node may have copied to the launch host
MAX_FILES = 1000

# A candidate for a Python with torch: the one that the login shell finds.
LOGIN_SHELL = "login shell"
# The one of the environment that --venv or --conda names.
ENVIRONMENT = "environment"

# launcher -> node
PREPARE = "prepare"
ROUTE = "route"
PROBE = "probe"
ADOPT = "adopt"
START = "start"
STACKS = "stacks"  # asks for the Python stack of every rank that lives
STOP = "stop"
BEAT = "beat"  # both ways: "I am alive"

# node -> launcher
HELLO = "hello"
FACTS = "facts"
ROUTED = "routed"
PROBED = "probed"
STARTED = "started"
OUTPUT = "output"
EXIT = "exit"
ENDED = "ended"
STACK = "stack"  # of one rank; its text is the payload
CENSUS = "census"
FILE = "file"  # what a rank left in the folder that LAUNCH_FILES names, after the census
FAILED = "failed"


# Why a node has no GPUs that is known to be built without.
NO_GPU_TOOL = "neither nvidia-smi nor rocm-smi is there"
# Why a candidate for a Python with torch was not taken; a third reason is that it did not start.
NO_PROGRAM = "not found"
NO_TORCH = "no torch in it"
# Of a probe that came to nothing by itself.
NOT_TRIED = "could not be tried"
# Of a supervisor that somebody has told to end; the second as Slurm tells all when it ends a job.
GOT_SIGNAL = "its supervisor got signal %d"
TERMINATED = GOT_SIGNAL % 15
# On stderr, of a node whose lease ran out: so many seconds follow.
NO_WORD = "no word from the launcher for"


class MalformedMessage(ValueError):
    """Raised when the bytes that the other side sent are no message."""


def encode(kind: str, payload: bytes = b"", **fields: object) -> bytes:
    """Return one message as bytes; `fields` must be JSON values."""
    header: dict[str, object] = {"type": kind}
    header.update(fields)
    if payload:
        header["size"] = len(payload)
    return fast_json.dumps(header).encode() + b"\n" + payload


class Decoder:
    """Cuts a stream of bytes, which comes in any pieces, into messages."""

    def __init__(
        self, max_header_bytes: int = MAX_HEADER_BYTES, accept: Callable[[Header], Header] = lambda header: header
    ) -> None:
        """accept: gets each header before its payload is waited for; returns the header to keep, or raises."""
        self._max_header_bytes = max_header_bytes
        self._accept = accept
        self._buffer = bytearray()
        self._searched = 0  # bytes of it, that hold no end of a header
        self._header: dict[str, Any] | None = None
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the messages that `data` completes, as pairs of header (dict) and payload (bytes)."""
        self._buffer += data
        messages: list[tuple[dict[str, Any], bytes]] = []
        while True:
            if self._header is None:
                self._header = self._read_header()
            if self._header is None or len(self._buffer) < self._size:
                return messages
            payload = bytes(self._buffer[: self._size])
            del self._buffer[: self._size]
            messages.append((self._header, payload))
            self._header = None

    def _read_header(self) -> dict[str, Any] | None:
        """Take the next header line, once all of it is there."""
        end = self._buffer.find(b"\n", self._searched)
        self._searched = len(self._buffer) if end < 0 else 0
        if (len(self._buffer) if end < 0 else end) > self._max_header_bytes:
            raise MalformedMessage("a header line of over %d bytes" % self._max_header_bytes)
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        try:
            header = fast_json.loads(line.decode())
        except (ValueError, RecursionError):
            raise MalformedMessage("no JSON: %r" % line[:80]) from None
        if not isinstance(header, dict) or not isinstance(header.get("type"), str):
            raise MalformedMessage("no message: %r" % line[:80])
        size = header.get("size", 0)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise MalformedMessage("no size: %r" % (size,))
        del self._buffer[: end + 1]
        self._size = size
        return self._accept(header)
