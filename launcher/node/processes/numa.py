"""Let each rank run on the CPUs beside its GPU, as `numactl` does.

Memory is then taken there as well: pinned pages beside another GPU's CPUs reach this one at half of the speed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Sequence

from launcher.node.system import read_text

PCI_DEVICES = "/sys/bus/pci/devices"


def choose_cpus(indexes: Sequence[int | None], gpus: Sequence[dict[str, Any]]) -> list[set[int]]:
    """Return the CPUs of each local rank: none if they aren't known of all ranks, or if some CPU would be left idle.

    The latter is so where all GPUs are at one of two sockets, whose data loaders then need both, and on machines with
    more NUMA nodes than those that have GPUs. indexes: the GPU of each local rank; gpus: all of this node, as it has
    reported them.
    """
    addresses = {gpu["index"]: gpu.get("bus_id", "") for gpu in gpus}
    near = [_read_cpus(addresses.get(index, "")) for index in indexes]
    allowed = os.sched_getaffinity(0)
    return [cpus & allowed for cpus in near] if allowed <= set().union(*near) else []


def move_near(bus_id: str | None) -> int | None:
    """Let this thread run on the CPUs beside a GPU, if it may use any; return their NUMA node, None if it isn't known.

    bus_id: the GPU's, None if it isn't known.
    """
    if bus_id is None:
        return None
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _read_cpus(bus_id) & allowed or allowed)
    node = read_text("%s/%s/numa_node" % (PCI_DEVICES, bus_id.lower()[4:])).strip()
    return int(node) if node.isdigit() else None  # -1: the machine has one


def bind(pid: int, cpus: set[int]) -> None:
    """Bind a rank that has just started, and what it has already started; what it starts later inherits that."""
    with suppress(OSError):  # it has exited, or a cpuset has other CPUs meanwhile
        for task in os.listdir("/proc/%d/task" % pid):
            os.sched_setaffinity(int(task), cpus)
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                for child in file.read().split():
                    bind(int(child), cpus)


def _read_cpus(bus_id: str) -> set[int]:
    """Return the CPUs beside a GPU, whose address nvidia-smi writes as 00000000:3B:00.0; none if they aren't known."""
    domain, _, place = bus_id.lower().partition(":")
    cpus: set[int] = set()
    with suppress(ValueError):  # also of an empty text, where there is no such file
        for part in read_text("%s/%04x:%s/local_cpulist" % (PCI_DEVICES, int(domain, 16), place)).strip().split(","):
            first, _, last = part.partition("-")  # 0-15,32-47
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus
