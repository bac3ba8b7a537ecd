"""What the kernel's counter says of a process that was killed, from a tree of files like /."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.node.processes.oom_kills import PROBABLE, OomKills


class Machine:
    """A tree of files that the kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        self.count(7)

    def count(self, number: int) -> None:
        """Write the counter among others that only look like it."""
        (self.root / "proc/vmstat").write_text(f"oom 9\nlow 0\noom_kill {number}\noom_group_kill 5\n")

    def watch(self) -> OomKills:
        return OomKills(str(self.root))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_counter_makes_it_probable(machine: Machine) -> None:
    kills = machine.watch()
    assert kills.judge() is None
    machine.count(8)
    assert (kills.judge(), kills.judge()) == (PROBABLE, None), "one kill explains one process"


def test_two_kills_explain_two_processes_whenever_they_are_looked_at(machine: Machine) -> None:
    kills = machine.watch()
    machine.count(8)
    kills.forget()
    assert kills.judge() == PROBABLE
    kills.forget()
    machine.count(9)
    assert kills.judge() == PROBABLE


def test_what_happened_long_ago_is_forgotten(machine: Machine) -> None:
    kills = machine.watch()
    machine.count(8)
    kills.forget()
    assert machine.watch().judge() is None, "it was before the process began"
    kills.forget()
    assert kills.judge() is None
    machine.count(9)
    assert kills.judge() == PROBABLE


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    assert OomKills(str(tmp_path)).judge() is None
