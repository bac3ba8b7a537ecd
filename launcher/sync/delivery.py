"""Bring the code of a run to all nodes of a session, over the connections that are open, and take their proof."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from launcher.job.tree import Tree
from launcher.node import messages
from launcher.node.code import listing
from launcher.preflight.findings import WARNING, Finding, fold
from launcher.session.connection import Event
from launcher.session.session import Session
from launcher.sync.code_messages import progress_words
from launcher.sync.contents import Contents, Piece, cut
from launcher.wording import listed

_ROUNDS = 3  # of pieces: what was missing; what is damaged, or a lost host has not passed on; and once more
Chain = tuple[int, ...]  # indexes of nodes, in order
MOST_IN_CHAIN = 64  # a piece takes some milliseconds, and half a round trip, from each node to the next
WORTH_IT_BYTES = 8_000_000  # that the launch host then doesn't send; at 1 Gbit/s the connecting takes as long
_MOST_NAMES = 3
_CACHE_FIX = "choose another directory there with --env XDG_CACHE_HOME=DIR"
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


def tree_fields(tree: Tree, *, is_check: bool = False) -> dict[str, Any]:
    """Return what PREPARE tells a node about the tree."""
    return {
        "hash": tree.hash,
        "name": tree.folder_name,
        "sub": tree.inside,
        "links": [[link.name, link.target, link.may_make] for link in tree.links],
        "optional": [link.name for link in tree.links if link.is_optional],
        "home": tree.home,
        "group": secrets.token_hex(8),
        "is_check": is_check,
    }


class Delivery:
    """One delivery of a tree to the nodes of a session, which were opened with `tree_fields`.

    Every node says what it lacks, gets that, and answers with the hash of what it then has. Of nodes that share their
    cache directory one writes; the others look at the same directory once it is done.
    """

    def __init__(self, session: Session, tree: Tree, contents: Contents, *, is_check: bool = False) -> None:
        """is_check: the nodes were asked only to compare what they have."""
        self._session = session
        self._tree = tree
        self._contents = contents
        self._is_check = is_check
        self._answers = Answers(session)
        self._entries: list[listing.Entry] = []  # read once a node lacks something
        self._lacking: set[int] = set()
        self._sent_bytes = 0
        self._given_up: set[int] = set()  # that nothing more is done for
        self._can_introduce = not session.is_terse  # nodes to each other
        self._chains: list[Chain] = []  # of nodes that pass pieces on, in this round

    async def deliver(self) -> Delivered:
        """Send what is missing until every node has the tree; a node that can't, or has another, is a finding.

        A node that is lost has its failure in the session, as always. Raise UsageError if a file has changed here.
        """
        answers = self._answers
        with answers.listening():
            try:
                await answers.wait_for(answers.indexes, lambda node: node.request)
                await self._send_listing()
                while await self._fill_directories():
                    pass
            finally:
                self._session.doing = ""
        return self._conclude()

    async def _fill_directories(self) -> bool:
        """Serve one node for each cache directory, and then those that share it; return whether some may be left.

        They are if the node that was to write was lost. If it could not write, neither can the others.
        """
        writers, readers = self._divide()
        await self._serve(writers)
        await self._serve([index for index, writer in readers.items() if self._has_placed(writer)], is_writer=False)
        orphans = [index for index, writer in readers.items() if self._answers.is_lost(writer)]
        self._given_up.update({*writers, *readers}.difference(orphans))
        return bool(orphans)

    async def _send_listing(self) -> None:
        """Send the listing to the nodes that lack it, and wait until they know what else they lack."""
        lacking = [
            index
            for index in self._answers.asking(self._answers.indexes)
            if (request := self._answers[index].request) and request.fields["needs_listing"]
        ]
        payload = zlib.compress(self._tree.listing) if lacking else b""
        for index in lacking:
            self._answers[index].request = None
            self._sent_bytes += len(payload)
            self._session.send(index, messages.LISTING, payload)
        await self._answers.wait_for(lacking, lambda node: node.request)

    def _divide(self) -> tuple[list[int], dict[int, int]]:
        """Return the nodes that write, and for each other one the node that writes to the directory they share."""
        first: dict[str, int] = {}
        readers = {}
        for index in self._answers.asking(set(self._answers.indexes) - self._given_up):
            request = self._answers[index].request
            assert request is not None  # it asks
            writer = first.setdefault(request.fields["group"], index)
            if writer != index:
                readers[index] = writer
        return list(first.values()), readers

    def _has_placed(self, index: int) -> bool:
        answer = self._answers[index].answer
        return answer is not None and answer.kind == messages.PLACED

    # ---- sending ------------------------------------------------------------------------------------------------

    async def _serve(self, indexes: Sequence[int], *, is_writer: bool = True) -> None:
        """Send these nodes what they want until they have answered; those that only look get nothing."""
        for round_ in range(1, _ROUNDS + 1):
            asking = self._answers.asking(indexes)
            if not asking:
                return
            self._chains = []
            if is_writer:  # no chain in the last round: it may break
                await self._send_files(asking, may_chain=round_ < _ROUNDS)
            in_chains = {index for chain in self._chains for index in chain}
            for index in asking:
                self._answers[index].request = None
                self._session.send(index, messages.PLACE, is_writer=is_writer, is_in_chain=index in in_chains)
            await self._answers.wait_for(asking, lambda node: node.request)

    async def _send_files(self, indexes: Sequence[int], *, may_chain: bool) -> None:
        wanted = await asyncio.to_thread(self._collect, indexes)  # for many files and hosts it takes a while
        self._lacking.update(wanted)
        size = sum(self._entries[place].size for place in wanted)
        if may_chain and self._can_introduce and wanted:
            await self._make_chains(wanted)
        done = 0
        pieces = cut(wanted, self._entries, self._contents.open)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            self._session.doing = progress_words(done, size, len(indexes))
            receivers = self._choose_receivers(piece)
            await self._answers.wait_for(receivers, lambda node: _has_room(node.in_transit))
            for index, is_for_chain in receivers.items():
                self._send_piece(index, piece, is_for_chain=is_for_chain)
            done += piece.size_bytes
        self._session.doing = ""

    def _collect(self, indexes: Sequence[int]) -> dict[int, frozenset[int]]:
        """Return which nodes want an entry, by its place in the listing."""
        requests = {
            index: request.fields["content"]
            for index in indexes
            if (request := self._answers[index].request) is not None and any(request.fields["content"])
        }
        if requests and not self._entries:
            self._entries = listing.decode(self._tree.listing)
        return find_wanted(requests, self._entries)

    async def _make_chains(self, wanted: Mapping[int, frozenset[int]]) -> None:
        """Connect those nodes for which passing on saves the launch host the most, if that is worth it."""
        sizes = Counter[frozenset[int]]()
        for place, nodes in wanted.items():
            sizes[nodes] += self._entries[place].size
        common = max(sizes, key=lambda nodes: sizes[nodes] * (len(nodes) - 1))
        if is_worth_it(len(common), sizes[common]):
            self._chains = await self._introduce(sorted(common))
            self._can_introduce = bool(self._chains)

    async def _introduce(self, indexes: Sequence[int]) -> list[Chain]:
        """Connect these nodes in chains; return the chains all of whose nodes are connected.

        All of them get the tree's certificate and key; a node accepts nobody else.
        """
        answers = self._answers
        for index in indexes:
            answers[index].port = answers[index].has_joined = None  # of an earlier round
            self._session.send(index, messages.MEET, self._tree.pem, number=index)
        await answers.wait_for(indexes, lambda node: node.port is not None)
        chains = make_chains([index for index in indexes if answers[index].port and not answers.is_over(index)])
        for chain in chains:
            for index, following in zip(chain, [*chain[1:], None], strict=True):
                place = None if following is None else self._find_place(following)
                self._session.send(index, messages.JOIN, following=place, has_previous=index != chain[0])
        return [chain for chain in chains if await answers.are_connected(chain)]

    def _find_place(self, index: int) -> dict[str, Any]:
        """Return where the node before this one reaches it: at addr= alone, if the hostfile has it."""
        own = self._session.hosts[index].address
        addresses = [own] if own is not None else list(self._answers[index].addresses)
        return {"number": index, "addresses": addresses, "port": self._answers[index].port}

    def _choose_receivers(self, piece: Piece) -> dict[int, bool]:
        """Return to which nodes a piece is sent, and whether they pass it on.

        A chain that has lost a node gets no more; its nodes say what they lack, and are a new chain in the next round.
        """
        chains = [chain for chain in self._chains if piece.nodes.issuperset(chain)]
        whole = [chain for chain in chains if not any(map(self._answers.is_over, chain))]
        alone = piece.nodes.difference(*chains)
        return {**{chain[0]: True for chain in whole}, **dict.fromkeys(sorted(alone), False)}

    def _send_piece(self, index: int, piece: Piece, *, is_for_chain: bool) -> None:
        if self._answers.is_over(index):
            return
        self._answers[index].in_transit.append(len(piece.payload))
        self._sent_bytes += len(piece.payload)
        fields = {"parts": piece.parts, "is_packed": piece.is_packed, "is_for_chain": is_for_chain}
        self._session.send(index, messages.PIECE, piece.payload, **fields)

    # ---- the proof ----------------------------------------------------------------------------------------------

    def _conclude(self) -> Delivered:
        """Return what was delivered, and which of the nodes that aren't lost have not proved it."""
        findings: list[Finding] = []
        paths = {}
        for index in self._answers.indexes:
            if self._answers.is_lost(index):
                continue
            name, answer = self._session.hosts[index].name, self._answers[index].answer
            problem = _find_problem(self._tree, name, answer, is_check=self._is_check)
            if problem is not None:
                findings.append(problem)
            elif answer is not None:
                paths[index] = answer.fields["path"]
                findings += _find_warnings(self._tree, name, answer)
        return Delivered(paths, self._count_lacking(), self._sent_bytes, tuple(fold(findings)))

    def _count_lacking(self) -> int:
        """Return how many files some node lacked: each content is sent once; links count only if all files do."""
        contents = {self._entries[place].content for place in self._lacking}
        files = [entry for entry in self._entries if entry.kind != listing.LINK]
        lacking = sum(entry.content in contents for entry in files)
        return len(self._entries) if lacking == len(files) else lacking


def find_wanted(requests: Mapping[int, bytes], entries: Sequence[listing.Entry]) -> dict[int, frozenset[int]]:
    """Return which nodes want an entry, by its place in the listing; requests: a bit for each place, by node."""
    alike: dict[bytes, list[int]] = {}
    for index, bits in requests.items():
        alike.setdefault(bits, []).append(index)
    groups: dict[int, list[int]] = {}  # of those nodes, by their number in `alike`
    for number, bits in enumerate(alike):
        for place in range(min(len(entries), 8 * len(bits))):
            if bits[place // 8] >> place % 8 & 1 and entries[place].kind != listing.LINK:
                groups.setdefault(place, []).append(number)
    nodes = [frozenset(indexes) for indexes in alike.values()]
    join = cache(lambda numbers: frozenset().union(*(nodes[number] for number in numbers)))
    return {place: join(tuple(numbers)) for place, numbers in groups.items()}


def _has_room(in_transit: Sequence[int]) -> bool:
    return sum(in_transit) + messages.PIECE_BYTES <= messages.TREE_WINDOW_BYTES


# ---- what the nodes have said ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class NodeAnswers:
    """What one node has said."""

    request: Event | None = None  # its last WANTED that was not served
    answer: Event | None = None  # PLACED or UNPLACED: its last word
    addresses: Sequence[str] = ()  # where other nodes may reach it
    port: int | None = None  # there; 0: it can't have one
    has_joined: bool | None = None  # whether it is connected with its neighbours in a chain
    in_transit: list[int] = field(default_factory=list)  # sizes of pieces that it has not taken yet


class Answers:
    """What all nodes have said; it changes only while somebody waits for a session's events."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._nodes = [NodeAnswers() for _ in session.states]

    def __getitem__(self, index: int) -> NodeAnswers:
        """Return what the node with this index has said."""
        return self._nodes[index]

    @property
    def indexes(self) -> range:
        """The indexes of all nodes."""
        return range(len(self._nodes))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear the nodes while the block runs."""
        listeners: dict[str, Callable[[Event], object]] = {
            messages.WANTED: self._take_request,
            messages.TOOK: self._take_receipt,
            messages.MET: self._take_port,
            messages.JOINED: self._take_joining,
            messages.PLACED: self._take_answer,
            messages.UNPLACED: self._take_answer,
        }
        with contextlib.ExitStack() as stack:
            for kind, listener in listeners.items():
                stack.enter_context(self._session.subscribe(kind, listener))
            yield

    def is_lost(self, index: int) -> bool:
        """Return whether a node has failed; the session has the reason."""
        return self._session.states[index].failure is not None

    def is_over(self, index: int) -> bool:
        """Return whether nothing more will come from a node."""
        return self._nodes[index].answer is not None or self.is_lost(index)

    def asking(self, indexes: Iterable[int]) -> list[int]:
        """Return which of these nodes want something."""
        return [index for index in indexes if self._nodes[index].request and not self.is_over(index)]

    async def wait_for(self, indexes: Iterable[int], has_said: Callable[[NodeAnswers], object]) -> None:
        """Wait until each of these nodes has said something, or nothing more will come from it."""
        found = list(indexes)
        await self._session.pump(lambda: all(has_said(self._nodes[index]) or self.is_over(index) for index in found))

    async def are_connected(self, chain: Chain) -> bool:
        """Wait until these nodes have said whether they are connected with their neighbours; return whether all are."""
        nodes = [self._nodes[index] for index in chain]
        # One that can't is enough: its neighbours would wait for it for some seconds.
        await self.wait_for(
            chain, lambda node: node.has_joined is not None or any(each.has_joined is False for each in nodes)
        )
        return all(self._nodes[index].has_joined and not self.is_over(index) for index in chain)

    def _take_request(self, event: Event) -> None:
        self._nodes[event.index].request = event

    def _take_answer(self, event: Event) -> None:
        node = self._nodes[event.index]
        node.answer = node.answer or event

    def _take_receipt(self, event: Event) -> None:
        in_transit = self._nodes[event.index].in_transit
        if in_transit:
            in_transit.pop(0)

    def _take_port(self, event: Event) -> None:
        node = self._nodes[event.index]
        node.port, node.addresses = event.fields["port"] or 0, event.fields["addresses"]

    def _take_joining(self, event: Event) -> None:
        self._nodes[event.index].has_joined = event.fields["is_complete"]


# ---- chains, in which each node passes pieces on: the launch host sends each piece once ------------------------------


def is_worth_it(nodes: int, size_bytes: int) -> bool:
    """Tell whether to connect so many nodes if all of them need so many bytes."""
    return size_bytes * (nodes - 1) > WORTH_IT_BYTES


def make_chains(indexes: Sequence[int]) -> list[Chain]:
    """Return chains of about the same length; a node alone is none."""
    number = -(-len(indexes) // MOST_IN_CHAIN)
    ends = [place * len(indexes) // max(1, number) for place in range(number + 1)]
    chains = [tuple(indexes[begin:end]) for begin, end in pairwise(ends)]
    return [chain for chain in chains if len(chain) > 1]


# ---- what follows from the last words of the nodes -------------------------------------------------------------------


def _find_problem(tree: Tree, host: str, answer: Event | None, *, is_check: bool) -> Finding | None:
    """Return what is wrong with the code of a host; None if it has proved that it has this tree.

    answer: its last word; None if there was none. is_check: it was asked only to compare.
    """
    if answer is None:
        return Finding((host,), "no other host has filled the cache directory that it shares")
    fields = answer.fields
    if answer.kind == messages.UNPLACED:
        fix = f"free space there, or {_CACHE_FIX}" if fields["is_full"] else _CACHE_FIX
        return Finding((host,), fields["text"], fix if fields["is_disk"] else "")
    if fields["hash"] == tree.hash and fields["path"]:
        return None
    names = _name_some(fields["wrong"], fields["wrong_count"])
    if is_check:
        verb = "differs" if fields["wrong_count"] == 1 else "differ"
        text = f"{names} {verb} from what is here" if names else "no code was sent there yet"
        return Finding((host,), text, "send it: launch sync")
    return Finding((host,), f"its copy of {names} differs" if names else f"its code isn't {tree.name}", _DISK_FIX)


def _find_warnings(tree: Tree, host: str, answer: Event) -> Iterator[Finding]:
    """Yield what is doubtful about the code of a host that has the tree."""
    fields = answer.fields
    if fields["repaired"]:
        verb = "was" if len(fields["repaired"]) == 1 else "were"
        change = f"{_name_some(fields['repaired'])} had changed in the run's directory, and {verb} restored"
        yield Finding((host,), f"{change} (what was there is kept as NAME.replaced-...)", "", WARNING)
    if fields["extras"]:
        verbs = ("was", "is") if len(fields["extras"]) == 1 else ("were", "are")
        text = "{0} {1} not sent, but {2} in the run's directory and can be imported"
        text = text.format(_name_some(fields["extras"]), *verbs)
        yield Finding((host,), text, "", WARNING)
    for link in tree.links:
        if link.is_filled and link.name in fields["empty"]:
            fix = f"copy the files there, or link another directory: --link {link.name}=DIR"
            text = f"{link.target} is empty; here {link.name}/ has files, which aren't sent"
            yield Finding((host,), text, fix, WARNING)
        if link.name in fields["moved"]:
            text = f"can't make {link.target}, so {link.name}/ is ~{link.target.removeprefix(tree.home)} there"
            yield Finding((host,), text, f"for another directory, pass --link {link.name}=DIR", WARNING)
        if link.name in fields["unmade"]:
            text = f"can't make {link.target}, so {link.name}/ stays in this run's copy of the code"
            yield Finding((host,), text, f"link another directory: --link {link.name}=DIR", WARNING)


def _name_some(paths: Sequence[str], total: int = 0) -> str:
    """Return `a.py, b.py and c.py`, or `a.py, b.py, c.py and 7 more`; total: if not all are among these."""
    if not paths:
        return ""
    more = max(total, len(paths)) - _MOST_NAMES
    return listed([*paths[:_MOST_NAMES], *([f"{more} more"] if more > 0 else [])])
