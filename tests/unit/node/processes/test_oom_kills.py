"""What the kernel's counter and its log say of a process that was killed, from a tree of files like /."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.node.processes.oom_kills import CERTAIN, PROBABLE, OomKills

PID = 25315
NAMED = "6,5610,8173463617,-;Memory cgroup out of memory: Killed process {} (python3) total-vm:68520kB\n"
SUMMED_UP = "6,5609,8173463614,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/x,task=python3,pid={},uid=0\n"


class Machine:
    """A tree of files that the kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        self.count(7)

    def count(self, number: int) -> None:
        """Write the counter among others that only look like it."""
        (self.root / "proc/vmstat").write_text(f"oom 9\nlow 0\noom_kill {number}\noom_group_kill 5\n")

    def open_log(self, namespace: str = "pid:[4026531836]") -> None:
        (self.root / "dev").mkdir()
        (self.root / "dev/kmsg").write_text(NAMED.format(PID))  # from before the run
        (self.root / "proc/self/ns").mkdir(parents=True)
        (self.root / "proc/self/ns/pid").symlink_to(namespace)

    def log(self, text: str) -> None:
        with (self.root / "dev/kmsg").open("a") as file:
            file.write(text)

    def watch(self) -> OomKills:
        return OomKills(str(self.root))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_counter_makes_it_probable(machine: Machine) -> None:
    kills = machine.watch()
    assert kills.judge(PID) is None
    machine.count(8)
    assert (kills.judge(PID), kills.judge(PID + 1)) == (PROBABLE, None), "one kill explains one process"


def test_two_kills_explain_two_processes_whenever_they_are_looked_at(machine: Machine) -> None:
    kills = machine.watch()
    machine.count(8)
    kills.forget()
    assert kills.judge(PID) == PROBABLE
    kills.forget()
    machine.count(9)
    assert kills.judge(PID + 1) == PROBABLE


def test_what_happened_long_ago_is_forgotten(machine: Machine) -> None:
    kills = machine.watch()
    machine.count(8)
    kills.forget()
    assert machine.watch().judge(PID) is None, "it was before the process began"
    kills.forget()
    assert kills.judge(PID) is None
    machine.count(9)
    assert kills.judge(PID) == PROBABLE


@pytest.mark.parametrize("record", [NAMED, SUMMED_UP])
def test_the_log_names_the_process(machine: Machine, record: str) -> None:
    machine.open_log()
    kills = machine.watch()
    machine.log("6,1,1,-;Killed process x (y)\n" + record.format(PID + 1))
    assert kills.judge(PID) is None
    machine.log(record.format(PID) + "6,2,2,-;noise\n")
    assert (kills.judge(PID), kills.judge(PID + 1), kills.judge(1)) == (CERTAIN, CERTAIN, None)


def test_the_log_of_another_namespace_names_other_processes(machine: Machine) -> None:
    machine.open_log(namespace="pid:[4026532201]")
    kills = machine.watch()
    machine.log(NAMED.format(PID))
    assert kills.judge(PID) is None


@pytest.mark.parametrize(
    ("was_child", "verdict"),
    [(False, None), (True, PROBABLE)],  # the log names the child of a shell, not the shell that tells of it
)
def test_a_log_that_names_others_outweighs_the_counter(machine: Machine, was_child: bool, verdict: str | None) -> None:
    machine.open_log()
    kills = machine.watch()
    machine.count(8)
    machine.log(NAMED.format(PID + 1))
    assert kills.judge(PID, was_child=was_child) == verdict


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    assert OomKills(str(tmp_path)).judge(PID) is None
