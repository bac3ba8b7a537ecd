"""Bring the code of a run to all nodes of a session, over the connections that are open, and take their proof."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from launcher.job.tree import Tree
from launcher.node import messages
from launcher.node.code import listing
from launcher.preflight.findings import WARNING, Finding, fold
from launcher.session.connection import Event
from launcher.session.session import Session
from launcher.sync.code_messages import progress_words
from launcher.sync.contents import Contents, Pieces, find_wanted
from launcher.wording import listed

PIECES_IN_TRANSIT = 4  # that one node has not taken yet
_MOST_NAMES = 3
_CACHE_FIX = "free space there, or choose another directory there with --env XDG_CACHE_HOME=DIR"
_DISK_FIX = "look for a program that writes there, or for a damaged disk; launch clean --code removes it"


@dataclass(frozen=True, slots=True)
class Delivered:
    """What was sent to bring all nodes to the same code, and where it is."""

    paths: dict[int, str]  # the root of the tree by node
    files: int  # that some node lacked
    sent_bytes: int  # by the launch host to all nodes together
    findings: tuple[Finding, ...] = ()  # problems of nodes that are not in `paths`, and warnings

    @property
    def is_nothing(self) -> bool:
        """Whether no node lacked anything."""
        return not self.files


def tree_fields(tree: Tree) -> dict[str, Any]:
    """Return what PREPARE tells a node about the tree."""
    return {
        "hash": tree.hash,
        "name": tree.folder_name,
        "sub": tree.inside,
        "links": [[link.name, link.target, link.may_make] for link in tree.links],
        "home": tree.home,
    }


@dataclass(slots=True)
class _Node:
    """What one node has said, and whether more may be on its way to it."""

    answer: Event | None = None  # PLACED or UNPLACED: its last word
    has_asked: bool = False  # for contents
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PIECES_IN_TRANSIT))


class Delivery:
    """One delivery of a tree to the nodes of a session, which were opened with `tree_fields`.

    Every node says what it lacks, gets that at its own pace, and answers what is wrong with what it then has.
    """

    def __init__(self, session: Session, tree: Tree, contents: Contents) -> None:
        self._session = session
        self._tree = tree
        self._contents = contents
        self._nodes = [_Node() for _ in session.states]
        self._streams: list[asyncio.Task[None]] = []
        self._entries = listing.decode(tree.listing)
        self._pieces = Pieces(self._entries, contents.find)
        self._lacking: set[int] = set()
        self._sent_bytes = 0
        self._wanted_bytes = self._done_bytes = 0  # before compression

    async def deliver(self) -> Delivered:
        """Send what is missing until every node has the tree; a node that can't, or has another, is a finding.

        A node that is lost has its failure in the session, as always. Raise UsageError if a file has changed here.
        """
        listeners: dict[str, Callable[[Event], object]] = {
            messages.WANTED: self._take_request,
            messages.TOOK: self._take_receipt,
            messages.PLACED: self._take_answer,
            messages.UNPLACED: self._take_answer,
        }
        with contextlib.ExitStack() as stack:
            for kind, listener in listeners.items():
                stack.enter_context(self._session.subscribe(kind, listener))
            try:
                await self._session.pump(lambda: all(map(self._is_over, range(len(self._nodes)))))
            finally:
                self._session.doing = ""
                for stream in self._streams:
                    stream.cancel()
        return self._conclude()

    # ---- what the nodes say -------------------------------------------------------------------------------------

    def _is_lost(self, index: int) -> bool:
        """Return whether a node has failed; the session has the reason."""
        return self._session.states[index].failure is not None

    def _is_over(self, index: int) -> bool:
        """Return whether nothing more will come from a node."""
        return self._nodes[index].answer is not None or self._is_lost(index)

    def _take_request(self, event: Event) -> None:
        if event.fields["needs_listing"]:
            self._sent_bytes += len(self._listing)
            self._session.send(event.index, messages.LISTING, self._listing)
        else:
            self._streams.append(self._session.watch(self._send_files(event.index, event.fields["content"])))

    def _take_receipt(self, event: Event) -> None:
        self._nodes[event.index].room.release()

    def _take_answer(self, event: Event) -> None:
        self._nodes[event.index].answer = event

    # ---- sending ------------------------------------------------------------------------------------------------

    @cached_property
    def _listing(self) -> bytes:
        return zlib.compress(self._tree.listing)

    async def _send_files(self, index: int, bits: bytes) -> None:
        """Send a node what it lacks, as fast as it takes that."""
        node = self._nodes[index]
        if node.has_asked:  # what came was damaged, perhaps already here: files are read again
            self._pieces = Pieces(self._entries, self._contents.find)
        pieces = self._pieces
        node.has_asked = True
        wanted = find_wanted(bits, self._entries)
        self._lacking.update(wanted)
        begin, size_bytes = 0, sum(self._entries[place].size for place in wanted)
        self._wanted_bytes += size_bytes
        while begin < size_bytes:
            await node.room.acquire()
            piece = await pieces.get(bits, begin)
            if self._is_over(index):
                return
            self._sent_bytes += piece.sent_bytes
            self._session.pass_on(index, piece.header, piece.message)
            begin += piece.size_bytes
            self._done_bytes += piece.size_bytes
            hosts = sum(each.has_asked for each in self._nodes)
            self._session.doing = progress_words(self._done_bytes, self._wanted_bytes, hosts)

    # ---- the proof ----------------------------------------------------------------------------------------------

    def _conclude(self) -> Delivered:
        """Return what was delivered, and which of the nodes that aren't lost have not proved it."""
        findings: list[Finding] = []
        paths = {}
        for index in range(len(self._nodes)):
            name, answer = self._session.hosts[index].name, self._nodes[index].answer
            if answer is None or self._is_lost(index):
                continue
            problem = _find_problem(name, answer)
            if problem is not None:
                findings.append(problem)
            else:
                paths[index] = answer.fields["path"]
                findings += _find_warnings(self._tree, name, answer)
        return Delivered(paths, self._count_lacking(), self._sent_bytes, tuple(fold(findings)))

    def _count_lacking(self) -> int:
        """Return how many files some node lacked: each content is sent once; links count only if all files do."""
        if not self._lacking:
            return 0
        contents = {self._entries[place].content for place in self._lacking}
        files = [entry for entry in self._entries if entry.kind != listing.LINK]
        lacking = sum(entry.content in contents for entry in files)
        return len(self._entries) if lacking == len(files) else lacking


async def send_code(session: Session, tree: Tree, variables: Mapping[str, str]) -> Delivered:
    """Send what is missing without a run, such as to the host of a controller; variables: as for Contents.

    At a signal, report which hosts have failed so far, and raise Interrupted.
    """
    async with session.asking():
        session.open(tree=tree_fields(tree))
        return await Delivery(session, tree, Contents(tree, variables)).deliver()


# ---- what follows from the last words of the nodes -------------------------------------------------------------------


def _find_problem(host: str, answer: Event) -> Finding | None:
    """Return what is wrong with the code of a host; None if it has hashed each file, and they are those of the tree.

    answer: its last word.
    """
    fields = answer.fields
    if answer.kind == messages.UNPLACED:
        return Finding((host,), fields["text"], _CACHE_FIX if fields["is_disk"] else "")
    if fields["wrong"]:
        return Finding((host,), f"its copy of {_name_some(fields['wrong'])} differs", _DISK_FIX)
    return None


def _find_warnings(tree: Tree, host: str, answer: Event) -> Iterator[Finding]:
    """Yield what is doubtful about the code of a host that has the tree."""
    fields = answer.fields
    if fields["repaired"]:
        verb = "was" if len(fields["repaired"]) == 1 else "were"
        change = f"{_name_some(fields['repaired'])} had changed in the run's directory, and {verb} restored"
        yield Finding((host,), f"{change} (what was there is kept as NAME.replaced-...)", "", WARNING)
    for link in tree.links:
        if link.is_filled and link.name in fields["empty"]:
            fix = f"copy the files there, or link another directory: --link {link.name}=DIR"
            text = f"{link.target} is empty; here {link.name}/ has files, which aren't sent"
            yield Finding((host,), text, fix, WARNING)
        if link.name in fields["moved"]:
            text = f"can't make {link.target}, so {link.name}/ is ~{link.target.removeprefix(tree.home)} there"
            yield Finding((host,), text, f"for another directory, pass --link {link.name}=DIR", WARNING)


def _name_some(paths: Sequence[str]) -> str:
    """Return `a.py, b.py and c.py`, or `a.py, b.py, c.py and more`."""
    return listed([*paths[:_MOST_NAMES], *(["more"] if len(paths) > _MOST_NAMES else [])])
