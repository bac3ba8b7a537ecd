"""Find the GPU, or the host, that stands out in a run, from what all of them do (job.facts.HostSample). Pure.

A rank that is late makes all others wait, and what it looks like depends on the reason: one whose data comes late
idles, one whose GPU computes slowly is busier than the others. So nothing says "slow" of one that looks different.
In the order in which the signs can be trusted, with the time that each must last:

1. the driver holds the clock down because of heat or the power supply (30 s)
2. the clock is lower than on equal GPUs that are as busy (30 s)
3. utilization or power is apart from equal GPUs, in either direction (4 min)
4. memory errors, faults that the driver logs, and a GPU that answers no more (at once)

Minder (arXiv 2411.01791) found 4 minutes to be needed where counters are only compared: with less, a quarter of what it
named was well. Power is measured for a quarter of the time on A100 and H100 (arXiv 2312.02741), so means are compared.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from launcher.diagnosis.signatures import HARDWARE_XIDS
from launcher.hosts.ranges import fold_numbers
from launcher.job.facts import FAULTS, GpuSample, HostSample, describe_reasons
from launcher.wording import count, fold_ranks, span

INTERVAL_S = 15.0
_HELD = 2  # intervals
_APART = 16
_LEAST_PEERS = 2
_BUSY_PERCENT = 50.0
_SLOWER = 0.9  # of the others' clock
_APART_PERCENT = 15.0  # of utilization, or of the power limit, at least
_USUAL_LIMIT_W = 400.0
_DEVIATIONS = 5.0  # and so many standard deviations, as estimated by the median of the deviations
_MAD = 1.4826  # of a normal distribution
_MOST_APART = 0.25  # more of the GPUs than that are not odd: the job is not the same on all of them
_SWAPS_MIB_S = 50.0
_MOST_SAMPLES = 100  # of a host in an interval

_CAP = 0x04  # of the reasons why a clock is held down


@dataclass(frozen=True, slots=True)
class GpuInterval:
    """What one GPU did in some seconds; None: not told."""

    name: str
    utilization: float | None  # the mean
    memory_used_mib: int | None  # at the end
    power_w: float | None  # the mean
    power_limit_w: float | None
    temperature_c: float | None  # the highest
    clock_mhz: float | None  # the lowest
    top_clock_mhz: float | None
    reasons: int | None  # those that held its clock down at any moment
    lasting_reasons: int  # those that held it down all the time
    ecc_errors: int | None


@dataclass(frozen=True, slots=True)
class HostInterval:
    """What one host and its GPUs did in some seconds."""

    gpus: Mapping[int, GpuInterval]
    cpu_percent: float | None
    memory_mib: int | None
    memory_used_mib: int | None
    swap_mib_s: float | None
    xids: Sequence[tuple[str, int]]  # PCI address and number
    error: str | None  # why its GPUs can't be read


@dataclass(slots=True)
class Samples:
    """What a host has told since the last interval."""

    hosts: list[HostSample] = field(default_factory=list)
    gpus: dict[int, list[GpuSample]] = field(default_factory=dict)
    error: str | None = None

    def add(self, host: HostSample | None, gpus: Iterable[GpuSample], error: str | None) -> None:
        """Add one sample, unless a host sends too many."""
        if len(self.hosts) >= _MOST_SAMPLES:
            return
        self.hosts += [host] if host is not None else []
        for gpu in gpus:
            self.gpus.setdefault(gpu.index, []).append(gpu)
        self.error = error

    def sum_up(self) -> HostInterval | None:
        """Return all of them as one; None if there are none."""
        if not self.hosts and self.error is None:
            return None
        last = self.hosts[-1] if self.hosts else HostSample()
        return HostInterval(
            {index: _sum_up_gpu(samples) for index, samples in self.gpus.items()},
            _mean(each.cpu_percent for each in self.hosts), last.memory_mib, last.memory_used_mib,
            _mean(each.swap_mib_s for each in self.hosts),
            [(xid.gpu, xid.number) for each in self.hosts for xid in each.xids], self.error,
        )  # fmt: skip


def _sum_up_gpu(samples: Sequence[GpuSample]) -> GpuInterval:
    last = samples[-1]
    clocks = [each.clock_mhz for each in samples if each.clock_mhz is not None]
    reasons = [each.reasons for each in samples if each.reasons is not None]
    held, at_all = ~0 if reasons else 0, 0
    for bits in reasons:
        held, at_all = held & bits, at_all | bits
    temperatures = [each.temperature_c for each in samples if each.temperature_c is not None]
    return GpuInterval(
        last.name, _mean(each.utilization for each in samples), last.memory_used_mib,
        _mean(each.power_w for each in samples), last.power_limit_w, max(temperatures, default=None),
        min(clocks, default=None), max(clocks, default=None), at_all if reasons else None, held,
        last.ecc_errors,
    )  # fmt: skip


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something that stands out; gpu: None if it is the host."""

    host: str  # the host
    gpu: int | None  # the number of the GPU; `null`: the host itself stands out
    rank: int | None  # the rank that uses the GPU; `null` if it is not known
    kind: str  # what stands out, such as `clock`, `utilization`, `power`, `memory errors` or `swap`
    text: str  # the same in words, with figures

    @property
    def subject(self) -> str:
        """What stands out, as `gpu2 GPU 3 (rank 11)`."""
        if self.gpu is None:
            return self.host
        return f"{self.host} GPU {self.gpu}" + ("" if self.rank is None else f" (rank {self.rank})")

    def describe(self) -> str:
        """Return `gpu2 GPU 3 (rank 11): thermal slowdown for 30 s, SM clock 800 MHz, ...`."""
        return f"{self.subject}: {self.text}"


_Place = tuple[str, int]  # host, and the number of its GPU


class OddWatch:
    """Compares all GPUs of an attempt, interval by interval."""

    def __init__(self, ranks: Mapping[_Place, int], pci_addresses: Mapping[tuple[str, str], int]) -> None:
        """ranks: by host and GPU; pci_addresses: the GPU at each, by host and address."""
        self._ranks = ranks
        self._gpu_at = pci_addresses
        self._history: deque[Mapping[str, HostInterval]] = deque(maxlen=_APART)
        self._first: dict[str, HostInterval] = {}
        self._faults: dict[tuple[str, int | None], Oddity] = {}  # that the driver has logged
        self.current: tuple[Oddity, ...] = ()  # what stood out in the last interval

    def take(self, interval: Mapping[str, HostInterval]) -> tuple[Oddity, ...]:
        """Take the interval of all hosts that were heard; return what stands out now."""
        self._history.append(interval)
        for name, host in interval.items():
            self._first.setdefault(name, host)
        found: dict[tuple[str, int | None, str], Oddity] = {}
        for oddity in (*self._find_held(), *self._find_apart(), *self._find_errors(), *self._find_hosts()):
            found.setdefault((oddity.host, oddity.gpu, oddity.kind), oddity)
        self.current = tuple(found.values())
        return self.current

    def _lasting(self, length: int) -> Iterator[tuple[_Place, list[GpuInterval]]]:
        """Yield each GPU that was heard in each of the last intervals, with what it did then."""
        recent = [*self._history][-length:]
        if len(recent) < length:
            return
        for name, host in recent[-1].items():
            for index in host.gpus:
                rows = [each[name].gpus.get(index) for each in recent if name in each]
                known = [row for row in rows if row is not None]
                if len(known) == length:
                    yield (name, index), known

    def _oddity(self, place: _Place, kind: str, text: str) -> Oddity:
        return Oddity(*place, self._ranks.get(place), kind, text)

    def _find_held(self) -> Iterator[Oddity]:
        """Find clocks that are held down by a fault, or lower than others'."""
        models: dict[str, dict[_Place, list[GpuInterval]]] = {}
        for place, rows in self._lasting(_HELD):
            models.setdefault(rows[-1].name, {})[place] = rows
        for gpus in models.values():
            slower = _find_slower(gpus)
            few = set(slower) if _are_few(slower, len(gpus)) else set()
            peers = [clock for place, clock in _clocks_of_well(gpus).items() if place not in few]
            middle = median(peers) if len(peers) >= _LEAST_PEERS else None
            for place, rows in gpus.items():
                lasting = rows[0].lasting_reasons & rows[1].lasting_reasons
                bits = lasting & FAULTS or (lasting & _CAP if place in few else 0)
                if not bits and place not in few:
                    continue
                clock = _top_clock(rows)
                parts = [f"{describe_reasons(bits)} for {span(_HELD * INTERVAL_S)}"] if bits else []
                parts += [f"SM clock {clock:,.0f} MHz"] if clock is not None else []
                if middle is not None and clock != middle:
                    are_alike = max(peers) - min(peers) < 50
                    others = f"the other {len(peers)} run at" if are_alike else "the others' median is"
                    parts.append(f"{others} {middle:,.0f} MHz")
                yield self._oddity(place, "clock", ", ".join(parts))

    def _find_apart(self) -> Iterator[Oddity]:
        """Find utilization and power that were apart from equal GPUs' in each interval."""
        models: dict[str, dict[_Place, list[GpuInterval]]] = {}
        for place, rows in self._lasting(_APART):
            models.setdefault(rows[-1].name, {})[place] = rows
        lasted = span(_APART * INTERVAL_S)
        for gpus in models.values():
            limit = max(rows[-1].power_limit_w or _USUAL_LIMIT_W for rows in gpus.values())
            watts = _APART_PERCENT / 100 * limit
            for kind, unit, least in (("utilization", "%", _APART_PERCENT), ("power_w", "W", watts)):
                values = {place: [getattr(row, kind) for row in rows] for place, rows in gpus.items()}
                known = {place: row for place, row in values.items() if None not in row}
                apart = _find_outliers(known, least)
                if len(known) <= _LEAST_PEERS or not _are_few(apart, len(known)):
                    continue
                others = median([sum(row) / _APART for place, row in known.items() if place not in apart])
                for place in apart:
                    own = sum(known[place]) / _APART
                    word = kind.removesuffix("_w")
                    text = f"odd {word} for {lasted}: {own:.0f} {unit}, the others' median is {others:.0f} {unit}"
                    yield self._oddity(place, word, text)

    def _find_errors(self) -> Iterator[Oddity]:
        for name, host in self._history[-1].items():
            for index, known in self._first[name].gpus.items():
                if host.error is None and _has_readings(known) and not _has_readings(host.gpus.get(index)):
                    yield self._oddity((name, index), "no answer", "it stopped answering: the host may have lost it")
            for index, gpu in host.gpus.items():
                place, first = (name, index), self._first[name].gpus.get(index)
                errors = _growth(gpu.ecc_errors, first.ecc_errors if first is not None else None)
                if errors:
                    text = f"{count(errors, 'uncorrectable memory error')} since its ranks started"
                    yield self._oddity(place, "memory errors", f"{text}: its results may be wrong")
            for address, number in host.xids:
                if number in HARDWARE_XIDS:
                    at = self._gpu_at.get((name, address))
                    where = "" if at is not None else f" of the GPU at PCI {address}"
                    text = f"the driver logged Xid {number}{where}: a hardware or driver fault"
                    rank = self._ranks.get((name, at)) if at is not None else None
                    self._faults.setdefault((name, at), Oddity(name, at, rank, "Xid", text))
        yield from self._faults.values()

    def _find_hosts(self) -> Iterator[Oddity]:
        before = self._history[-_HELD] if len(self._history) >= _HELD else {}
        for name, host in self._history[-1].items():
            last = before.get(name)
            if host.error is not None:
                yield Oddity(name, None, None, "reader", host.error)
            if last is not None and min(last.swap_mib_s or 0.0, host.swap_mib_s or 0.0) >= _SWAPS_MIB_S:
                of = f": {(host.memory_used_mib or 0) >> 10} of {(host.memory_mib or 0) >> 10} GiB of memory are in use"
                yield Oddity(name, None, None, "swap", f"it swaps {host.swap_mib_s:,.0f} MiB/s{of}")


def _top_clock(rows: Sequence[GpuInterval]) -> float | None:
    return max((row.top_clock_mhz for row in rows if row.top_clock_mhz is not None), default=None)


def _clocks_of_well(gpus: Mapping[_Place, Sequence[GpuInterval]]) -> dict[_Place, float]:
    """Return the clocks of the GPUs that are busy and have no fault."""
    return {
        place: rows[-1].top_clock_mhz
        for place, rows in gpus.items()
        if rows[-1].top_clock_mhz is not None and _is_busy(rows) and not rows[-1].lasting_reasons & FAULTS
    }


def _find_slower(gpus: Mapping[_Place, Sequence[GpuInterval]]) -> list[_Place]:
    """Return the GPUs of a model that run slower than others that are as busy.

    At its power cap a GPU does if it works harder than the others: these may wait for it, with full clocks and
    utilization. Then its power is at least theirs.
    """
    clocks = _clocks_of_well(gpus)
    if len(clocks) <= _LEAST_PEERS:
        return []
    limit = _SLOWER * median(clocks.values())
    powers = [rows[-1].power_w for rows in gpus.values() if rows[-1].power_w is not None]
    usual_w = median(powers) if powers else None
    slower = []
    for place, rows in gpus.items():
        clock, own_w = _top_clock(rows), rows[-1].power_w
        is_at_cap = any((row.reasons or 0) & _CAP for row in rows)
        is_at_work = own_w is not None and usual_w is not None and own_w >= _SLOWER * usual_w
        if clock is not None and clock < limit and _is_busy(rows) and not (is_at_cap and is_at_work):
            slower.append(place)
    return slower


def _are_few(places: Sequence[_Place], number: int) -> bool:
    """Tell whether so few of the GPUs differ that they are odd, and not the job."""
    return len(places) <= max(1, _MOST_APART * number)


def _is_busy(rows: Sequence[GpuInterval]) -> bool:
    return all((row.utilization or 0.0) >= _BUSY_PERCENT for row in rows)


def _find_outliers(values: Mapping[_Place, Sequence[float]], least: float) -> list[_Place]:
    """Return where the values are apart from the others' in each interval, always in the same direction."""
    apart = {place: {-1, 1} for place in values}
    for interval in zip(*values.values(), strict=True):
        middle = median(interval)
        most = max(least, _DEVIATIONS * _MAD * median(abs(value - middle) for value in interval))
        for place, value in zip(values, interval, strict=True):
            apart[place] &= {int(math.copysign(1, value - middle))} if abs(value - middle) > most else set()
    return [place for place, directions in apart.items() if directions]


def _has_readings(gpu: GpuInterval | None) -> bool:
    """Tell whether anything was read of a GPU: of a lost one NVML has no value, and nvidia-smi no line."""
    return gpu is not None and any(
        value is not None for value in (gpu.memory_used_mib, gpu.temperature_c, gpu.power_w, gpu.clock_mhz)
    )


def _growth(now: int | None, before: int | None) -> int:
    return max(0, now - before) if now is not None and before is not None else 0


def fold_oddities(found: Iterable[Oddity]) -> list[str]:
    """Return a line for each; GPUs of one host that stand out by the same thing share one, with the first's figures."""
    alike: dict[tuple[str, str, bool], list[Oddity]] = {}
    for oddity in found:
        alike.setdefault((oddity.host, oddity.kind, oddity.gpu is None), []).append(oddity)
    lines = []
    for (host, _, is_of_host), group in alike.items():
        if is_of_host or len(group) == 1:
            lines += [oddity.describe() for oddity in group]
            continue
        ranks = [oddity.rank for oddity in group if oddity.rank is not None]
        of_ranks = f" (ranks {fold_ranks(ranks)})" if len(ranks) == len(group) else ""
        gpus = fold_numbers(sorted(oddity.gpu for oddity in group if oddity.gpu is not None))
        lines.append(f"{host} GPU {gpus}{of_ranks}: {group[0].text}")
    return lines
