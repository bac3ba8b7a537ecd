"""Bring the code of a run to all nodes of a session, over the connections that are open, and take their proof."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.job.tree import Tree
from launcher.node import messages
from launcher.node.code import listing
from launcher.preflight.findings import Finding, fold
from launcher.session.session import Session
from launcher.sync.answers import Answers
from launcher.sync.code_messages import progress_words
from launcher.sync.contents import Contents
from launcher.sync.introduction import Chain, introduce, is_worth_it
from launcher.sync.pieces import Piece, cut
from launcher.sync.proofs import find_problem, find_warnings

_ROUNDS = 3  # of pieces: what was missing; what is damaged, or a lost host has not passed on; and once more


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
        wanted = self._collect(indexes)
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
        wanted: dict[int, set[int]] = {}
        for index in indexes:
            request = self._answers[index].request
            bits = request.fields["content"] if request is not None else b""
            if not any(bits):
                continue
            self._entries = self._entries or listing.decode(self._tree.listing)
            for place in range(min(len(self._entries), 8 * len(bits))):
                if bits[place // 8] >> place % 8 & 1 and self._entries[place].kind != listing.LINK:
                    wanted.setdefault(place, set()).add(index)
        return {place: frozenset(nodes) for place, nodes in wanted.items()}

    async def _make_chains(self, wanted: Mapping[int, frozenset[int]]) -> None:
        """Connect those nodes for which passing on saves the launch host the most, if that is worth it."""
        sizes = Counter[frozenset[int]]()
        for place, nodes in wanted.items():
            sizes[nodes] += self._entries[place].size
        common = max(sizes, key=lambda nodes: sizes[nodes] * (len(nodes) - 1))
        if is_worth_it(len(common), sizes[common]):
            self._chains = await introduce(self._session, self._answers, self._tree.pem, sorted(common))
            self._can_introduce = bool(self._chains)

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
            problem = find_problem(self._tree, name, answer, is_check=self._is_check)
            if problem is not None:
                findings.append(problem)
            elif answer is not None:
                paths[index] = answer.fields["path"]
                findings += find_warnings(self._tree, name, answer)
        return Delivered(paths, self._count_lacking(), self._sent_bytes, tuple(fold(findings)))

    def _count_lacking(self) -> int:
        """Return how many files some node lacked: each content is sent once; links count only if all files do."""
        contents = {self._entries[place].content for place in self._lacking}
        files = [entry for entry in self._entries if entry.kind != listing.LINK]
        lacking = sum(entry.content in contents for entry in files)
        return len(self._entries) if lacking == len(files) else lacking


def _has_room(in_transit: Sequence[int]) -> bool:
    return sum(in_transit) + messages.PIECE_BYTES <= messages.TREE_WINDOW_BYTES
