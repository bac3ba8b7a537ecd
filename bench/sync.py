"""Measure how the code of a run gets to 8 hosts: unchanged, with one change, and new, against rsync in parallel."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from bench.farm import Farm, farm
from bench.timing import Row, Spent, median, run
from bench.ways import LAUNCH

HOSTS = 8
FILES = 10_000
LINES = 30  # of each file: about a kilobyte
LARGE_BYTES = 200_000_000
SMALL_BYTES = 20_000_000
REPEATS = 5
_PARTS = 4  # files that large trees consist of
_PIECE_BYTES = 1_000_000


def sync() -> list[Row]:
    """Measure 10,000 small files, and then large ones."""
    with farm(HOSTS) as hosts, tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        return [*_measure_many(hosts, Path(folder, "many")), *_measure_large(hosts, Path(folder, "large"))]


def _measure_many(hosts: Farm, tree: Path) -> list[Row]:
    random = Random(1)
    for number in range(FILES):
        path = tree / f"package{number // 100}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"def f{line}(): return {random.random()}\n" for line in range(LINES)))
    _commit(tree)
    _sync(hosts, tree)
    changed = tree / "package5" / "module500.py"

    def change() -> float:
        changed.write_text(f"{random.random()}\n")
        return _sync(hosts, tree).seconds

    same_s, changed_s = median(REPEATS, lambda: _sync(hosts, tree).seconds, change)
    return [
        Row(f"{FILES} unchanged files, {HOSTS} hosts", same_s, "s", 2.0, f"median of {REPEATS}"),
        Row(f"one of {FILES} files changed, {HOSTS} hosts", changed_s, "s", 2.5, f"median of {REPEATS}"),
    ]


def _measure_large(hosts: Farm, tree: Path) -> list[Row]:
    _fill(tree, SMALL_BYTES)
    memory = [_sync(hosts, tree).memory_mib]
    _fill(tree, LARGE_BYTES)

    def send() -> float:
        run([*_command(hosts, "clean"), "--code"])
        spent = _sync(hosts, tree)
        memory.append(spent.memory_mib)
        return spent.seconds

    def copy() -> float:
        shutil.rmtree(_copies(hosts), ignore_errors=True)
        return run(["sh", "-c", _rsync_line(hosts, tree)]).seconds

    ours, theirs = median(3, send, copy)
    grown = max(memory[1:]) - memory[0]
    detail = f"{ours:.1f} s against {theirs:.1f} s"
    return [
        Row(f"200 MB new to {HOSTS} hosts, launch / rsync", ours / theirs, "ratio", 1.2, detail),
        Row("memory that 200 MB take beyond 20 MB", grown, "MiB", 15.0, f"{max(memory):.0f} MiB in all"),
    ]


def _fill(tree: Path, size: int) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    for number in range(_PARTS):
        with (tree / f"weights{number}.bin").open("wb") as file:
            for _ in range(size // _PARTS // _PIECE_BYTES):  # a process begins with the memory of the one that forks it
                file.write(os.urandom(_PIECE_BYTES))
    _commit(tree)


def _commit(tree: Path) -> None:
    git = ["git", "-C", str(tree), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "bench"]):
        subprocess.run([*git, *words], check=True)


def _sync(hosts: Farm, tree: Path) -> Spent:
    return run([*_command(hosts, "sync"), "--sync-limit", "1GB", str(tree)])


def _command(hosts: Farm, name: str) -> Sequence[str]:
    # Without a port, all names of the farm look like this machine.
    places = ",".join(f"{host}:{hosts.port}" for host in hosts.names)
    return [*LAUNCH, name, "--ssh-config", str(hosts.ssh_config), "--hosts", places]


def _copies(hosts: Farm) -> Path:
    return hosts.ssh_config.parent / "copies"


def _rsync_line(hosts: Farm, tree: Path) -> str:
    calls = [
        f"rsync -a --mkpath -e 'ssh -F {hosts.ssh_config}' {tree}/ {name}:{_copies(hosts)}/{name}/ & pids=\"$pids $!\""
        for name in hosts.names
    ]
    return "\n".join([*calls, "for pid in $pids; do wait $pid || exit 1; done"])
