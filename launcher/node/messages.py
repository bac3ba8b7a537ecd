"""The wire format between the launcher and a supervisor.

A message is one line of JSON; if it has a `size`, that many raw bytes follow the line.
So output is sent in pieces without escaping, and damage to the stream is detected at the next header.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict

Header = Dict[str, Any]


MAX_HEADER_BYTES = 4 << 20  # from a node; a header from the launcher may hold large arguments for many ranks
MAX_PAYLOAD_BYTES = 64 << 20
MAX_OUTPUT_BYTES = 1 << 18  # in one message
MAX_STACK_BYTES = 1 << 20  # for one rank
MAX_FILES_BYTES = 32 << 20  # in all the files that one node's ranks may have copied to the launch host
MAX_FILES = 1000
KEPT_OUT = (".git", "launcher.toml", "pyproject.toml")  # what git or `launch` would obey where a host's files are
PART = ".part"  # of the name that a file has while it is written on the launch host, after a "."
_MOST_NAME_BYTES = 255 - len(".%s" % PART)  # of which every file system takes 255
MAX_ADDRESSES = 4096  # of one node
MAX_CLAIMS = 256  # of one box, in one answer
MAX_SAMPLED_GPUS = 64  # of one host
BEATS_PER_SILENCE = 2.5  # heartbeats in the time after which the other side counts as dead: two may be lost

# A candidate for a Python with torch: the one that the login shell finds.
LOGIN_SHELL = "login shell"
# Another candidate: the one in the environment that --venv or --conda names.
ENVIRONMENT = "environment"

# launcher -> node
PREPARE = "prepare"
ROUTE = "route"
PROBE = "probe"
SHARE = "share"  # asks what tells whether a directory is the one that node 0 sees
LISTING = "listing"  # of the code of a run, compressed as its payload
PIECE = "piece"  # of the contents that a node wants
ADOPT = "adopt"
CLAIM = "claim"  # GPUs of this node for the run, or a place in the queue for them, or ask who has claimed them
WARM = "warm"  # import torch for the ranks of the START that will follow
START = "start"
STACKS = "stacks"  # asks for the Python stack of every running rank
LOOK = "look"  # asks whether the ranks have saved a checkpoint
SAMPLE = "sample"  # tell what the GPUs and the host do, again and again
STOP = "stop"
BEAT = "beat"  # both ways: a heartbeat

# node -> launcher
HELLO = "hello"
FACTS = "facts"
ROUTED = "routed"
PROBED = "probed"
SHARED = "shared"
WANTED = "wanted"  # what of the code is missing: its listing, or files, as one bit of the payload for each entry
PLACED = "placed"  # the code is in the run's directory
UNPLACED = "unplaced"  # it can't be
PRUNED = "pruned"  # the code of runs that have ended was removed
CLAIMED = "claimed"  # the answer to CLAIM: which claims are in its way; in the queue, whenever these change
COLD = "cold"  # why no Python that has imported torch starts the ranks
STARTED = "started"
OUTPUT = "output"
EXIT = "exit"
ENDED = "ended"
STACK = "stack"  # of one rank; its text is the payload
SEEN = "seen"  # the answer to LOOK
SAMPLED = "sampled"  # what they do now
CENSUS = "census"
FILE = "file"  # one file that a rank left in the directory that LAUNCH_FILES names; sent after the census
IDLE = "idle"  # all of that was sent, and the claim stays for the next attempt, or until another STOP
FAILED = "failed"

# Who starts an agent -> agent, on its stdin; and one answer, on its stdout.
PLANT = "plant"
DIALLED = "dialled"
REFUSED = "refused"
PRESENT = "present"  # another agent of the run is there

# controller -> agent
WELCOME = "welcome"
GONE = "gone"  # it isn't needed any more; final
GO = "go"
NOTIFY = "notify"  # a command, the payload, to run if the controller is gone; "": another agent does
OPEN = "open"
DATA = "data"
# Both ways: how many bytes of a channel were read, so that more may be sent. A supervisor says it of each PIECE.
TOOK = "took"
SHUT = "shut"
END = "end"

# agent -> controller, besides HELLO, EXIT and BEAT
OUT = "out"
ERR = "err"

MOST_WANTED = 4  # requests for code by one node: the listing, what it lacks, and twice what turned out to be damaged
MOST_NAMES = 20  # of files of the code, in one answer
AGENT_WINDOW_BYTES = 1 << 20  # of a channel's input, and of its output, that may be in transit
AGENT_TOOK_BYTES = 1 << 18  # reported together

# Why no GPUs were found, if the node was probably built without any.
NO_GPU_TOOL = "neither nvidia-smi nor rocm-smi found"
# Why a candidate for a Python with torch was not taken; a third reason is that it did not start.
NO_PROGRAM = "not found"
NO_TORCH = "no torch in it"
# The error of a probe that failed before it could try its target.
NOT_TRIED = "could not be tried"
# Why a run was stopped: its supervisor got a signal. Slurm sends signal 15 to everything when it ends a job.
GOT_SIGNAL = "its helper got signal %d"
TERMINATED = GOT_SIGNAL % 15
# Printed to stderr, followed by a number of seconds, by a node whose lease expired.
NO_WORD = "no heartbeat from the launch host for"


class MalformedMessage(ValueError):
    """Raised when the bytes that the other side sent are not a valid message."""


def is_part(name: str) -> bool:
    """Tell whether this is the name of a file that is being written on the launch host."""
    return name.startswith(".") and name.endswith(PART) and len(name) > len(PART) + 1


def is_file_name(name: str) -> bool:
    """Tell whether the launch host takes a file of this name from a host that was not asked for it."""
    return is_name(name) and not name.startswith(".")


def is_name(name: str) -> bool:
    """Tell whether the launch host can give this name to a file or directory that comes from a host."""
    data = name.encode("utf-8", "replace")
    is_whole = data.decode() == name and len(data) <= _MOST_NAME_BYTES and "/" not in name and "\0" not in name
    return is_whole and name not in ("", ".", "..") and name.lower() not in KEPT_OUT and not is_part(name)


def encode(kind: str, payload: bytes = b"", **fields: object) -> bytes:
    """Return one message as bytes; `fields` must be JSON values."""
    header: dict[str, object] = {"type": kind}
    header.update(fields)
    if payload:
        header["size"] = len(payload)
    return encode_again(header, payload)


def encode_again(header: Header, payload: bytes) -> bytes:
    """Return a message that was decoded as the bytes that it came from, to pass it on."""
    return json.dumps(header).encode() + b"\n" + payload


class Decoder:
    """Splits a stream of bytes, which may arrive in pieces of any size, into messages."""

    def __init__(
        self, max_header_bytes: int = MAX_HEADER_BYTES, accept: Callable[[Header], Header] = lambda header: header
    ) -> None:
        """accept: called with each header before its payload arrives; returns the header to keep, or raises."""
        self._max_header_bytes = max_header_bytes
        self._accept = accept
        self._buffer = bytearray()
        self._searched = 0  # how many bytes of it were searched for the end of a header
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
        """Take the next header line if all of it has arrived."""
        end = self._buffer.find(b"\n", self._searched)
        self._searched = len(self._buffer) if end < 0 else 0
        if (len(self._buffer) if end < 0 else end) > self._max_header_bytes:
            raise MalformedMessage("a header line over %d bytes" % self._max_header_bytes)
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        try:
            header = json.loads(line.decode())
        except (ValueError, RecursionError):
            raise MalformedMessage("not JSON: %r" % line[:80]) from None
        if not isinstance(header, dict) or not isinstance(header.get("type"), str):
            raise MalformedMessage("not a message: %r" % line[:80])
        size = header.get("size", 0)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise MalformedMessage("invalid size: %r" % (size,))
        del self._buffer[: end + 1]
        self._size = size
        return self._accept(header)
