"""Ranks on the CPUs beside their GPUs: this machine's CPUs, with the GPUs that the test says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.patience import DEADLINE_S

from launcher.node.processes import numa

FIRST, SECOND, *_ = [*sorted(os.sched_getaffinity(0)), -1, -1]
pytestmark = pytest.mark.skipif(SECOND < 0, reason="needs two CPUs")
SMI = """#!/bin/sh
case "$1" in --query-gpu=*)
    echo '0, H100, 81559, 580.1, GPU-{name}-0, 81000, Default, 0, 00000000:3B:00.0, Disabled, 30, Disabled'
    echo '1, H100, 81559, 580.1, GPU-{name}-1, 81000, Default, 0, 00010000:5E:00.0, Disabled, 30, Disabled';;
esac
"""
ADDRESSES = ("00000000:3B:00.0", "00010000:5E:00.0")
GPUS = [{"index": index, "bus_id": address} for index, address in enumerate(ADDRESSES)]
Put = Callable[..., None]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Let the kernel say which CPUs are beside each GPU."""
    monkeypatch.setattr(numa, "PCI_DEVICES", str(tmp_path))

    def put(*lists: str) -> None:
        for address, cpus in zip(("0000:3b:00.0", "10000:5e:00.0"), lists, strict=False):
            (tmp_path / address).mkdir()
            (tmp_path / address / "local_cpulist").write_text(f"{cpus}\n")

    return put


@pytest.fixture
def two_cpus() -> object:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {FIRST, SECOND})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize(
    ("lists", "indexes", "cpus"),
    [
        ((f"{FIRST},1000-1063", f"{SECOND},1064-1127"), [0, 1], [{FIRST}, {SECOND}]),
        ((f"{FIRST},1000-1063", f"{SECOND},1064-1127"), [1, 0, 1], [{SECOND}, {FIRST}, {SECOND}]),
        ((f"{FIRST}", f"{SECOND}"), [0], []),  # the data loaders of one rank may need both
        ((f"{FIRST}", f"{FIRST}"), [0, 1], []),  # the other socket has no GPU
        ((f"{FIRST}", f"{SECOND}"), [0, None], []),  # a MIG device
        ((f"{FIRST}-1000",), [0], [{FIRST, SECOND}]),  # one NUMA node
        ((f"{FIRST}", ""), [0, 1], []),
        ((), [0, 1], []),
    ],
)
def test_the_cpus_of_each_rank(put: Put, lists: list[str], indexes: list[int | None], cpus: list[set[int]]) -> None:
    put(*lists)
    assert numa.choose_cpus(indexes, GPUS) == cpus


@pytest.mark.usefixtures("two_cpus")
def test_a_rank_is_bound_with_what_it_starts(put: Put) -> None:
    put(str(FIRST), str(SECOND))
    cpus = numa.choose_cpus([0, 1], GPUS)
    script = "sleep 300 & echo $!; read go; sleep 300 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdin=-1, stdout=-1, text=True) as rank:
        assert rank.stdin is not None and rank.stdout is not None
        children = [int(rank.stdout.readline())]
        numa.bind(rank.pid, cpus[1])
        rank.stdin.write("go\n")
        rank.stdin.flush()
        children.append(int(rank.stdout.readline()))
        assert [os.sched_getaffinity(pid) for pid in (rank.pid, *children)] == [{SECOND}] * 3
        for child in children:
            os.kill(child, 9)
    numa.bind(rank.pid, cpus[0])  # it has exited


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: it puts other devices into /sys")
@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize(("options", "cpus"), [((), [FIRST, SECOND]), (("--no-numa",), [f"{FIRST}-{SECOND}"] * 2)])
def test_a_run_on_gpus_at_two_sockets(put: Put, tmp_path: Path, options: list[str], cpus: list[object]) -> None:
    put(str(FIRST), str(SECOND))
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI.format(name=tmp_path.name))
    tool.chmod(0o755)
    script = f'mount --bind {tmp_path} /sys/bus/pci/devices && exec "$@"'
    looks = "for look in $(seq 100); do sleep 0.02; grep -q '^Cpus_allowed_list:.*[-,]' /proc/$$/status || break; done"
    shows = f"{looks}; sed -n 's/^Cpus_allowed_list:/'$RANK/p /proc/$$/status"
    argv = [sys.executable, "-m", "launcher", "singlenode", *options, "--no-python", "sh", "-c", shows]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *argv], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = dict(line.partition("] ")[2].split() for line in done.stdout.splitlines())
    assert found == {"0": str(cpus[0]), "1": str(cpus[1])}, done
