"""How nodes are arranged in chains."""

from __future__ import annotations

import pytest

from launcher.sync.delivery import is_worth_it, make_chains


@pytest.mark.parametrize(
    ("nodes", "lengths"), [(0, []), (1, []), (2, [2]), (64, [64]), (65, [32, 33]), (1000, [62, 63] * 8)]
)
def test_chains_are_short_and_of_about_the_same_length(nodes: int, lengths: list[int]) -> None:
    chains = make_chains(range(nodes))
    assert [len(chain) for chain in chains] == lengths
    assert [index for chain in chains for index in chain] == list(range(sum(lengths)))


def test_connecting_is_worth_it_for_much_data_or_many_nodes() -> None:
    assert not is_worth_it(1, 1 << 30)
    assert not is_worth_it(8, 1 << 20)
    assert is_worth_it(2, 10 << 20)
    assert is_worth_it(64, 1 << 20)
