"""What a node says of its machine, its limits and its script, under the shell that ranks will have as well."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from node_process import Nodes

from launcher.job.facts import Checks
from launcher.node import messages
from launcher.node.facts import machine
from launcher.session.node_state import read_facts


def ask_checks(nodes: Nodes, rc_file: str = "", python: str | None = None, **wanted: object) -> Checks:
    how = {} if python is None else {"python": python}
    node = nodes.start(rc_file=rc_file, **how)
    node.prepare(facts=True, checks=True, **{"pythons": [], "gpus": False, **wanted})
    checks = read_facts(node.wait_for(messages.FACTS), str(node.folder)).checks
    assert checks is not None
    return checks


def test_what_the_system_s_own_tools_say(nodes: Nodes, any_python: str) -> None:
    checks = ask_checks(nodes, python=any_python)
    kib = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert checks.memory_free_mib is not None
    assert 0 < checks.memory_free_mib <= int(kib["MemTotal"].split()[0]) >> 10
    assert checks.shm_mib == int(df("/dev/shm", "size")) >> 20
    free_mib = checks.disks["/tmp"]
    assert free_mib is not None
    assert abs(free_mib - (int(df("/tmp", "avail")) >> 20)) < 1024  # others write meanwhile
    assert checks.script_hash is None


def df(path: str, column: str) -> str:
    argv = ["df", "--block-size=1", f"--output={column}", path]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]


def test_limits_are_those_of_the_login_shell(nodes: Nodes) -> None:
    checks = ask_checks(nodes, rc_file="ulimit -S -l 64; ")
    assert checks.memlock_kib == (None if has_ipc_lock() else 64)


def has_ipc_lock() -> bool:
    """Tell whether this limit is none for us, as for a root that was not stripped of it."""
    words = Path("/proc/self/status").read_text().split()
    return bool(int(words[words.index("CapEff:") + 1], 16) & 1 << 14)


def test_a_limit_of_locked_memory_is_none_for_who_may_lock_all(nodes: Nodes, tmp_path: Path) -> None:
    """setpriv takes the capability away, as docker does without --cap-add=IPC_LOCK."""
    if os.geteuid() != 0 or not has_ipc_lock():
        pytest.skip("this takes a root with CAP_IPC_LOCK: run these tests as root (docker: --cap-add=IPC_LOCK)")
    stripped = tmp_path / "python"
    stripped.write_text(f'#!/bin/sh\nexec setpriv --bounding-set=-ipc_lock {sys.executable} "$@"\n')
    stripped.chmod(0o755)
    limit = "ulimit -S -l 64; "
    assert ask_checks(nodes, rc_file=limit).memlock_kib is None
    assert ask_checks(nodes, rc_file=limit, python=str(stripped)).memlock_kib == 64


def test_a_script_is_known_by_its_contents(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"x")
    checks = ask_checks(nodes, workdir=str(tmp_path), script="train.py")
    assert checks.script_hash == hashlib.sha256(b"x").hexdigest()
    assert list(checks.disks) == [str(tmp_path), "/tmp"]


def test_what_can_not_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large script is hashed in part."""
    monkeypatch.setattr(machine, "_HASHED_BYTES", 10)
    (tmp_path / "train.py").write_bytes(b"x" * 11)
    assert machine.hash_file(str(tmp_path / "train.py")) == hashlib.sha256(b"x" * 10).hexdigest()
    assert machine.hash_file(str(tmp_path)) is machine.hash_file(str(tmp_path / "missing.py")) is None
    disks = machine.describe_machine("/nonexistent")["disks"]
    assert disks["/nonexistent"] is None and disks["/tmp"] is not None


CFS = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, inf),
        ({"cpu.max": "max 100000\n"}, inf),
        ({"cpu.max": "250000 100000\n"}, 2.5),
        (dict(zip(CFS, ("-1\n", "100000\n"), strict=True)), inf),
        (dict(zip(CFS, ("400000\n", "100000\n"), strict=True)), 4.0),
    ],
)
def test_the_quota_of_a_container(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.find_quota(str(tmp_path)) == quota
