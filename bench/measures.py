"""The measures of the launcher, what each is compared with, and the names of all measures."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.detached import detached
from bench.ends import ends
from bench.farm import farm
from bench.restarts import restarts
from bench.start import checks, first_all_reduce, warm_start
from bench.sync import sync
from bench.timing import Row, compare_turns, run, spread_of, take_turns
from bench.top import top
from bench.training import scaling, trainer
from bench.transports import transports
from bench.ways import LAUNCH


def help_time() -> list[Row]:
    """Measure `launch --help`."""
    (seconds,) = take_turns(11, lambda: run([*LAUNCH, "--help"]).seconds)
    spread = spread_of(seconds)
    return [Row("launch --help", statistics.median(seconds), "s", 0.2, "median of 11", spread=spread)]


def flood() -> list[Row]:
    """Measure 4 hosts with 8 million lines in all, prefixed, shown and logged, against pdsh."""
    memory: list[float] = []
    with farm(4) as hosts, tempfile.TemporaryDirectory() as folder:
        names = ",".join(hosts.names)
        output = Path(folder) / "shown"

        def ours() -> float:
            argv = [*LAUNCH, "--ssh-config", hosts.ssh_config, "--hosts", names, "--no-python", "--nproc", "1"]
            spent = run([*argv, "--log-dir", Path(folder) / "logs", "seq", "1", "2000000"], output=output)
            memory.append(spent.memory_mib)
            _check_lines(output, 8_000_000)
            return spent.seconds

        def pdsh() -> float:
            spent = run(["pdsh", "-w", names, "seq", "1", "2000000"], env=hosts.ssh_environment(), output=output)
            _check_lines(output, 8_000_000)
            return spent.seconds

        launch_s, pdsh_s = take_turns(3, ours, pdsh)
    return [
        compare_turns("8 million lines / pdsh", launch_s, pdsh_s, 0.2),
        Row("8 million lines, memory", max(memory), "MiB", 100, "the launcher's peak", spread=spread_of(memory)),
    ]


def _check_lines(path: Path, wanted: int) -> None:
    with path.open("rb") as file:
        found = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    if found != wanted:
        raise RuntimeError(f"{found} lines, want {wanted}")


def idle() -> list[Row]:
    """Measure the launcher's CPU over half a minute with 64 idle hosts, after connecting."""
    with farm(64) as hosts, tempfile.TemporaryDirectory() as logs:
        argv = [*LAUNCH, "--ssh-config", hosts.ssh_config, "--hosts", ",".join(hosts.names), "--no-python"]
        argv += ["--nproc", "1", "--log-dir", logs, "sh", "-c", "echo ready; exec sleep 600"]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        for _ in hosts.names:
            process.stdout.readline()
        time.sleep(3)  # until the start is over
        before, started = _cpu_seconds(process.pid), time.monotonic()
        time.sleep(30)
        percent = (_cpu_seconds(process.pid) - before) / (time.monotonic() - started) * 100
        process.send_signal(signal.SIGINT)
        process.communicate()
    return [Row("64 idle hosts", percent, "% of a core", 0.65, "over 30 s")]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def many_hosts() -> list[Row]:
    """Measure a command that does nothing on 128 hosts, against pdsh, and the client's CPU per host."""
    cpu: list[float] = []
    with farm(128) as hosts:
        names = ",".join(hosts.names)

        def ours() -> float:
            spent = run([*LAUNCH, "exec", "--ssh-config", hosts.ssh_config, "--hosts", names, "--", "true"])
            cpu.append(spent.cpu_seconds)
            return spent.seconds

        launch_s, pdsh_s = take_turns(
            5, ours, lambda: run(["pdsh", "-f", "128", "-w", names, "true"], env=hosts.ssh_environment()).seconds
        )
    cpu_ms = [seconds / 128 * 1000 for seconds in cpu]
    detail = "start of Python included"
    return [
        compare_turns("128 hosts, exec true / pdsh", launch_s, pdsh_s, 0.6),
        Row("128 hosts, client CPU", statistics.median(cpu_ms), "ms a host", 8, detail, spread=spread_of(cpu_ms)),
    ]


MEASURES: dict[str, tuple[Callable[[], list[Row]], tuple[str, ...]]] = {
    "help": (help_time, ()),
    "first-all-reduce": (first_all_reduce, ("sshd", "ssh")),
    "checks": (checks, ("sshd",)),
    "start": (warm_start, ("sshd", "ssh")),
    "ends": (ends, ("sshd",)),
    "restarts": (restarts, ("sshd",)),
    "detached": (detached, ("sshd",)),
    "sync": (sync, ("sshd", "ssh", "git", "rsync")),
    "flood": (flood, ("sshd", "ssh", "pdsh")),
    "idle": (idle, ("sshd",)),
    "top": (top, ("sshd",)),
    "many-hosts": (many_hosts, ("sshd", "ssh", "pdsh")),
    "transports": (transports, ("sshd", "ssh", "pdsh")),
    "scaling": (scaling, ()),
    "trainer": (trainer, ()),
}


def missing_programs(wanted: Sequence[str]) -> list[str]:
    """Return the programs that are not installed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    return [name for name in wanted if shutil.which(name, path=path) is None]


def parse_names(words: Sequence[str]) -> list[str]:
    """Return the requested measures, or all if none was named."""
    unknown = [word for word in words if not re.fullmatch("|".join(MEASURES), word)]
    if unknown:
        raise SystemExit(f"bench: no measure {unknown[0]!r}; there are {', '.join(MEASURES)}")
    return list(words) or list(MEASURES)
