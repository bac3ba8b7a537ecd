"""Connect the nodes in chains, in which each passes pieces on: the launch host sends each piece once for a chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from launcher.node import messages
from launcher.session.session import Session
from launcher.sync.answers import Answers

Chain = tuple[int, ...]  # indexes of nodes, in order

MOST_IN_CHAIN = 64  # a piece takes some milliseconds, and half a round trip, from each node to the next
WORTH_IT_BYTES = 8_000_000  # that the launch host then doesn't send; at 1 Gbit/s the connecting takes as long


def is_worth_it(nodes: int, size_bytes: int) -> bool:
    """Tell whether to connect so many nodes if all of them need so many bytes."""
    return size_bytes * (nodes - 1) > WORTH_IT_BYTES


async def introduce(session: Session, answers: Answers, pem: bytes, indexes: Sequence[int]) -> list[Chain]:
    """Connect these nodes in chains; return the chains all of whose nodes are connected.

    pem: the certificate and key that all of them get; a node accepts nobody else.
    """
    for index in indexes:
        answers[index].port = answers[index].has_joined = None  # of an earlier round
        session.send(index, messages.MEET, pem, number=index)
    await answers.wait_for(indexes, lambda node: node.port is not None)
    chains = make_chains([index for index in indexes if answers[index].port and not answers.is_over(index)])
    for chain in chains:
        for index, following in zip(chain, [*chain[1:], None], strict=True):
            place = None if following is None else _find_place(session, answers, following)
            session.send(index, messages.JOIN, following=place, has_previous=index != chain[0])
    return [chain for chain in chains if await _is_connected(answers, chain)]


def make_chains(indexes: Sequence[int]) -> list[Chain]:
    """Return chains of about the same length; a node alone is none."""
    number = -(-len(indexes) // MOST_IN_CHAIN)
    ends = [place * len(indexes) // max(1, number) for place in range(number + 1)]
    chains = [tuple(indexes[begin:end]) for begin, end in pairwise(ends)]
    return [chain for chain in chains if len(chain) > 1]


async def _is_connected(answers: Answers, chain: Chain) -> bool:
    nodes = [answers[index] for index in chain]
    # One that can't is enough: its neighbours would wait for it for some seconds.
    await answers.wait_for(
        chain, lambda node: node.has_joined is not None or any(each.has_joined is False for each in nodes)
    )
    return all(answers[index].has_joined and not answers.is_over(index) for index in chain)


def _find_place(session: Session, answers: Answers, index: int) -> dict[str, Any]:
    """Return where the node before this one reaches it: at addr= alone, if the hostfile has it."""
    own = session.hosts[index].address
    addresses = [own] if own is not None else list(answers[index].addresses)
    return {"number": index, "addresses": addresses, "port": answers[index].port}
