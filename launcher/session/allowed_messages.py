"""Check that a node sends only what `launch` has requested.

Except for output and heartbeats, each message must answer one from `launch`, and comes once. So a hostile node can't
speak for a rank that it was not given, can't end a run, and can't flood `launch` with messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from launcher.escapes import one_line
from launcher.node import messages
from launcher.session.schema import check_message

MAX_TEXT = 4096  # characters; no path is longer
_MAX_DEPTH = 16
_ANSWERS = {
    messages.PREPARE: messages.HELLO, messages.ROUTE: messages.ROUTED, messages.PROBE: messages.PROBED,
    messages.MEET: messages.MET, messages.JOIN: messages.JOINED,
    messages.LISTING: messages.WANTED, messages.PIECE: messages.TOOK,
    messages.LOOK: messages.SEEN, messages.SHARE: messages.SHARED, messages.RAS: messages.RAS_STATUS,
    messages.LIST_CODE: messages.CODE,
}  # fmt: skip
_OF_TREE = (messages.WANTED, messages.PLACED, messages.UNPLACED, messages.PRUNED)  # the answers to a `tree` in PREPARE
# What may come before the run's directory there is known.
_BEFORE_HELLO = (messages.HELLO, messages.BEAT, messages.FAILED, messages.CENSUS)
_GUARDIAN_SAYS = (messages.FAILED, messages.CENSUS, messages.BEAT)
_MAX_SIZES = {
    messages.WANTED: messages.MAX_WANTED_BYTES,
    messages.OUTPUT: messages.MAX_OUTPUT_BYTES,
    messages.STACK: messages.MAX_STACK_BYTES,
    messages.RAS_STATUS: messages.MAX_RAS_BYTES,
    messages.FILE: messages.MAX_FILES_BYTES,
}

Header = dict[str, Any]


class UnaskedMessage(messages.MalformedMessage):
    """The node sent a well-formed message that `launch` didn't request."""


class AllowedMessages:
    """The messages that one node may send, given what it was asked so far.

    The event loop calls `ask` before the message is on its way, so no answer can come before its question is known.
    The reader thread calls `accept`. They need no lock: what one of them changes, the other one only reads, and the
    numbers of questions only grow.

    An accepted message is one that the node may send now; it need not be true. After MalformedMessage the counts are
    invalid: the caller must close the connection.
    """

    def __init__(self) -> None:
        # A guardian reports unasked how its supervisor died. The census of the supervisor may have come before.
        self._asked = Counter({messages.FAILED: 1, messages.CENSUS: 2, messages.ENDED: 1})
        self._said: Counter[str] = Counter()
        self._targets = 0  # of the last PROBE
        self._ranks: set[int] = set()  # to be started there
        self._started: set[int] = set()
        self._exited: set[int] = set()
        self._is_short = False  # it ends by itself when its ranks have ended
        self._is_stopped = False
        self._numbers: set[int] = set()  # of the STACKS
        self._stacks: set[tuple[int, int]] = set()  # number and rank of those that came
        self._files = 0
        self._files_bytes = 0
        self._checks: Mapping[str, Callable[[Header], None]] = {
            messages.OUTPUT: self._check_output,
            messages.STARTED: self._check_started,
            messages.EXIT: self._check_exit,
            messages.STACK: self._check_stack,
            messages.PROBED: self._check_probed,
            messages.CENSUS: self._check_census,
            messages.FILE: self._check_file,
        }

    def ask(self, header: Mapping[str, Any]) -> None:
        """Record a message that is about to be sent to the node."""
        kind = header["type"]
        if kind == messages.BEAT:
            return
        self._asked[messages.FAILED] += 1
        if kind in _ANSWERS:
            self._asked[_ANSWERS[kind]] += 1
        if kind == messages.PREPARE:
            self._asked[messages.FACTS] += bool(header.get("facts"))
            self._asked.update(_OF_TREE if header.get("tree") else ())
        elif kind == messages.PLACE:  # a file may turn out to be damaged, and is then wanted again
            self._asked[messages.WANTED] += 1
        elif kind == messages.PROBE:
            self._targets = len(header["targets"])
        elif kind == messages.START:
            self._is_short = header.get("is_short", False)
            processes = header.get("processes", ())
            self._ranks = {*header.get("local_ranks", ()), *(process["rank"] for process in processes)}
        elif kind == messages.STACKS:
            self._numbers.add(header["number"])
        elif kind == messages.STOP:
            self._is_stopped = True

    def accept(self, header: Header) -> Header:
        """Return the header of a node's message, its texts cleaned; raise MalformedMessage if it isn't allowed now."""
        if header["type"] not in (messages.OUTPUT, messages.BEAT):
            header = {name: _plain(value) for name, value in header.items()}
        check_message(header)
        self._check(header)
        self._said[header["type"]] += 1
        return header

    def accept_from_guardian(self, header: Header) -> Header:
        """Do the same as `accept` for a message from stderr, where only a guardian may send one."""
        if header["type"] not in _GUARDIAN_SAYS:
            raise messages.MalformedMessage(f"not allowed on stderr: {header['type']!r:.80}")
        return self.accept(header)

    def _check(self, header: Header) -> None:
        kind, size = header["type"], header.get("size", 0)
        if size > _MAX_SIZES.get(kind, 0):
            raise messages.MalformedMessage(f"{kind} with {size} bytes")
        if kind not in _BEFORE_HELLO and not self._said[messages.HELLO]:
            raise UnaskedMessage(f"{kind} before {messages.HELLO}")
        check = self._checks.get(kind)
        if check is not None:
            check(header)
        elif kind != messages.BEAT and self._said[kind] >= self._asked[kind]:
            raise UnaskedMessage(kind)

    def _check_output(self, header: Header) -> None:
        if header["local_rank"] is not None:
            self._check_rank(header, self._ranks)

    def _check_started(self, header: Header) -> None:
        self._check_rank(header, self._ranks - self._started)
        self._started.add(header["local_rank"])

    def _check_exit(self, header: Header) -> None:
        self._check_rank(header, self._started - self._exited)
        self._exited.add(header["local_rank"])

    def _check_stack(self, header: Header) -> None:
        place = header["number"], header["local_rank"]
        if header["number"] not in self._numbers or place in self._stacks:
            raise UnaskedMessage(f"{messages.STACK} number {header['number']}")
        self._check_rank(header, self._started)
        self._stacks.add(place)

    def _check_probed(self, header: Header) -> None:
        found = {len(header["errors"]), len(header["links"])}
        if found != {self._targets} or self._said[messages.PROBED] >= self._asked[messages.PROBED]:
            raise UnaskedMessage(f"{messages.PROBED} of {len(header['errors'])} addresses")

    def _check_census(self, header: Header) -> None:
        is_expected = self._is_stopped or (self._is_short and self._exited == self._ranks)
        has_reason = header.get("reason") is not None or header.get("supervisor") is not None
        if not (is_expected or has_reason) or self._said[messages.CENSUS] >= self._asked[messages.CENSUS]:
            raise UnaskedMessage(messages.CENSUS)
        self._files = header.get("files") or 0

    def _check_file(self, header: Header) -> None:
        self._files_bytes += header.get("size", 0)
        if self._said[messages.FILE] >= self._files or self._files_bytes > messages.MAX_FILES_BYTES:
            raise UnaskedMessage(f"{messages.FILE} {header['name']}")

    def _check_rank(self, header: Header, expected: set[int]) -> None:
        if header["local_rank"] not in expected:
            raise UnaskedMessage(f"{header['type']} of local rank {header['local_rank']}")


def _plain(value: Any, depth: int = 0) -> Any:
    """Make every text one line without control characters, since messages of `launch` quote it."""
    if isinstance(value, str):
        return one_line(value, MAX_TEXT)
    if depth > _MAX_DEPTH:
        raise messages.MalformedMessage(f"nested over {_MAX_DEPTH} levels deep")
    if isinstance(value, list):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {one_line(name, MAX_TEXT): _plain(each, depth + 1) for name, each in value.items()}
    return value
