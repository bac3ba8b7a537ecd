"""What the kernel's counters and its log say of a process that was killed, from a tree of files like /."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.node.processes.oom_kills import CERTAIN, PROBABLE, OomKills

PID = 25315
V2 = "0::/user.slice/session-3.scope\n"
V2_FILE = "sys/fs/cgroup/user.slice/session-3.scope/memory.events"
V1 = "9:name=systemd:/x\n4:memory:/docker/7f\n0::/\n"
V1_FILE = "sys/fs/cgroup/memory/docker/7f/memory.oom_control"
NAMED = "6,5610,8173463617,-;Memory cgroup out of memory: Killed process {} (python3) total-vm:68520kB\n"
SUMMED_UP = "6,5609,8173463614,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/x,task=python3,pid={},uid=0\n"


class Machine:
    """A tree of files that the kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count("proc/vmstat", 7)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def count(self, path: str, number: int) -> None:
        """Write a counter among others that only look like it."""
        self.write(path, f"oom 9\nlow 0\noom_kill {number}\noom_group_kill 5\noom_kill_disable 3\n")

    def open_log(self, text: str = "", namespace: str = "pid:[4026531836]") -> None:
        self.write("dev/kmsg", NAMED.format(PID) + text)  # the first one is from before the run
        (self.root / "proc/self/ns").mkdir(parents=True)
        (self.root / "proc/self/ns/pid").symlink_to(namespace)

    def log(self, text: str) -> None:
        with (self.root / "dev/kmsg").open("a") as file:
            file.write(text)

    def watch(self, group: str, pid: int = PID) -> OomKills:
        self.write(f"proc/{pid}/cgroup", group)
        kills = OomKills(str(self.root))
        kills.watch(pid)
        return kills


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("group", "file", "verdict"),
    [
        (V2, V2_FILE, CERTAIN),
        (V1, V1_FILE, CERTAIN),
        ("0::/\n", "sys/fs/cgroup/memory.events", CERTAIN),  # in a container with a namespace of groups
        (V2, "sys/fs/cgroup/user.slice/memory.events", PROBABLE),  # the next one up counts others' processes too
        ("0::/docker/7f\n", "sys/fs/cgroup/memory.events", PROBABLE),  # in a container without
        (V1, "sys/fs/cgroup/memory/memory.oom_control", PROBABLE),
        ("4:memory:/\n", "sys/fs/cgroup/memory/memory.oom_control", PROBABLE),  # that is the whole machine
    ],
)
def test_the_counter_of_the_control_group(machine: Machine, group: str, file: str, verdict: str) -> None:
    machine.count(file, 3)
    kills = machine.watch(group)
    assert kills.judge(PID) is None
    machine.count(file, 4)
    assert kills.judge(PID) == verdict


def test_one_kill_explains_one_process(machine: Machine) -> None:
    """Of several in one group nobody knows which one it was."""
    machine.count(V2_FILE, 3)
    kills = machine.watch(V2)
    machine.write(f"proc/{PID + 1}/cgroup", V2)
    kills.watch(PID + 1)
    machine.count(V2_FILE, 4)
    machine.count("proc/vmstat", 8)
    assert (kills.judge(PID), kills.judge(PID + 1)) == (PROBABLE, None)


def test_two_kills_explain_two_processes_whenever_they_are_looked_at(machine: Machine) -> None:
    machine.count(V2_FILE, 0)
    kills = machine.watch(V2)
    machine.write(f"proc/{PID + 1}/cgroup", V2)
    kills.watch(PID + 1)
    machine.count(V2_FILE, 1)
    kills.forget()
    assert kills.judge(PID) == PROBABLE
    kills.forget()
    machine.count(V2_FILE, 2)
    assert kills.judge(PID + 1) == PROBABLE


def test_a_kill_before_the_process_began_explains_nothing(machine: Machine) -> None:
    machine.count(V2_FILE, 9)
    assert machine.watch(V2).judge(PID) is None


@pytest.mark.parametrize("record", [NAMED, SUMMED_UP])
def test_the_log_names_the_process(machine: Machine, record: str) -> None:
    machine.open_log()
    kills = machine.watch(V2)
    machine.log("6,1,1,-;Killed process x (y)\n" + record.format(PID + 1))
    assert kills.judge(PID) is None
    machine.log(record.format(PID) + "6,2,2,-;noise\n")
    assert (kills.judge(PID), kills.judge(PID + 1), kills.judge(1)) == (CERTAIN, CERTAIN, None)


def test_the_log_of_another_namespace_names_other_processes(machine: Machine) -> None:
    machine.open_log(namespace="pid:[4026532201]")
    kills = machine.watch(V2)
    machine.log(NAMED.format(PID))
    assert kills.judge(PID) is None


def test_the_counter_of_the_machine_makes_it_probable(machine: Machine) -> None:
    kills = machine.watch(V2)
    machine.count("proc/vmstat", 8)
    assert kills.judge(PID) == PROBABLE


def test_a_log_that_names_others_speaks_against_it(machine: Machine) -> None:
    machine.open_log()
    kills = machine.watch(V2)
    machine.count("proc/vmstat", 8)
    assert kills.judge(PID) is None


@pytest.mark.parametrize(
    ("was_child", "verdict"),
    [(False, None), (True, CERTAIN)],  # the log names the child of a shell, not the shell that tells of it
)
def test_a_log_that_names_others_outweighs_the_group(machine: Machine, was_child: bool, verdict: str | None) -> None:
    machine.open_log()
    machine.count(V2_FILE, 3)
    kills = machine.watch(V2)
    machine.count(V2_FILE, 4)
    machine.log(NAMED.format(PID + 1))
    assert kills.judge(PID, was_child=was_child) == verdict


def test_a_helper_that_the_kernel_killed_an_hour_ago_explains_nothing(machine: Machine) -> None:
    machine.count(V2_FILE, 3)
    kills = machine.watch(V2)
    machine.count(V2_FILE, 4)
    machine.count("proc/vmstat", 8)
    for _ in range(240):
        kills.forget()
    assert kills.judge(PID) is None
    machine.count(V2_FILE, 5)
    assert kills.judge(PID) == CERTAIN


def test_what_happened_on_the_machine_long_ago_is_forgotten(machine: Machine) -> None:
    kills = machine.watch(V2)
    machine.count("proc/vmstat", 8)
    kills.forget()
    assert kills.judge(PID) == PROBABLE
    kills.forget()
    assert kills.judge(PID) is None


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    kills = OomKills(str(tmp_path))
    kills.watch(PID)
    assert kills.judge(PID) is None


@pytest.mark.parametrize("group", ["", "\n", "nonsense\n", "0::\n", "4:memory\n", "\udcff"])
def test_a_group_in_another_form_is_no_error(machine: Machine, group: str) -> None:
    (machine.root / f"proc/{PID}").mkdir(parents=True)
    (machine.root / f"proc/{PID}/cgroup").write_bytes(group.encode("utf-8", "surrogateescape"))
    kills = OomKills(str(machine.root))
    kills.watch(PID)
    assert kills.judge(PID) is None
