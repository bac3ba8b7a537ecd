"""The wire format between the launcher and a supervisor.

A message is one line of JSON; where it has a `size`, that many raw bytes follow the line.
So output travels as it is, in chunks, and one flipped bit is found at the next header.
"""

import json

VERSION = 1
MAX_HEADER_BYTES = 4 << 20
MAX_PAYLOAD_BYTES = 64 << 20

# launcher -> node
PREPARE = "prepare"
ROUTE = "route"
START = "start"
STOP = "stop"
BEAT = "beat"  # both ways: "I am alive"

# node -> launcher
HELLO = "hello"
FACTS = "facts"
ROUTED = "routed"
STARTED = "started"
OUTPUT = "output"
EXIT = "exit"
ENDED = "ended"
CENSUS = "census"
FAILED = "failed"


class MalformedMessage(ValueError):
    """The other side sent what is no message."""


def encode(kind, payload=b"", **fields):
    """Return one message as bytes; `fields` must be JSON values."""
    header = {"type": kind}
    header.update(fields)
    if payload:
        header["size"] = len(payload)
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + payload


class Decoder:
    """Cuts a byte stream, fed in any pieces, into messages."""

    def __init__(self):
        self._buffer = bytearray()
        self._header = None
        self._size = 0

    def feed(self, data):
        """Return the messages that `data` completes, as pairs of header (dict) and payload (bytes)."""
        self._buffer += data
        messages = []
        while True:
            if self._header is None and not self._read_header():
                return messages
            if len(self._buffer) < self._size:
                return messages
            payload = bytes(self._buffer[: self._size])
            del self._buffer[: self._size]
            messages.append((self._header, payload))
            self._header = None

    def _read_header(self):
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > MAX_HEADER_BYTES:
                raise MalformedMessage("a header line of over %d bytes" % MAX_HEADER_BYTES)
            return False
        line = bytes(self._buffer[:end])
        try:
            header = json.loads(line.decode())
        except (ValueError, RecursionError):
            raise MalformedMessage("no JSON: %r" % line[:80]) from None
        if not isinstance(header, dict) or not isinstance(header.get("type"), str):
            raise MalformedMessage("no message: %r" % line[:80])
        size = header.get("size", 0)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise MalformedMessage("no size: %r" % (size,))
        del self._buffer[: end + 1]
        self._header, self._size = header, size
        return True
