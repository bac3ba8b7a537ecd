"""Who takes whose place."""

from __future__ import annotations

import pytest

from launcher.hosts.host import Host
from launcher.runs.hosts_and_spares import HostsAndSpares


def make(hosts: str, spares: str = "", min_nodes: int | None = None) -> HostsAndSpares:
    return HostsAndSpares([Host(name) for name in hosts.split()], [Host(name) for name in spares.split()], min_nodes)


def shown(line: HostsAndSpares) -> tuple[str, str]:
    return " ".join(host.name for host in line.hosts), " ".join(host.name for host in line.spares)


def test_a_spare_takes_the_node_rank_of_the_host_that_failed() -> None:
    line = make("a b c", "x y")
    assert line.replace(["a"]) == ["x takes the place of a"]
    assert shown(line) == ("x b c", "y a")


def test_a_host_goes_to_the_end_of_the_line_and_may_come_back() -> None:
    line = make("a b", "x")
    line.replace(["b"])
    line.note_start()
    assert line.replace(["x"]) == ["b takes the place of x"]
    assert shown(line) == ("a b", "x")


def test_without_spares_a_host_keeps_its_place() -> None:
    line = make("a b")
    assert line.replace(["a"]) == []
    assert shown(line) == ("a b", "")


def test_a_spare_that_has_not_failed_comes_first() -> None:
    line = make("a b", "x y")
    line.replace(["a"])
    assert line.replace(["x"]) == ["y takes the place of x"]
    assert not line.can_replace(["y"])
    assert line.replace(["y"]) == ["a takes the place of y"]  # all have failed: the one that was out longest


def test_with_fewer_hosts() -> None:
    line = make("a b c", "x", min_nodes=2)
    assert line.can_replace(["a", "c"])
    assert line.replace(["a", "c"]) == ["x takes the place of a", "without c"]
    assert shown(line) == ("x b", "a c")
    assert not line.can_replace(["x"])
    line.replace(["x"])
    assert shown(line) == ("a b", "c x")  # never below two


def test_a_host_that_is_not_to_blame_is_replaced_but_never_missing() -> None:
    line = make("a b c", "x", min_nodes=2)
    assert line.replace(["a"], may_shrink=False) == ["x takes the place of a"]
    assert line.replace(["x"], may_shrink=False) == ["a takes the place of x"]
    assert make("a b c", min_nodes=2).replace(["b"], may_shrink=False) == []


def test_of_hosts_that_fail_together_some_may_stay() -> None:
    line = make("a b c", "x")
    assert not line.can_replace(["a", "b"])
    assert line.replace(["a", "b"]) == ["x takes the place of a"]
    assert shown(line) == ("x b c", "a")


@pytest.mark.parametrize("names", [[], ["other"]])
def test_nobody_is_to_be_replaced(names: list[str]) -> None:
    line = make("a b", "x")
    assert not line.can_replace(names)
    assert line.replace(names) == []
