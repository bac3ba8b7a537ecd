"""Who takes whose place."""

from __future__ import annotations

import pytest

from launcher.hosts.host import Host
from launcher.runs.lineup import Lineup


def make(hosts: str, spares: str = "", min_nodes: int | None = None) -> Lineup:
    return Lineup([Host(name) for name in hosts.split()], [Host(name) for name in spares.split()], min_nodes)


def shown(lineup: Lineup) -> tuple[str, str]:
    return " ".join(host.name for host in lineup.hosts), " ".join(host.name for host in lineup.spares)


def test_a_spare_takes_the_node_rank_of_the_host_that_failed() -> None:
    lineup = make("a b c", "x y")
    assert lineup.replace(["a"]) == ["x takes the place of a"]
    assert shown(lineup) == ("x b c", "y a")


def test_a_host_goes_to_the_end_of_the_line_and_may_come_back() -> None:
    lineup = make("a b", "x")
    lineup.replace(["b"])
    lineup.note_start()
    assert lineup.replace(["x"]) == ["b takes the place of x"]
    assert shown(lineup) == ("a b", "x")


def test_without_spares_a_host_keeps_its_place() -> None:
    lineup = make("a b")
    assert lineup.replace(["a"]) == []
    assert shown(lineup) == ("a b", "")


def test_a_spare_that_has_not_failed_comes_first() -> None:
    lineup = make("a b", "x y")
    lineup.replace(["a"])
    assert lineup.replace(["x"]) == ["y takes the place of x"]
    assert not lineup.can_replace(["y"])
    assert lineup.replace(["y"]) == ["a takes the place of y"]  # all have failed: the one that was out longest


def test_with_fewer_hosts() -> None:
    lineup = make("a b c", "x", min_nodes=2)
    assert lineup.can_replace(["a", "c"])
    assert lineup.replace(["a", "c"]) == ["x takes the place of a", "without c"]
    assert shown(lineup) == ("x b", "a c")
    assert not lineup.can_replace(["x"])
    lineup.replace(["x"])
    assert shown(lineup) == ("a b", "c x")  # never below two


def test_a_host_that_is_not_to_blame_is_replaced_but_never_missing() -> None:
    lineup = make("a b c", "x", min_nodes=2)
    assert lineup.replace(["a"], may_shrink=False) == ["x takes the place of a"]
    assert lineup.replace(["x"], may_shrink=False) == ["a takes the place of x"]
    assert make("a b c", min_nodes=2).replace(["b"], may_shrink=False) == []


def test_of_hosts_that_fail_together_some_may_stay() -> None:
    lineup = make("a b c", "x")
    assert not lineup.can_replace(["a", "b"])
    assert lineup.replace(["a", "b"]) == ["x takes the place of a"]
    assert shown(lineup) == ("x b c", "a")


@pytest.mark.parametrize("names", [[], ["other"]])
def test_nobody_is_to_be_replaced(names: list[str]) -> None:
    lineup = make("a b", "x")
    assert not lineup.can_replace(names)
    assert lineup.replace(names) == []
