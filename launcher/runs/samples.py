"""What the GPUs and hosts of a run do while its ranks run: kept beside its logs, and compared to find the odd one.

samples.jsonl has a line for each host and interval, which `launch top` follows and `launch report` draws, and one for
each thing that stood out.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from launcher.clock import wall_clock
from launcher.job.facts import NodeFacts
from launcher.job.plan import LaunchPlan
from launcher.output.console import Console
from launcher.output.output_streams import Style
from launcher.output.run_folder import SAMPLES, RunRecord
from launcher.private_files import open_private
from launcher.runs.odd_gpus import INTERVAL_S, HostInterval, Oddity, OddWatch, Samples
from launcher.session.session import Session

PERIOD_S = 5.0  # between two samples of a host
_LINE_BYTES = 1000
_MOST_WAITING_BYTES = 1 << 20
_MOST_SAID = 10  # things that stand out, at once


class RunSamples:
    """Takes the samples of all hosts while the ranks of an attempt run."""

    def __init__(
        self, session: Session, plan: LaunchPlan, facts: Sequence[NodeFacts], record: RunRecord,
        named: set[tuple[str, int | None, str]], console: Console, note_odd: Callable[[Sequence[str]], object],
    ) -> None:  # fmt: skip
        """named: what stood out in the run so far, extended here; note_odd: gets what stands out now, if that changes.

        facts: of the hosts of the plan, in its order.
        """
        self._session = session
        self._path = record.folder / SAMPLES
        self._disk = record.disk
        self._run = {"run": record.run_id, "name": record.name}
        self._named = named
        self._console = console
        self._note_odd = note_odd
        self._used = [node.gpus for node in plan.nodes]
        self._hosts = [node.host.name for node in plan.nodes]
        self._ranks = {
            (node.host.name, gpu): node.first_rank + rank
            for node in plan.nodes
            for rank, gpu in enumerate(node.gpus[: node.nproc])
        }
        addresses = {
            (name, gpu.pci_address): gpu.index
            for name, fact in zip(self._hosts, facts, strict=False)
            for gpu in fact.gpus
        }
        self._watch = OddWatch(self._ranks, addresses)
        self._odd: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Take what comes while the block runs, from `begin` on."""
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._odd:
                self._note_odd([])

    def begin(self) -> None:
        """Compare and keep what comes from now on: all ranks run."""
        if self._timer is None:
            self._session.take_samples()  # of the start, when not all ranks ran yet
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)
        lines = self._end_interval()
        if self._disk.waiting_bytes < _MOST_WAITING_BYTES:  # while a disk hangs, the room is for the logs
            self._disk.put(lambda: self._write(lines), len(lines) * _LINE_BYTES, is_kept=True)

    def _end_interval(self) -> list[dict[str, Any]]:
        """Compare what all hosts did, say what newly stands out, and return what is to be kept."""
        at = round(wall_clock(), 1)
        since = [Samples() for _ in self._hosts]
        for event in self._session.take_samples():
            used, fields = self._used[event.index], event.fields
            gpus = [gpu for gpu in fields["gpus"] if not used or gpu.index in used]
            since[event.index].add(fields["host"], gpus, fields["error"])
        sums = {name: summed for name, each in zip(self._hosts, since, strict=True) if (summed := each.sum_up())}
        odd = self._watch.take(sums)
        new = []
        for each in odd:
            key = each.host, each.gpu, each.kind
            if key not in self._named:
                self._named.add(key)
                new.append(each)
        for each in new[:_MOST_SAID]:
            self._console.say(f"launch: {each.describe()}", Style.STRONG)
        if len(new) > _MOST_SAID:
            self._console.say(f"launch: {len(new) - _MOST_SAID} more stand out (launch top)", Style.STRONG)
        for each in new:
            self._console.emit("odd", **self._run, **asdict(each))
        subjects = list(dict.fromkeys(each.subject for each in odd))
        if subjects != self._odd:
            self._odd = subjects
            self._note_odd(subjects)
        findings = [
            {"at": at, "host": each.host, "gpu": each.gpu, "rank": each.rank, "finding": each.text} for each in new
        ]
        return [*(self._as_line(at, name, summed, odd) for name, summed in sums.items()), *findings]

    def _as_line(self, at: float, host: str, summed: HostInterval, odd: Sequence[Oddity]) -> dict[str, Any]:
        told = summed.host
        line = {
            "at": at, "host": host, "cpu": _rounded(told.cpu_percent), "load": _rounded(told.load),
            "memory_used_gib": _gib(told.memory_used_mib), "memory_gib": _gib(told.memory_mib),
            "disk_free": _rounded(told.disk_free_percent), "network": _rounded(told.network_mib_s),
            "model": next((gpu.name for gpu in summed.gpus.values()), None),
            "gpus": {
                index: [
                    _rounded(gpu.utilization), gpu.memory_used_mib, _rounded(gpu.power_w), _rounded(gpu.temperature_c),
                    _rounded(gpu.clock_mhz), gpu.reasons, self._ranks.get((host, index)), gpu.memory_mib,
                    _rounded(gpu.power_limit_w), _rounded(gpu.max_clock_mhz),
                ]
                for index, gpu in summed.gpus.items()
            },
        }  # fmt: skip
        texts = [each.describe() for each in odd if each.host == host]
        return line | ({"odd": texts} if texts else {}) | ({"error": summed.error} if summed.error else {})

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write in the thread of the disk; a run needs none of it, so an error is nobody's concern."""
        if lines:
            with contextlib.suppress(OSError), open(self._path, "a", encoding="utf-8", opener=open_private) as file:
                file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _gib(mib: int | None) -> float | None:
    return None if mib is None else round(mib / 1024, 1)
