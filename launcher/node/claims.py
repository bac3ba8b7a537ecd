"""Claims on the GPUs of a box: abstract Unix sockets, each of which the kernel gives to one process.

Who uses a GPU has bound the name that belongs to its UUID, and listens there. Nobody else can bind it, the kernel frees
it when the last process that has the socket is gone, and says whose it is (SO_PEERCRED). Whoever wants to know more
calls: the holder answers with one message, its own word. One that is frozen doesn't answer, and its backlog may be
full; it still holds its GPUs. Who starts on GPUs of others anyway (--share) takes the next number of the same UUID.

The process that starts the ranks gets the sockets, too, so old ranks that still save keep others out. No other process
may have them: `workers.fork` closes them, and a program that is executed doesn't inherit them.

Between two attempts the supervisor of the last one holds them, on its connection, until that of the next one asks: then
it gives each back, and the other one binds it as soon as it is told so, whoever else is still to answer.

A place in the queue is a name, too; its number is the time at which its run began, by its launch host's clock. So all
hosts have the runs in one order. Whoever waits looks at who is before it each second.

All this holds within one network namespace.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
import time
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from launcher.node import messages, system
from launcher.node.loop import Loop, Timer
from launcher.node.processes import workers
from launcher.node.send_queue import SendQueue

Name = Tuple[str, int]  # the key of what is claimed, "" for the queue, and a number
Words = Dict[str, Any]

_SHARES = 8  # numbers of a GPU: so many runs may use it
_MOST_PLACES = 128  # that are looked at
_NAMES = "/proc/net/unix"  # all sockets of this network namespace
_NAME = re.compile(r" @launch/(.*)/([0-9]{1,18})$", re.MULTILINE)
_ANSWER_S = 1.0
_TURN_S = 1.0  # between two looks in the queue
_SOON_S = 0.05
_TRIES = 3  # where a holder says nothing: it may be about to listen, or gone by now
_BREATH_S = 0.005  # between two callers of a socket, so that nobody keeps its holder from its work
_MOST_CALLERS = 64
_MOST_BYTES = 1 << 14
_MOST_SECONDS = 1e11
_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}")  # an id or name of a run: nobody can write a line of `launch` into it


class Claim(NamedTuple):
    """A claim, or a place in the queue."""

    uid: int | None  # None: its holder can't be called
    parts: frozenset[str]  # keys of GPUs; of a place its owner's word
    is_waiting: bool = False  # a place in the queue
    said: Mapping[str, Any] = {}  # its owner's word; empty: its holder doesn't answer

    @property
    def run(self) -> str:
        """The id of its run, if it is known."""
        return str(self.said.get("run", ""))

    @property
    def owner(self) -> tuple[int | None, str, object]:
        """Whose it is: launch hosts that start runs in the same second give them the same id."""
        return self.uid, self.run, self.said.get("since")

    def as_fields(self, numbers: Mapping[str, int], users: Mapping[int, str]) -> dict[str, Any]:
        """Return what a message says of it; numbers: of this node's GPUs, by key; users: names."""
        user = "somebody" if self.uid is None else users.get(self.uid, str(self.uid))
        gpus = sorted(numbers[part] for part in self.parts if part in numbers)
        return {
            "run": "", "since": time.time(), **self.said, "user": user, "is_mine": self.uid == os.geteuid(),
            "gpus": gpus, "is_waiting": self.is_waiting,
        }  # fmt: skip


def read_claim(uid: int | None, words: Words, parts: Iterable[str], *, is_waiting: bool = False) -> Claim:
    """Return what a holder says of itself; if that isn't what a run says, it says nothing.

    parts: what it holds; with a place in the queue it says what it waits for.
    """
    silent = Claim(uid, frozenset(parts), is_waiting)
    said = {key: words.get(key) for key in ("run", "name", "since", "until", "is_shared")}
    has_form = (
        _is_word(said["run"]) and (said["name"] is None or _is_word(said["name"]))
        and _is_time(said["since"]) and (said["until"] is None or _is_time(said["until"]))
        and type(said["is_shared"]) is bool
    )  # fmt: skip
    wanted = words.get("parts") if is_waiting else parts
    if not has_form or not isinstance(wanted, (list, tuple)):
        return silent
    return Claim(uid, frozenset(map(str, wanted)), is_waiting, said)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST_SECONDS  # type: ignore[operator]  # a number


def _read_words(data: bytes) -> Words:
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _identify(words: Words) -> list[Any]:
    return [words["run"], words["since"]]


def _find_peer(sock: socket.socket) -> int:
    """Return the user who calls, or who listens."""
    return int(struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


def _open() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message comes whole
    sock.setblocking(False)
    return sock


def _address(name: Name) -> str:
    return "\0launch/%s/%d" % name


def _is_free(name: Name) -> bool:
    with suppress(OSError), _open() as sock:
        sock.bind(_address(name))
        return True
    return False


class Held:
    """The sockets that this process has of one run: its claim, or its place in the queue; only this closes them."""

    def __init__(self, loop: Loop, words: Words) -> None:
        """words: what callers are told."""
        self.words = words
        self.sockets: Dict[Name, socket.socket] = {}
        self.on_taken: Callable[[], object] | None = None  # the next attempt may have it, which then calls this
        self._loop = loop

    @property
    def parts(self) -> set[str]:
        """What is claimed."""
        return {part for part, _ in self.sockets}

    def bind(self, name: Name) -> bool:
        """Take a name, and tell whether that was possible."""
        sock = _open()
        try:
            sock.bind(_address(name))
            sock.listen(_MOST_CALLERS)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self.sockets[name] = sock
        workers.private_fds.add(sock.fileno())
        self._listen(name)
        return True

    def _listen(self, name: Name) -> None:
        sock = self.sockets.get(name)
        if sock is not None:
            self._loop.watch(sock.fileno(), partial(self._accept, name, sock))

    def _accept(self, name: Name, sock: socket.socket) -> None:
        """Take one caller; it has a moment for its request, and the next one waits for that long."""
        self._loop.forget(sock.fileno())
        try:
            caller, _ = sock.accept()
        except OSError:  # it has left, or this process has too many open files
            self._loop.call_later(_BREATH_S, partial(self._listen, name))
            return
        caller.setblocking(False)
        self._loop.call_later(_BREATH_S, partial(self._hear, name, caller))

    def _hear(self, name: Name, caller: socket.socket) -> None:
        with caller:
            if name not in self.sockets:
                return
            try:
                uid, request = _find_peer(caller), _read_words(caller.recv(_MOST_BYTES))
            except OSError:  # it has left, or says nothing
                uid, request = None, {}
            if self.on_taken is not None and uid == os.geteuid() and request.get("takes") == _identify(self.words):
                self._release(name)
            with suppress(OSError):  # it has left
                caller.send(json.dumps(self.words).encode())
        self._listen(name)
        if self.on_taken is not None and not self.sockets:
            self.on_taken()

    def _release(self, name: Name) -> None:
        sock = self.sockets.pop(name, None)
        if sock is not None:
            workers.private_fds.discard(sock.fileno())
            self._loop.forget(sock.fileno())
            sock.close()

    def end(self) -> None:
        """Give all back."""
        for name in list(self.sockets):
            self._release(name)


class _Answer(NamedTuple):
    """What the holder of a name has said; uid: None if it can't be called, since its backlog is full."""

    name: Name
    uid: int | None
    words: Words


def _call(name: Name, request: bytes) -> socket.socket:
    """Call the holder of a name; raise ConnectionRefusedError if nobody listens, BlockingIOError if it can't answer."""
    sock = _open()
    try:
        sock.connect(_address(name))
        sock.send(request)
    except (BrokenPipeError, ConnectionResetError):  # it has ended since
        pass
    except OSError:
        sock.close()
        raise
    return sock


# ---- for a run -------------------------------------------------------------------------------------------------------


class ClaimHolder:
    """Claims GPUs of this node for an attempt of a run, or waits for them in the queue."""

    def __init__(self, loop: Loop, send_queue: SendQueue) -> None:
        self._loop = loop
        self._send_queue = send_queue
        self._own: Held | None = None
        self._place: Held | None = None  # in the queue for it
        self._header: Words = {}  # the CLAIM that is served
        self._words: Words = {}  # what it says of the run
        self._numbers: Dict[str, int] = {}  # of the GPUs, by key
        self._shown: List[Any] | None = None  # what the launcher knows of its turn
        self._is_over = False
        self._look: object = None  # the last question to others; later answers to earlier ones count no more
        self._timer: Timer | None = None

    @property
    def fds(self) -> list[int]:
        """The descriptors for the process that starts the ranks: the claim lasts as long as that has them."""
        return [sock.fileno() for sock in self._own.sockets.values()] if self._own is not None else []

    @property
    def held(self) -> Held | None:
        """The claim or, without one, the place in the queue."""
        return self._own or self._place

    def answer(self, header: Words, gpus: Sequence[Mapping[str, Any]]) -> None:
        """Serve a CLAIM; gpus: of this node, as it reports them."""
        self._header, self._shown, self._is_over = header, None, False
        self._numbers = {_find_key(gpu): gpu["index"] for gpu in gpus}
        self._try(self._serve)

    def _serve(self) -> None:
        header = self._header
        if header["is_look"]:
            self._ask(self._list_names(), {}, lambda answers: self._send(self._read(answers)))
            return
        parts = [key for key, index in self._numbers.items() if index in header["gpus"]]
        self._words = {key: header[key] for key in ("run", "name", "since", "until")}
        self._words.update(is_shared=header["shares"], parts=parts)
        self._end_own()
        (self._enter if header["waits"] else self._claim)()

    def _claim(self, tries: int = _TRIES, *, was_here: bool = False) -> None:
        """Look who else is there, and then bind what is free; was_here: the run had claimed it before."""
        self._take_over(self._list_names(), lambda answers: self._decide(answers, tries, was_here=was_here))

    def _decide(self, answers: Sequence[_Answer], tries: int, *, was_here: bool) -> None:
        """Keep the claim, unless somebody is in its way."""
        header, parts, claims = self._header, {*self._words["parts"]}, self._read(answers)
        own = self._own = self._own or Held(self._loop, self._words)
        was_here = was_here or any(claim.owner == self._owner and not claim.is_waiting for claim in claims)
        numbers = range(_SHARES if header["shares"] else 1)
        for part in sorted(parts - own.parts):  # all runs in one order: of those that want the same GPUs one gets them
            any(own.bind((part, number)) for number in numbers)
        rivals = self._find_rivals(claims)
        silent = parts - own.parts - {part for claim in rivals if not claim.is_waiting for part in claim.parts}
        rivals += [Claim(None, frozenset(silent))] if silent else []
        if was_here or self._place is not None:  # before those that wait
            rivals = [claim for claim in rivals if not claim.is_waiting]
        if was_here and header["continues"]:  # who shares its GPUs with it came after it
            rivals = [claim for claim in rivals if not claim.said.get("is_shared")]
        if rivals and not header["shares"]:
            if tries and not all(claim.run for claim in rivals):
                self._later(_SOON_S, lambda: self._claim(tries - 1, was_here=was_here))
                return
            self._end_own()
        taken = {part for claim in claims for part in claim.parts} if rivals else ()
        self._send(rivals, taken=[self._numbers[part] for part in taken if part in self._numbers])

    def _enter(self) -> None:
        """Take a place in the queue, if there is none; an earlier process of the run may have it."""
        if self._place is not None:
            self._place.words = self._words
            self._turn()
        else:
            self._take_over([("", self._number)], lambda answers: self._line_up())

    def _line_up(self) -> None:
        place = self._place = Held(self._loop, self._words)
        next(number for number in count(self._number) if place.bind(("", number)))
        self._turn()

    def _turn(self) -> None:
        """Look what is before this place."""
        assert self._place is not None  # until `end`, which cancels this
        ((_, own),) = self._place.sockets
        parts = self._words["parts"]
        names = [(part, number) for part, number in self._list_names() if part in parts or (not part and number < own)]
        self._ask(names, {}, self._await_turn)

    def _await_turn(self, answers: Sequence[_Answer]) -> None:
        """Say what is before this place, whenever that changes; who doesn't answer waits for nothing."""
        claims = self._read(answers)
        rivals = self._find_rivals(claims)
        if not rivals:  # somebody may have bound a name and not listen
            # What its last attempt holds is its own.
            own = {part for claim in claims if claim.owner == self._owner for part in claim.parts}
            busy = frozenset(part for part in self._words["parts"] if part not in own and not _is_free((part, 0)))
            rivals = [Claim(None, busy)] if busy else []
        shown = [(claim.uid, claim.run, claim.is_waiting) for claim in rivals]
        if shown != self._shown:
            self._shown = shown
            self._send(rivals)
        self._later(_TURN_S, self._turn)

    # ---- means ------------------------------------------------------------------------------------------------------

    @property
    def _owner(self) -> tuple[Any, ...]:
        """What `Claim.owner` is of this run."""
        return (os.geteuid(), *_identify(self._words))

    @property
    def _number(self) -> int:
        """The number of this run's place: whoever began before has a lower one."""
        return int(self._words["since"] * 1e6)

    def _list_names(self) -> list[Name]:
        """Return the names of this box's GPUs, and then of the first places, that somebody has."""
        found = {(part, int(number)) for part, number in _NAME.findall(system.read_text(_NAMES))}
        claims = [(part, number) for part, number in found if part in self._numbers and number < _SHARES]
        return [*claims, *sorted(name for name in found if not name[0])[:_MOST_PLACES]]

    def _take_over(self, names: Iterable[Name], act: Callable[[List[_Answer]], object]) -> None:
        """Ask all others who hold these names; what an earlier attempt of this run has is then this one's."""
        self._ask(names, {"takes": _identify(self._words)}, act, self._bind_again)

    def _bind_again(self, answer: _Answer) -> None:
        """Bind what an earlier attempt has just given back, before anybody else does."""
        claim = read_claim(answer.uid, answer.words, [answer.name[0]])
        if claim.owner == self._owner and answer.name[0] in self._words["parts"]:
            self._own = self._own or Held(self._loop, self._words)
            self._own.bind(answer.name)

    def _ask(
        self, names: Iterable[Name], request: Words, act: Callable[[List[_Answer]], object],
        on_answer: Callable[[_Answer], object] = lambda answer: None,
    ) -> None:  # fmt: skip
        """Ask all others who hold these names; act: gets all answers, or after a moment those that have come."""
        self._forget()
        look = self._look = object()
        own = {name for held in (self._own, self._place) if held is not None for name in held.sockets}
        answers: List[_Answer] = []
        called = {}
        for name in set(names) - own:
            try:
                called[name] = _call(name, json.dumps(request).encode())
            except ConnectionRefusedError:
                pass
            except BlockingIOError:
                answers.append(_Answer(name, None, {}))
        waiting = len(called)

        def take(name: Name, uid: int, data: bytes) -> None:
            nonlocal waiting
            waiting -= 1
            if look is self._look:
                answers.append(_Answer(name, uid, _read_words(data)))
                self._try(on_answer, answers[-1])
            if look is self._look and not waiting:
                self._try(act, answers)

        for name, sock in called.items():
            self._loop.read_all(sock.fileno(), partial(take, name, _find_peer(sock)), _ANSWER_S)
            sock.detach()  # it is closed once it is read
        if not called:
            self._try(act, answers)

    def _try(self, act: Callable[..., object], *arguments: object) -> None:
        """Act, and tell the launcher if this system doesn't let it, such as without a permission for sockets."""
        try:
            act(*arguments)
        except OSError as error:
            self._send([], "its GPUs can't be claimed: %s" % error.strerror)

    def _read(self, answers: Iterable[_Answer]) -> list[Claim]:
        """Return the claims, and then the places in the queue in their order."""
        found: Dict[Any, Claim] = {}
        for answer in sorted(answers, key=lambda answer: (not answer.name[0], answer.name[1])):
            part, number = answer.name
            claim = read_claim(answer.uid, answer.words, [part] if part else [], is_waiting=not part)
            key = claim.owner, None if part else number
            found[key] = claim._replace(parts=claim.parts | found[key].parts) if key in found else claim
        return list(found.values())

    def _find_rivals(self, claims: Iterable[Claim]) -> list[Claim]:
        """Return the claims of other runs on the same GPUs."""
        parts = {*self._words["parts"]}
        return [claim for claim in claims if claim.parts & parts and claim.owner != self._owner]

    def _send(self, claims: Sequence[Claim], error: str | None = None, taken: Sequence[int] = ()) -> None:
        """Answer; taken: GPUs that anybody has claimed, if these claims are not all."""
        if not self._header.get("waits"):
            self._forget()
        header, shown = self._header, claims[: messages.MAX_CLAIMS]
        uids = sorted({claim.uid for claim in shown if claim.uid is not None})

        def send(names: List[str]) -> None:
            if header is self._header and not self._is_over:
                users = dict(zip(uids, names))
                found = [claim.as_fields(self._numbers, users) for claim in shown]
                waits = header.get("waits", False)
                self._send_queue.send(messages.CLAIMED, rivals=found, error=error, waits=waits, taken=sorted(taken))

        if uids:  # a directory service that is asked for their names may hang
            self._loop.ask(lambda: [system.user_name(uid) for uid in uids], _ANSWER_S, list(map(str, uids)), send)
        else:
            send([])

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self._loop.cancel(self._timer)
        self._timer = self._loop.call_later(seconds, partial(self._try, act))

    def _forget(self) -> None:
        self._loop.cancel(self._timer)
        self._look = None

    def _end_own(self) -> None:
        if self._own is not None:
            self._own.end()
        self._own = None

    def reserve(self, on_taken: Callable[[], object]) -> None:
        """Keep the claim or the place until `end`, or until the next attempt takes it; then call this."""
        assert self.held is not None  # the caller looks
        self._is_over = True
        self._forget()
        if self._own is not None and self._place is not None:
            self._place.end()
        self.held.on_taken = on_taken

    def end(self) -> None:
        """End the claim, and the place in the queue."""
        self._is_over = True
        self._forget()
        self._end_own()
        if self._place is not None:
            self._place.end()
        self._place = None


def _find_key(gpu: Mapping[str, Any]) -> str:
    """Return what names a GPU of this box for all its users, however they number them."""
    return str(gpu["uuid"] or gpu.get("bus_id") or "GPU %d" % gpu["index"])[:80]
