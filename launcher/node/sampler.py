"""What this node's GPUs and the node itself do now, read again and again in a child process.

The child is left alone if it hangs: a driver that hangs keeps it in state D, where nothing can end it, and killing a
reader of a GPU has frozen GPUs (github.com/NVIDIA/dcgm-exporter/issues/84). It ends by itself once nobody reads what it
writes. So the run neither waits for it nor counts it as a process of its own.
"""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import suppress
from typing import Any, Callable

from launcher.node import messages, nvml
from launcher.node.facts.gpus import follow_xids, list_processes
from launcher.node.loop import Loop, Timer
from launcher.node.processes import proc, workers
from launcher.node.system import boottime, is_in_container, read_rows

_HANGS_S = 15.0  # nvidia-smi needs 3 s for a GPU whose driver isn't loaded
_PROCESSES_S = 30.0  # between two looks for processes on the GPUs, each of which is a process itself
_NO_DEVICES = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "tun", "tap", "bond", "team")


class Sampler:
    """Sends a SAMPLED each time that the child has looked, and one that names the child if it hangs."""

    def __init__(
        self, loop: Loop, send: Callable[..., object], period_s: float, workdir: str, *, with_processes: bool
    ) -> None:
        """Start the child; raise OSError if that fails.

        send: takes the kind of a message and its fields; workdir: of whose disk the free space is told;
        with_processes: tell which are on the GPUs, too, now and then.
        """
        self._loop = loop
        self._send = send
        self._patience_s = max(_HANGS_S, 3 * period_s)
        self._rest = b""
        self._why_ended: str | None = None
        self._fd, write_end = os.pipe()
        try:
            pid = workers.fork(0)
        except OSError:
            os.close(self._fd)
            os.close(write_end)
            raise
        if pid == 0:
            _sample_until_unread(write_end, period_s, workdir, with_processes=with_processes)
        os.close(write_end)
        self.process = proc.read_process(pid)
        self._timer: Timer | None = self._loop.call_later(self._patience_s, self._tell_silence)
        self._loop.watch(self._fd, self._read)

    def end(self) -> None:
        """Read no more, so that the child ends; don't wait for that."""
        self._loop.cancel(self._timer)
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        data = os.read(self._fd, 1 << 16)
        if not data:
            self.end()
            self._why_ended = self._why_ended or "what reads its GPUs has ended"
            self._tell_silence()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            values = json.loads(line.decode())
            self._why_ended = values["error"] if values["host"] is None else None
            self._send(messages.SAMPLED, **values)
        if lines:
            self._loop.cancel(self._timer)
            self._timer = self._loop.call_later(self._patience_s, self._tell_silence)

    def _tell_silence(self) -> None:
        now = proc.read_process(self.process.pid) if self.process is not None else None
        which = " (process %d, state %s)" % (now.pid, now.state) if now is not None else ""
        text = self._why_ended or "what reads its GPUs hangs" + which
        self._send(messages.SAMPLED, host=None, gpus=[], error=text)
        self._timer = self._loop.call_later(self._patience_s, self._tell_silence)


def _sample_until_unread(fd: int, period_s: float, workdir: str, *, with_processes: bool) -> None:
    """Write a line of JSON for each look, the first one at once; this never returns."""
    try:
        workers.drop_descriptors(fd)
        unread = select.poll()
        unread.register(fd, 0)  # POLLERR when no reader is left
        gpus: list[nvml.Gpu] = []
        with suppress(nvml.NvmlError):
            gpus = nvml.list_gpus()
        host = HostReader(workdir)
        due = processes_due = time.monotonic()
        while True:
            samples = [gpu.sample(index) for index, gpu in enumerate(gpus)]
            values: dict[str, Any] = {"host": host.read(), "gpus": samples, "error": None}
            if with_processes and due >= processes_due:
                # In a container, the driver's process ids name others.
                values["processes"] = None if is_in_container() else list_processes()
                processes_due = due + _PROCESSES_S
            line = json.dumps(values)
            os.write(fd, line.encode() + b"\n")
            due = max(due + period_s, time.monotonic())
            if unread.poll(max(0.0, due - time.monotonic()) * 1000):
                break
    except BaseException as error:  # noqa: BLE001 - whatever it is, only this child ends
        text = "what reads its GPUs failed: %.200r" % error
        os.write(fd, json.dumps({"host": None, "gpus": [], "error": text}).encode() + b"\n")
    finally:
        os._exit(0)


class HostReader:
    """Reads what /proc tells of this node: rates are those since the last look."""

    def __init__(self, workdir: str) -> None:
        self._workdir = workdir
        self._at = 0.0
        self._counts: dict[str, float] = {}
        self._find_xids = follow_xids()

    def read(self) -> dict[str, Any]:
        """Return the values of `job.facts.HostSample`; None for a rate at the first look, and for what is unknown."""
        now = boottime()
        counts, load = _read_counts(), read_rows("/proc/loadavg")
        memory = {row[0]: int(row[1]) for row in read_rows("/proc/meminfo") if len(row) > 1}
        passed_s, last = now - self._at, self._counts

        def rate(name: str, unit: float = 1.0) -> float | None:
            if name not in last or name not in counts:
                return None
            return round(max(0.0, counts[name] - last[name]) / passed_s / unit, 3)

        ticks = counts.get("cpu", 0.0) - last.get("cpu", 0.0)
        busy = None
        if last and ticks > 0:  # the kernel's count of waiting for disks errs
            busy = round(min(100.0, 100 * max(0.0, counts["busy"] - last["busy"]) / ticks), 1)
        found = {
            "cpu_percent": busy,
            "load": float(load[0][0]) if load else None,
            "memory_mib": memory.get("MemTotal:", 0) >> 10 or None,
            "memory_used_mib": (memory.get("MemTotal:", 0) - memory.get("MemAvailable:", 0)) >> 10 or None,
            "swap_mib_s": rate("swap", (1 << 20) / os.sysconf("SC_PAGE_SIZE")),
            "disk_free_percent": _find_free(self._workdir),
            "network_mib_s": rate("network", 1 << 20),
            "xids": self._find_xids(),
        }
        self._at, self._counts = now, counts
        return found


def _read_counts() -> dict[str, float]:
    """Return what only grows: ticks of the CPUs, pages swapped, and bytes of the network."""
    counts: dict[str, float] = {}
    for row in read_rows("/proc/stat"):
        if row[0] == "cpu":  # user nice system idle iowait irq softirq steal
            ticks = list(map(int, row[1:9]))
            counts["cpu"], counts["busy"] = sum(ticks), sum(ticks) - ticks[3] - ticks[4]
            break
    for row in read_rows("/proc/vmstat"):
        if row[0] in ("pswpin", "pswpout"):
            counts["swap"] = counts.get("swap", 0) + int(row[1])
    for row in read_rows("/proc/net/dev"):
        name = row[0].rstrip(":")
        if row[0].endswith(":") and not name.startswith(_NO_DEVICES):
            counts["network"] = counts.get("network", 0) + int(row[1]) + int(row[9])
    return counts


def _find_free(path: str) -> float | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return round(100.0 * found.f_bavail / found.f_blocks, 1) if found.f_blocks else None
