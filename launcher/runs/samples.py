"""What the GPUs and hosts of a run do while its ranks run: kept beside its logs, and compared to find the odd one.

samples.jsonl has a line for each host and interval, and one for each thing that stood out. While somebody looks at the
run, as `launch top` does, the newest sample of each host is in another file.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from launcher.clock import wall_clock
from launcher.forms import AS_ROW, FormError, Most, Within, load_json, reader_of
from launcher.job.facts import GpuSample, HostSample, NodeFacts
from launcher.job.plan import LaunchPlan
from launcher.node import messages
from launcher.output.console import RunConsole
from launcher.output.run_folder import RunRecord
from launcher.output.style import Style
from launcher.private_files import open_private, replace_private
from launcher.runs.odd_gpus import INTERVAL_S, HostInterval, Oddity, OddWatch, Samples, fold_oddities
from launcher.session.connection import Event
from launcher.session.session import Session

PERIOD_S = 5.0
FILE = "samples.jsonl"
_NOW = "samples-now.json"
_WANTED = "samples-wanted"  # somebody looks: touched again and again
_LOOKS_S = 20.0  # after it was touched
_MOST_NAMED = 40  # of a host, in a run
_INTERVALS = round(INTERVAL_S / PERIOD_S)


@dataclass(frozen=True, slots=True)
class HostNow:
    """What one host did last."""

    at: Annotated[float, Within(0, 1e11)]  # wall-clock seconds
    host: HostSample | None = None
    gpus: Annotated[tuple[Annotated[GpuSample, AS_ROW], ...], Most(messages.MAX_SAMPLED_GPUS)] = ()
    error: str | None = None  # why its GPUs can't be read
    lost: str | None = None  # why the host can't be asked
    ranks: Mapping[str, Annotated[int, Within(0, 1e7)]] = field(default_factory=dict)  # by the number of their GPU
    users: Mapping[str, str] = field(default_factory=dict)  # of each GPU: `ann's nightly`, `python (bob)`; not of a run

    def after(self, event: Event, gpus: tuple[GpuSample, ...]) -> "HostNow":
        """Return what the host does after a SAMPLED; gpus: those of it that count.

        If what reads its GPUs hangs, that is what it told last.
        """
        host, error = event.fields["host"], event.fields["error"]
        if host is None:
            return replace(self, error=error)
        return replace(self, at=event.at, host=host, gpus=gpus, error=error)


@dataclass(frozen=True, slots=True)
class RunNow:
    """What the hosts of a run did last, and what stands out."""

    at: Annotated[float, Within(0, 1e11)]  # wall-clock seconds, of the machine that controls the run
    hosts: Mapping[str, HostNow] = field(default_factory=dict)
    odd: tuple[str, ...] = ()
    doing: str = ""  # what the run does, if its hosts tell nothing


class RunSamples:
    """Takes the samples of all hosts while the ranks of an attempt run."""

    def __init__(
        self, session: Session, plan: LaunchPlan, facts: Sequence[NodeFacts], record: RunRecord,
        named: set[tuple[str, int | None, str]], console: RunConsole, note_odd: Callable[[Sequence[str]], object],
    ) -> None:  # fmt: skip
        """named: what stood out in the run so far, extended here; note_odd: gets what stands out now, if that changes.

        facts: of the hosts of the plan, in its order.
        """
        self._session = session
        self._folder = record.folder
        self._disk = record.disk
        self._run = {"run": record.run_id, "name": record.name}
        self._named = named
        self._named_of = Counter(host for host, *_ in named)
        self._console = console
        self._note_odd = note_odd
        self._used = {node.host.name: node.gpus for node in plan.nodes}
        self._ranks = {
            node.host.name: {gpu: node.first_rank + rank for rank, gpu in enumerate(node.gpus[: node.nproc])}
            for node in plan.nodes
        }
        hosts = [node.host.name for node in plan.nodes]
        places = {(host, gpu): rank for host, ranks in self._ranks.items() for gpu, rank in ranks.items()}
        addresses = {
            (name, gpu.pci_address): gpu.index for name, fact in zip(hosts, facts, strict=False) for gpu in fact.gpus
        }
        self._watch = OddWatch(places, addresses)
        self._hosts = hosts
        self._since = [Samples() for _ in hosts]  # the last interval
        self._now = [HostNow(0.0, ranks={str(gpu): rank for gpu, rank in self._ranks[host].items()}) for host in hosts]
        self._is_queued = False
        self._lines: list[dict[str, Any]] = []  # of the last interval, until they are queued
        self._ticks = 0
        self._touched_at = self._wanted_until = 0.0  # the first as the file's time, the second by time.monotonic()
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
                self._disk.put(lambda: (self._folder / _NOW).unlink(missing_ok=True))
            if self._odd:
                self._note_odd([])

    def begin(self) -> None:
        """Compare and keep what comes from now on: all ranks run."""
        if self._timer is None:
            self._session.take_samples()  # of the start, when not all ranks ran yet
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._tick)

    def _take(self, event: Event) -> None:
        fields = event.fields
        used = self._used[self._hosts[event.index]]
        gpus = tuple(gpu for gpu in fields["gpus"] if not used or gpu.index in used)
        self._since[event.index].add(fields["host"], gpus, fields["error"])
        self._now[event.index] = self._now[event.index].after(event, gpus)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._tick)
        for event in self._session.take_samples():
            self._take(event)
        self._ticks += 1
        if self._ticks % _INTERVALS == 0:
            self._lines = self._end_interval()  # while a disk hangs, those before are lost instead of kept in memory
        if not self._is_queued:
            self._is_queued = True
            lines, self._lines = self._lines, []
            self._disk.put(lambda: self._write(lines))

    def _end_interval(self) -> list[dict[str, Any]]:
        """Compare what all hosts did, say what newly stands out, and return what is to be kept."""
        at = wall_clock()
        sums = {name: summed for name, each in zip(self._hosts, self._since, strict=True) if (summed := each.sum_up())}
        self._since = [Samples() for _ in self._hosts]
        odd = self._watch.take(sums)
        new = []
        for each in odd:
            key = each.host, each.gpu, each.kind
            if key not in self._named and self._named_of[each.host] < _MOST_NAMED:
                self._named.add(key)
                self._named_of[each.host] += 1
                new.append(each)
        for line in fold_oddities(new):
            self._console.say(f"launch: {line}", Style.STRONG)
        for each in new:
            self._console.emit("odd", **self._run, **asdict(each))
        subjects = list(dict.fromkeys(each.subject for each in odd))
        if subjects != self._odd:
            self._odd = subjects
            self._note_odd(subjects)
        kept = [_as_line(at, name, summed) for name, summed in sums.items()]
        return [*kept, *(_as_finding(at, each) for each in new)]

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write in the thread of the disk; a run needs none of it, so an error is nobody's concern."""
        self._is_queued = False  # what comes from now on is queued again
        with contextlib.suppress(OSError):
            if lines:
                with open(self._folder / FILE, "a", encoding="utf-8", opener=open_private) as file:
                    file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        with contextlib.suppress(OSError):
            touched_at, now = (self._folder / _WANTED).stat().st_mtime, time.monotonic()
            if touched_at != self._touched_at:  # the clock of a file server may be another one
                self._touched_at, self._wanted_until = touched_at, now + _LOOKS_S
            if now < self._wanted_until and any(each.at or each.error for each in self._now):
                replace_private(self._folder / _NOW, now_as_text(self._find_now()))

    def _find_now(self) -> RunNow:
        hosts: dict[str, HostNow] = {}
        for name, now, state in zip(self._hosts, self._now, self._session.states, strict=False):
            failure = state.failure  # this is another thread than the one that may change it
            hosts[name] = replace(now, lost=failure.text if failure is not None else None)
        return RunNow(wall_clock(), hosts, tuple(each.describe() for each in self._watch.current))


def _as_line(at: float, host: str, summed: HostInterval) -> dict[str, Any]:
    return {
        "at": round(at, 1), "host": host, "cpu": _rounded(summed.cpu_percent),
        "memory_used_gib": None if summed.memory_used_mib is None else round(summed.memory_used_mib / 1024, 1),
        "gpus": {
            index: [
                _rounded(gpu.utilization), gpu.memory_used_mib, _rounded(gpu.power_w), _rounded(gpu.temperature_c),
                _rounded(gpu.clock_mhz), gpu.reasons,
            ]
            for index, gpu in summed.gpus.items()
        },
    }  # fmt: skip


def _as_finding(at: float, odd: Oddity) -> dict[str, Any]:
    return {"at": round(at, 1), "host": odd.host, "gpu": odd.gpu, "rank": odd.rank, "finding": odd.text}


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def want_now(folder: Path) -> None:
    """Let a run write what its hosts do now, for a while."""
    with contextlib.suppress(OSError), open(folder / _WANTED, "a", opener=open_private):
        (folder / _WANTED).touch()


def read_now(folder: Path) -> RunNow | None:
    """Return what the hosts of a run do now; None if it has not written that lately, since nobody looked."""
    try:
        found = parse_now((folder / _NOW).read_bytes())
    except OSError:
        return None
    return found if found is not None and time.time() - found.at < 2 * PERIOD_S else None


def now_as_text(now: RunNow) -> str:
    """Return it as JSON, which `parse_now` reads."""
    hosts = {name: asdict(host) | {"gpus": [astuple(gpu) for gpu in host.gpus]} for name, host in now.hosts.items()}
    return json.dumps({"at": now.at, "hosts": hosts, "odd": now.odd, "doing": now.doing})


def parse_now(text: bytes) -> RunNow | None:
    """Return what a run has written; None if it can't be that: another machine may have sent it."""
    try:
        found: RunNow = reader_of(RunNow)(load_json(text))
    except FormError:
        return None
    return found
