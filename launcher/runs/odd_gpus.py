"""Find the GPU, or the host, that stands out in a run, from what all of them do (job.facts.HostSample). Pure.

A rank that is late makes all others wait, and what it looks like depends on the reason: one whose data comes late
idles, one whose GPU computes slowly is busier than the others. So nothing says "slow" of one that looks different.
Each interval is looked at alone, and a sign counts once it was there in enough of them in a row:

1. the driver holds the clock down because of heat or the power supply (30 s)
2. utilization or power is apart from equal GPUs (4 min), as that of a lower clock is
3. memory errors, faults that the driver logs, and a GPU that answers no more (at once)

Minder (arXiv 2411.01791) found 4 minutes to be needed where counters are only compared: with less, a quarter of what it
named was well. Power is measured for a quarter of the time on A100 and H100 (arXiv 2312.02741), so means are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from launcher.diagnosis.signatures import HARDWARE_XIDS
from launcher.job.facts import FAULTS, GpuSample, HostSample, describe_reasons
from launcher.wording import count, span

INTERVAL_S = 15.0
_HELD = 2  # intervals
_APART = 16
_LEAST_PEERS = 2
_APART_PERCENT = 15.0  # of utilization, or of the power limit, at least
_USUAL_LIMIT_W = 400.0
_DEVIATIONS = 5.0  # and so many standard deviations, as estimated by the median of the deviations
_MAD = 1.4826  # of a normal distribution
_MOST_APART = 0.25  # more of the GPUs than that are not odd: the job is not the same on all of them
_SWAPS_MIB_S = 50.0

_Place = tuple[str, int]  # host, and the number of its GPU
_Found = tuple[int, "Oddity"]  # for how many intervals it must last


@dataclass(frozen=True, slots=True)
class HostInterval:
    """What one host and its GPUs did in some seconds, as one sample."""

    host: HostSample  # means of CPUs and swapping, all faults that the driver has logged
    # means of utilization and power, the highest temperature and clock, and what held the clock down all the time
    gpus: Mapping[int, GpuSample]
    error: str | None  # why its GPUs can't be read


@dataclass(slots=True)
class Samples:
    """What a host has told since the last interval."""

    hosts: list[HostSample] = field(default_factory=list)
    gpus: dict[int, list[GpuSample]] = field(default_factory=dict)
    error: str | None = None

    def add(self, host: HostSample | None, gpus: Iterable[GpuSample], error: str | None) -> None:
        """Add one sample."""
        self.hosts += [host] if host is not None else []
        for gpu in gpus:
            self.gpus.setdefault(gpu.index, []).append(gpu)
        self.error = error

    def sum_up(self) -> HostInterval | None:
        """Return all of them as one; None if there are none."""
        if not self.hosts and self.error is None:
            return None
        host = replace(
            self.hosts[-1] if self.hosts else HostSample(),
            cpu_percent=_mean(each.cpu_percent for each in self.hosts),
            swap_mib_s=_mean(each.swap_mib_s for each in self.hosts),
            xids=tuple(xid for each in self.hosts for xid in each.xids),
        )
        return HostInterval(host, {index: _sum_up_gpu(samples) for index, samples in self.gpus.items()}, self.error)


def _sum_up_gpu(samples: Sequence[GpuSample]) -> GpuSample:
    reasons = [each.reasons for each in samples if each.reasons is not None]
    lasting = ~0
    for bits in reasons:
        lasting &= bits
    return replace(
        samples[-1],
        utilization=_mean(each.utilization for each in samples),
        power_w=_mean(each.power_w for each in samples),
        temperature_c=max((each.temperature_c for each in samples if each.temperature_c is not None), default=None),
        clock_mhz=max((each.clock_mhz for each in samples if each.clock_mhz is not None), default=None),
        reasons=lasting if reasons else None,
    )


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


class OddWatch:
    """Compares all GPUs of an attempt, interval by interval."""

    def __init__(self, ranks: Mapping[_Place, int], pci_addresses: Mapping[tuple[str, str], int]) -> None:
        """ranks: by host and GPU; pci_addresses: the GPU at each, by host and address."""
        self._ranks = ranks
        self._gpu_at = pci_addresses
        self._lasted: dict[tuple[str, int | None, str], int] = {}  # for how many intervals each sign was there
        self._first: dict[str, HostInterval] = {}
        self._faults: dict[tuple[str, int | None], Oddity] = {}  # that the driver has logged
        self.current: tuple[Oddity, ...] = ()  # what stood out in the last interval

    def take(self, interval: Mapping[str, HostInterval]) -> tuple[Oddity, ...]:
        """Take the interval of all hosts that were heard; return what stands out now."""
        models: dict[str, dict[_Place, GpuSample]] = {}
        for name, host in interval.items():
            self._first.setdefault(name, host)
            for index, gpu in host.gpus.items():
                models.setdefault(gpu.name, {})[name, index] = gpu
        found: list[_Found] = []
        for gpus in models.values():
            found += [*self._find_held(gpus), *self._find_apart(gpus)]
        for name, host in interval.items():
            found += [*self._find_errors(name, host), *_find_of_host(name, host)]
        found += [(1, fault) for fault in self._faults.values()]
        before, self._lasted = self._lasted, {}
        lasting = []
        for least, odd in found:
            key = odd.host, odd.gpu, odd.kind
            self._lasted[key] = before.get(key, 0) + 1
            if self._lasted[key] >= least:
                lasting.append(odd)
        self.current = tuple(lasting)
        return self.current

    def _oddity(self, place: _Place, kind: str, text: str) -> Oddity:
        return Oddity(*place, self._ranks.get(place), kind, text)

    def _find_held(self, gpus: Mapping[_Place, GpuSample]) -> Iterator[_Found]:
        """Find clocks that a fault holds down."""
        for place, gpu in gpus.items():
            if why := describe_reasons((gpu.reasons or 0) & FAULTS):
                clock = f", SM clock {gpu.clock_mhz:,.0f} MHz" if gpu.clock_mhz is not None else ""
                yield _HELD, self._oddity(place, "clock", f"{why} for {span(_HELD * INTERVAL_S)}{clock}")

    def _find_apart(self, gpus: Mapping[_Place, GpuSample]) -> Iterator[_Found]:
        """Find utilization and power that are apart from those of equal GPUs."""
        limit = max((gpu.power_limit_w or _USUAL_LIMIT_W for gpu in gpus.values()), default=0.0)
        values_of = {
            ("utilization", "%", _APART_PERCENT): {place: gpu.utilization for place, gpu in gpus.items()},
            ("power", "W", _APART_PERCENT / 100 * limit): {place: gpu.power_w for place, gpu in gpus.items()},
        }
        for (word, unit, least), values in values_of.items():
            known = {place: value for place, value in values.items() if value is not None}
            if len(known) <= _LEAST_PEERS:
                continue
            middle = median(known.values())
            deviation = _MAD * median(abs(value - middle) for value in known.values())
            most = max(least, _DEVIATIONS * deviation)
            apart = [place for place, value in known.items() if abs(value - middle) > most]
            for place in apart if _are_few(apart, len(known)) else ():
                own = known[place]
                text = f"odd {word} for {span(_APART * INTERVAL_S)}: {own:.0f} {unit}, "
                text += f"the others' median is {middle:.0f} {unit}"
                yield _APART, self._oddity(place, word, text)

    def _find_errors(self, name: str, host: HostInterval) -> Iterator[_Found]:
        """Find what has failed since the ranks started; faults that the driver has logged stay."""
        before = self._first[name].gpus
        for index, known in before.items():
            if host.error is None and _has_readings(known) and not _has_readings(host.gpus.get(index)):
                text = "it stopped answering: the host may have lost it"
                yield 1, self._oddity((name, index), "no answer", text)
        for index, gpu in host.gpus.items():
            first = before[index].ecc_errors if index in before else None
            errors = gpu.ecc_errors - first if gpu.ecc_errors is not None and first is not None else 0
            if errors > 0:
                text = f"{count(errors, 'uncorrectable memory error')} since its ranks started"
                yield 1, self._oddity((name, index), "memory errors", f"{text}: its results may be wrong")
        for xid in host.host.xids:
            if xid.number in HARDWARE_XIDS:
                at = self._gpu_at.get((name, xid.gpu))
                where = "" if at is not None else f" of the GPU at PCI {xid.gpu}"
                text = f"the driver logged Xid {xid.number}{where}: a hardware or driver fault"
                rank = self._ranks.get((name, at)) if at is not None else None
                self._faults.setdefault((name, at), Oddity(name, at, rank, "Xid", text))


def _find_of_host(name: str, interval: HostInterval) -> Iterator[_Found]:
    host = interval.host
    if interval.error is not None:
        yield 1, Oddity(name, None, None, "reader", interval.error)
    if (host.swap_mib_s or 0.0) >= _SWAPS_MIB_S:
        of = f": {(host.memory_used_mib or 0) >> 10} of {(host.memory_mib or 0) >> 10} GiB of memory are in use"
        yield _HELD, Oddity(name, None, None, "swap", f"it swaps {host.swap_mib_s:,.0f} MiB/s{of}")


def _are_few(places: Iterable[_Place], number: int) -> bool:
    """Tell whether so few of the GPUs differ that they are odd, and not the job."""
    return len([*places]) <= max(1, _MOST_APART * number)


def _has_readings(gpu: GpuSample | None) -> bool:
    """Tell whether anything was read of a GPU: of a lost one NVML has no value, and nvidia-smi no line."""
    return gpu is not None and any(
        value is not None for value in (gpu.memory_used_mib, gpu.temperature_c, gpu.power_w, gpu.clock_mhz)
    )
