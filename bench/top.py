"""Measure what it costs to watch GPUs: `launch top`, and the samples of a run that nobody looks at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.farm import Farm, farm
from bench.process_tree import cpu_seconds, find_tree
from bench.timing import Row
from bench.ways import LAUNCH

SETTLE_S = 6.0
WATCH_S = 40.0


def top() -> list[Row]:
    """Measure `launch top` with 2, 8 and 64 hosts, and an idle run with samples and without."""
    return [row for count in (2, 8, 64) for row in _watched(count)] + _idle(8)


def _watched(count: int) -> list[Row]:
    with farm(count) as hosts:
        argv = [*LAUNCH, "top", "--ssh-config", hosts.ssh_config, "--hosts", ",".join(hosts.names), "--json"]
        here, node = _measure(argv, count)
    detail = f"a sample each 2 s, over {WATCH_S:g} s"
    return [
        Row(f"launch top, {count} hosts, a host", node, "% of a core", 1.0, detail),
        Row(f"launch top, {count} hosts, here", here, "% of a core", 1.0 + 0.15 * count, detail),
    ]


def _idle(count: int) -> list[Row]:
    with farm(count) as hosts, tempfile.TemporaryDirectory() as folder:
        on, off = (_measure(_run(hosts, folder, *words), count) for words in ((), ("--no-samples",)))
    detail = f"with samples {{:.3f}}, without {{:.3f}} %, over {WATCH_S:g} s"
    return [
        Row(f"{count} idle hosts, samples, a host", on[1] - off[1], "% of a core", 0.1, detail.format(on[1], off[1])),
        Row(
            f"{count} idle hosts, samples, here, a host",
            (on[0] - off[0]) / count,
            "% of a core",
            0.1,
            detail.format(on[0] / count, off[0] / count),
        ),
    ]


def _run(hosts: Farm, folder: str, *words: str) -> Sequence[str | Path]:
    argv = [*LAUNCH, "--ssh-config", hosts.ssh_config, "--hosts", ",".join(hosts.names), "--no-python", *words]
    return [*argv, "--nproc", "1", "--log-dir", folder, "sh", "-c", "exec sleep 3600"]


def _measure(argv: Sequence[str | Path], count: int) -> tuple[float, float]:
    """Return what a command costs here and on a host, in percent of a core."""
    with _started(argv) as process:
        _await_hosts(process.pid, count)
        time.sleep(SETTLE_S)
        before, started = (cpu_seconds(process.pid), _cpu_of_hosts()), time.monotonic()
        time.sleep(WATCH_S)
        passed_s = time.monotonic() - started
        after = cpu_seconds(process.pid), _cpu_of_hosts()
    here, hosts = ((late - early) / passed_s * 100 for early, late in zip(before, after, strict=True))
    return here, hosts / count


@contextlib.contextmanager
def _started(argv: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    null = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _guardians() -> list[int]:
    """Return the programs of `launch` on all hosts, whose sshd are children of this process."""
    found: list[int] = []
    for pid in find_tree(os.getpid()):
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b'"~launch ' in words and words.startswith(b"python3") and parent not in found:
                found.append(pid)
    return found


def _cpu_of_hosts() -> float:
    return sum(map(cpu_seconds, _guardians()))


def _await_hosts(pid: int, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(_guardians()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(_guardians())} of {count} hosts were reached by process {pid}")
        time.sleep(0.2)
