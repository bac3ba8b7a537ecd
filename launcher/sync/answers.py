"""What the nodes of a delivery have said, from the events of their session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from launcher.node import messages
from launcher.session.connection import Event
from launcher.session.session import Session


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
