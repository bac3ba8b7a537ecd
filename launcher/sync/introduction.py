"""Connect the nodes with each other, so that they pass pieces on and the launch host sends each only once."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.node import messages
from launcher.session.session import Session
from launcher.sync.answers import Answers

MOST_PEERS = 64  # each is connected with all others
WORTH_IT_BYTES = 8_000_000  # that the launch host then doesn't send; at 1 Gbit/s the connecting takes as long


def is_worth_it(nodes: int, size_bytes: int) -> bool:
    """Tell whether to connect so many nodes if all of them need so many bytes."""
    return 1 < nodes <= MOST_PEERS and size_bytes * (nodes - 1) > WORTH_IT_BYTES


async def introduce(session: Session, answers: Answers, pem: bytes, indexes: Sequence[int]) -> bool:
    """Connect these nodes, each with all others; return whether that was possible.

    pem: the certificate and key that all of them get; a node accepts nobody else.
    """
    for index in indexes:
        session.send(index, messages.MEET, pem, number=index)
    await answers.wait_for(indexes, lambda node: node.port is not None)
    peers = [
        {"number": index, "addresses": _find_addresses(session, answers, index), "port": answers[index].port}
        for index in indexes
    ]
    if not all(peer["port"] for peer in peers):
        return False
    for index in indexes:
        session.send(index, messages.JOIN, peers=[peer for peer in peers if peer["number"] != index])
    joined = [answers[index] for index in indexes]
    await answers.wait_for(
        indexes, lambda node: node.has_joined is not None or any(each.has_joined is False for each in joined)
    )
    return all(answers[index].has_joined and not answers.is_over(index) for index in indexes)


def _find_addresses(session: Session, answers: Answers, index: int) -> list[str]:
    """Return where other nodes reach this one: at addr= alone, if the hostfile has it."""
    own = session.hosts[index].address
    return [own] if own is not None else list(answers[index].addresses)
