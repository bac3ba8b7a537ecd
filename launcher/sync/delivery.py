"""Bring the code of a run to all nodes of a session, over the connections that are open, and take their proof."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.job.tree import Tree
from launcher.node import messages
from launcher.node.trees import listing
from launcher.preflight.findings import WARNING, Finding, fold
from launcher.session.connection import Event
from launcher.session.session import Session
from launcher.sync.contents import Contents
from launcher.sync.pieces import Piece, cut
from launcher.sync.words import progress_words
from launcher.wording import listed

_ROUNDS = 3  # of pieces: what was missing, what was damaged, and what was damaged on the way
_MOST_NAMES = 3
_CACHE_FIX = "free space there, or choose another directory there with --env XDG_CACHE_HOME=DIR"
_DISK_FIX = "look for a program that writes there, or for a damaged disk; launch clean --code removes it"


@dataclass(frozen=True, slots=True)
class Delivered:
    """What was sent to bring all nodes to the same code, and where it is."""

    paths: dict[int, str]  # the root of the tree by node
    files: int  # that some node lacked
    sent_bytes: int  # to all nodes together
    findings: tuple[Finding, ...] = ()  # problems of nodes that are not in `paths`, and warnings

    @property
    def is_nothing(self) -> bool:
        """Whether no node lacked anything."""
        return not self.files


@dataclass(slots=True)
class _Node:
    """What one node has said."""

    request: Event | None = None  # its last WANTED that was not served
    answer: Event | None = None
    in_transit: list[int] = field(default_factory=list)  # sizes of pieces that it has not taken yet


def tree_fields(tree: Tree, *, is_check: bool = False) -> dict[str, Any]:
    """Return what PREPARE tells a node about the tree."""
    return {
        "hash": tree.hash,
        "name": tree.root.rstrip("/").rpartition("/")[2] or "root",
        "sub": tree.inside,
        "links": [[link.name, link.target, link.may_make] for link in tree.links],
        "group": secrets.token_hex(8),
        "is_check": is_check,
    }


class Delivery:
    """One delivery of a tree to the nodes of a session, which were opened with `tree_fields`."""

    def __init__(self, session: Session, tree: Tree, contents: Contents, *, is_check: bool = False) -> None:
        """is_check: the nodes were asked only to compare what they have."""
        self._session = session
        self._tree = tree
        self._contents = contents
        self._is_check = is_check
        self._entries: list[listing.Entry] = []  # read once a node lacks something
        self._nodes = [_Node() for _ in session.states]
        self._lacking: set[int] = set()
        self._sent_bytes = 0

    async def deliver(self) -> Delivered:
        """Send what is missing until every node has the tree; a node that can't, or has another, is a finding.

        A node that is lost has its failure in the session, as always. Raise UsageError if a file has changed here.
        """
        with self._listening():
            await self._settle()
            await self._send_listing()
            writers, readers = self._divide()
            await self._serve(writers)
            await self._serve(self._followers(readers), is_writer=False)
        return self._conclude()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for kind, listener in (
                (messages.WANTED, self._take_request), (messages.TOOK, self._take_receipt),
                (messages.PLACED, self._take_answer), (messages.UNPLACED, self._take_answer),
            ):  # fmt: skip
                stack.enter_context(self._session.subscribe(kind, listener))
            try:
                yield
            finally:
                self._session.doing = ""

    def _take_request(self, event: Event) -> None:
        self._nodes[event.index].request = event

    def _take_answer(self, event: Event) -> None:
        self._nodes[event.index].answer = event

    def _take_receipt(self, event: Event) -> None:
        in_transit = self._nodes[event.index].in_transit
        if in_transit:
            in_transit.pop(0)

    def _is_lost(self, index: int) -> bool:
        return self._session.states[index].failure is not None

    async def _settle(self, indexes: Sequence[int] | None = None) -> None:
        """Wait until each of these nodes, or of all, has asked for something, has answered, or is lost."""
        nodes = self._nodes
        found = range(len(nodes)) if indexes is None else indexes
        await self._session.pump(
            lambda: all(nodes[index].request or nodes[index].answer or self._is_lost(index) for index in found)
        )

    def _asking(self, indexes: Sequence[int] | None = None) -> list[int]:
        """Return which of these nodes, or of all, want something."""
        found = range(len(self._nodes)) if indexes is None else indexes
        return [
            index
            for index in found
            if self._nodes[index].request and not self._nodes[index].answer and not self._is_lost(index)
        ]

    async def _send_listing(self) -> None:
        payload = b""
        for index in self._asking():
            node = self._nodes[index]
            if node.request is not None and node.request.fields["needs_listing"]:
                payload = payload or zlib.compress(self._tree.listing)
                node.request = None
                self._sent_bytes += len(payload)
                self._session.send(index, messages.LISTING, payload)
        if payload:
            await self._settle()

    # ---- who writes ---------------------------------------------------------------------------------------------

    def _group(self, index: int) -> str:
        request = self._nodes[index].request
        return request.fields["group"] if request is not None else ""

    def _divide(self) -> tuple[list[int], dict[int, int]]:
        """Return the nodes that write, and for each other one the node that writes to the directory they share."""
        first: dict[str, int] = {}
        readers = {}
        for index in self._asking():
            writer = first.setdefault(self._group(index), index)
            if writer != index:
                readers[index] = writer
        return list(first.values()), readers

    def _followers(self, readers: dict[int, int]) -> list[int]:
        """Return the nodes that look at what another one has written."""
        return [index for index, writer in readers.items() if self._has_placed(writer)]

    def _has_placed(self, index: int) -> bool:
        answer = self._nodes[index].answer
        return answer is not None and answer.kind == messages.PLACED

    # ---- sending ------------------------------------------------------------------------------------------------

    async def _serve(self, indexes: Sequence[int], *, is_writer: bool = True) -> None:
        """Send these nodes what they want until they have answered; those that only look get nothing."""
        for _ in range(_ROUNDS):
            asking = self._asking(indexes)
            if not asking:
                return
            if is_writer:
                await self._send_files(asking)
            for index in asking:
                self._nodes[index].request = None
                self._session.send(index, messages.PLACE, is_writer=is_writer)
            await self._settle(asking)

    async def _send_files(self, indexes: Sequence[int]) -> None:
        wanted = self._collect(indexes)
        if not wanted:
            return
        self._lacking.update(wanted)
        size = sum(self._entries[index].size for index in wanted)
        done = 0
        pieces = cut(wanted, self._entries, self._contents.open)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            self._session.doing = progress_words(done, size, len(indexes))
            await self._await_room(piece)
            for index in piece.nodes:
                if not self._is_lost(index):
                    self._nodes[index].in_transit.append(len(piece.payload))
                    self._sent_bytes += len(piece.payload)
                    self._session.send(
                        index, messages.PIECE, piece.payload, parts=piece.parts, is_packed=piece.is_packed
                    )
            done += piece.size_bytes
        self._session.doing = progress_words(size, size, len(indexes))

    def _collect(self, indexes: Sequence[int]) -> dict[int, frozenset[int]]:
        """Return which nodes want an entry, by its place in the listing."""
        wanted: dict[int, set[int]] = {}
        for index in indexes:
            request = self._nodes[index].request
            bits = request.fields["content"] if request is not None else b""
            if not any(bits):
                continue
            self._entries = self._entries or listing.decode(self._tree.listing)
            for place in range(min(len(self._entries), 8 * len(bits))):
                if bits[place // 8] >> place % 8 & 1 and self._entries[place].kind != listing.LINK:
                    wanted.setdefault(place, set()).add(index)
        return {place: frozenset(nodes) for place, nodes in wanted.items()}

    async def _await_room(self, piece: Piece) -> None:
        """Wait until each node that gets this piece has taken enough of those before."""

        def has_room(index: int) -> bool:
            in_transit = self._nodes[index].in_transit
            is_open = not in_transit or sum(in_transit) + len(piece.payload) <= messages.TREE_WINDOW_BYTES
            return is_open or self._nodes[index].answer is not None or self._is_lost(index)

        await self._session.pump(lambda: all(map(has_room, piece.nodes)))

    # ---- the proof ----------------------------------------------------------------------------------------------

    def _conclude(self) -> Delivered:
        """Return what was delivered, and which of the nodes that aren't lost have not proved it."""
        findings: list[Finding] = []
        paths = {}
        for index, node in enumerate(self._nodes):
            if self._is_lost(index):
                continue
            name = self._session.hosts[index].name
            problem = self._find_problem(name, node.answer)
            if problem is not None:
                findings.append(problem)
            elif node.answer is not None:
                paths[index] = node.answer.fields["path"]
                findings += self._find_warnings(name, node.answer)
        return Delivered(paths, len(self._lacking), self._sent_bytes, tuple(fold(findings)))

    def _find_problem(self, host: str, answer: Event | None) -> Finding | None:
        if answer is None:
            return Finding((host,), "no other host has filled the cache directory that it shares")
        fields = answer.fields
        if answer.kind == messages.UNPLACED:
            return Finding((host,), fields["text"], _CACHE_FIX if fields["is_disk"] else "")
        if fields["hash"] == self._tree.hash and fields["path"]:
            return None
        if self._is_check:
            differs = f"{_name_some(fields['wrong'])} differs from what is here" if fields["wrong"] else ""
            return Finding((host,), differs or "no code was sent there yet", "send it: launch sync")
        names = _name_some(fields["wrong"])
        return Finding(
            (host,), f"its copy of {names} differs" if names else f"its code isn't {self._tree.name}", _DISK_FIX
        )

    def _find_warnings(self, host: str, answer: Event) -> Iterator[Finding]:
        fields = answer.fields
        if fields["repaired"]:
            text = f"{_name_some(fields['repaired'])} had changed in the run's directory, and was replaced"
            yield Finding((host,), text, "", WARNING)
        if fields["extras"]:
            text = f"{_name_some(fields['extras'])} was not sent, but is in the run's directory and can be imported"
            yield Finding((host,), text, "", WARNING)
        for link in self._tree.links:
            if link.is_filled and link.name in fields["empty"]:
                fix = f"copy the files there, or link another directory: --link {link.name}=DIR"
                text = f"{link.target} is empty; here {link.name}/ has files, which aren't sent"
                yield Finding((host,), text, fix, WARNING)


def _name_some(paths: Sequence[str]) -> str:
    """Return `a.py, b.py and c.py`, or `a.py, b.py, c.py and 7 more`."""
    if not paths:
        return ""
    more = len(paths) - _MOST_NAMES
    return listed([*paths[:_MOST_NAMES], *([f"{more} more"] if more > 0 else [])])
