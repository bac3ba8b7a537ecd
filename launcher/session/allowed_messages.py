"""Check that a node sends only what `launch` has requested, and that each message has its form.

A node is another machine: a broken or hostile one must not harm anything but its own part of the run. Except for output
and heartbeats, each message must answer one from `launch`, and comes once. So a hostile node can't speak for a rank
that it was not given, can't end a run, and can't flood `launch` with messages.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from launcher.forms import AS_ROW, Address, Count, FormError, Most, Within, fields_reader
from launcher.job.facts import BoxClaim, GpuSample, GpuUse, HostSample
from launcher.node import messages

_MAX_WANTED_BYTES = 1 << 20  # a bit for each file of a tree
_MAX_CLAIMED_GPUS = 1024  # of one box
LocalRank = Annotated[int, Within(0, 4095)]
Port = Annotated[int, Within(0, 65535)]
Age = Annotated[float, Within(0, 1e6)]  # seconds
FewTexts = Annotated[list[str], Most(messages.MOST_NAMES)]
Long = Annotated[int, Within(0, 2**64 - 1)]
Level = tuple[Long, Long, str]  # device, inode and file system of a directory
ExitCode = Annotated[int, Within(0, 255)]
Signal = Annotated[int, Within(0, 64)]


@dataclass(frozen=True, slots=True)
class KeeperEnding:
    """How a supervisor or guardian ended, as the other one of them says; or what started the ranks without torchrun."""

    code: ExitCode | None = None
    signal: Signal | None = None
    oom: Literal["probable", None] = None


@dataclass(frozen=True, slots=True)
class _Row:
    """What a host may say with a message of one type, and when; its effect here is in `node_state`."""

    fields: Mapping[str, Any]  # one that may be None may be missing
    answers: str = ""  # the message that asks for one of these; what else allows one is in AllowedMessages
    most_bytes: int = 0  # of its payload
    is_early: bool = False  # it may come before the run's directory there is known
    is_guardians: bool = False  # a guardian may send it, on stderr


_ROWS: Mapping[str, _Row] = {
    messages.BEAT: _Row({}, is_early=True, is_guardians=True),
    messages.HELLO: _Row({"folder": str, "keepers": Annotated[list[tuple[Count, Count]], Most(2)],
                          "sleeps_along": bool | None}, messages.PREPARE, is_early=True),
    messages.FACTS: _Row({}),  # `node_state` reads them: what is wrong with them ends no connection
    messages.ROUTED: _Row({"interface": str | None, "address": Address | None, "port": Port | None,
                           "error": str | None, "probe_port": Port | None}, messages.ROUTE),
    messages.PROBED: _Row({"errors": list[str | None], "reverse_dns_s": Age | None}, messages.PROBE),
    messages.SHARED: _Row({"kernel": str | None, "levels": Annotated[list[Level | None], Most(2048)]}, messages.SHARE),
    messages.WANTED: _Row({"needs_listing": bool}, most_bytes=_MAX_WANTED_BYTES),
    messages.TOOK: _Row({}, messages.PIECE),
    messages.PLACED: _Row({"path": str, **dict.fromkeys(("wrong", "repaired", "empty", "moved"), FewTexts)}),
    messages.UNPLACED: _Row({"text": str, "is_disk": bool}),
    messages.PRUNED: _Row({"runs": Count, "bytes": Annotated[int, Within(0, 1 << 62)], "left": FewTexts}),
    messages.CLAIMED: _Row({"rivals": Annotated[list[BoxClaim], Most(messages.MAX_CLAIMS)], "error": str | None,
                            "waits": bool, "taken": Annotated[list[Count], Most(_MAX_CLAIMED_GPUS)]},
                           messages.CLAIM),
    messages.COLD: _Row({"reason": str}, messages.START),
    messages.STARTED: _Row({"local_rank": LocalRank, "pid": Count}),
    messages.OUTPUT: _Row({"local_rank": LocalRank | None, "stream": Literal[1, 2]},
                          most_bytes=messages.MAX_OUTPUT_BYTES),
    messages.EXIT: _Row({"local_rank": LocalRank, "age_s": Age, "was_stopping": bool,
                         "oom": Literal["probable", None], "code": ExitCode | None,
                         "signal": Signal | None}),
    messages.ENDED: _Row({"code": ExitCode | None, "signal": Signal | None}),
    messages.CENSUS: _Row({"left": list[tuple[Count, str, str]], "reason": str | None,
                           "supervisor": KeeperEnding | None,
                           "files": Annotated[int, Within(0, messages.MAX_FILES)] | None,
                           "uncopied": Annotated[list[tuple[str, str]], Most(messages.MOST_NAMES)] | None,
                           "uncopied_count": Count | None,
                           "folders": list[tuple[str, str]] | None, "tree": str | None, "written": FewTexts | None},
                          is_early=True, is_guardians=True),
    messages.SAMPLED: _Row({"host": HostSample | None, "error": str | None, "processes": list[GpuUse] | None,
                            "gpus": Annotated[list[Annotated[GpuSample, AS_ROW]], Most(messages.MAX_SAMPLED_GPUS)]}),
    messages.SEEN: _Row({"has_saved": bool | None, "is_missing": bool | None}, messages.LOOK),
    messages.STACK: _Row({"number": Count, "local_rank": LocalRank, "pid": Count,
                          "state": Literal["D", "T", None], "wchan": str | None, "reason": str | None},
                         most_bytes=messages.MAX_STACK_BYTES),
    messages.FILE: _Row({"name": Annotated[str, messages.is_file_name]}, most_bytes=messages.MAX_FILES_BYTES),
    messages.IDLE: _Row({}),
    messages.FAILED: _Row({"text": str, "supervisor": KeeperEnding | None}, is_early=True, is_guardians=True),
}  # fmt: skip
_ANSWERS = {row.answers: kind for kind, row in _ROWS.items()}
# The answers to a `tree` in PREPARE.
_OF_TREE = {messages.WANTED: messages.MOST_WANTED, messages.PLACED: 1, messages.UNPLACED: 1, messages.PRUNED: 1}

_MANY = 1 << 62  # of what a node tells for as long as a run lasts

Header = dict[str, Any]


@cache
def _reader_of(kind: str) -> Callable[[Any], Header]:
    return fields_reader(_ROWS[kind].fields)


def read_message(header: Header) -> Header:
    """Return the fields that a message may have, with cleaned texts; raise MalformedMessage for another form."""
    kind = header["type"]
    if kind == messages.FACTS:
        return header
    if kind not in _ROWS:
        raise messages.MalformedMessage(f"unknown type {kind!r:.80}")
    try:
        return {"type": kind, "size": header.get("size", 0), **_reader_of(kind)(header)}
    except FormError as error:
        if kind == messages.SAMPLED:  # a sensor that errs must not end a run
            said: Header = {"host": None, "gpus": [], "processes": None, "error": f"its samples can't be read: {error}"}
            return {"type": kind, "size": header.get("size", 0), **said}
        raise messages.MalformedMessage(f"{kind} with {error}") from None


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
            messages.IDLE: self._check_idle,
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
            self._asked.update(_OF_TREE if header.get("tree") else {})
        elif kind == messages.CLAIM:
            self._asked[messages.CLAIMED] += _MANY if header.get("waits") else 0
        elif kind == messages.SAMPLE:
            self._asked[messages.SAMPLED] = _MANY
        elif kind == messages.PROBE:
            self._targets = len(header["targets"])
        elif kind == messages.START:
            self._is_short = header.get("is_short", False)
            self._asked[messages.SAMPLED] = _MANY if header.get("samples_s") else 0
            processes = header.get("processes", ())
            self._ranks = {*header.get("local_ranks", ()), *(process["rank"] for process in processes)}
        elif kind == messages.STACKS:
            self._numbers.add(header["number"])
        elif kind == messages.STOP:
            self._is_stopped = True
            self._asked[messages.IDLE] += bool(header.get("stays"))

    def accept(self, header: Header) -> Header:
        """Return the header of a node's message, its texts cleaned; raise MalformedMessage if it isn't allowed now."""
        header = read_message(header)
        self._check(header)
        self._said[header["type"]] += 1
        return header

    def accept_from_guardian(self, header: Header) -> Header:
        """Do the same as `accept` for a message from stderr, where only a guardian may send one."""
        row = _ROWS.get(header["type"])
        if row is None or not row.is_guardians:
            raise messages.MalformedMessage(f"not allowed on stderr: {header['type']!r:.80}")
        return self.accept(header)

    def _check(self, header: Header) -> None:
        kind, size = header["type"], header.get("size", 0)
        row = _ROWS[kind]
        if size > row.most_bytes:
            raise messages.MalformedMessage(f"{kind} with {size} bytes")
        if not row.is_early and not self._said[messages.HELLO]:
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
        if len(header["errors"]) != self._targets or self._said[messages.PROBED] >= self._asked[messages.PROBED]:
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

    def _check_idle(self, header: Header) -> None:
        has_sent_all = self._said[messages.CENSUS] and self._said[messages.FILE] == self._files
        if not has_sent_all or self._said[messages.IDLE] >= self._asked[messages.IDLE]:
            raise UnaskedMessage(messages.IDLE)

    def _check_rank(self, header: Header, expected: set[int]) -> None:
        if header["local_rank"] not in expected:
            raise UnaskedMessage(f"{header['type']} of local rank {header['local_rank']}")
