"""Compare what each device did under load with others of its model. Pure.

The ranks of `launcher.collectives` measure; rank 0 sends what all of them have measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median_high
from typing import Annotated, Any

from launcher.forms import Count, FormError, Most, Within, load_json, reader_of
from launcher.job.facts import FAULTS, describe_reasons
from launcher.preflight.findings import NOTE, PROBLEM, WARNING, Finding, Severity
from launcher.wording import count

# Than the median: a warning, a problem. Healthy GPUs of a model differ by some 3 % (standard deviation).
_SLOWER, _MUCH_SLOWER = 0.10, 0.20
# A warning: ranks on CPUs share cores, caches and memory with each other and with whatever else runs there.
_MUCH_SLOWER_CPU = 0.75
_Rate = Annotated[float, Within(0, 1e18)]
_MOST_WORDS = Most(200)


@dataclass(frozen=True, slots=True)
class Sensors:
    """What the driver says of a GPU under load; None: it doesn't say."""

    number: Count | None = None  # the GPU's number; this and the next ones are `null` if the driver doesn't know them
    temperature_c: float | None = None  # degrees Celsius at the end
    hottest_c: float | None = None  # the highest temperature
    clock_mhz: float | None = None  # the median clock of its multiprocessors
    power_w: float | None = None  # the median power
    # why its clock was held down: NVML's `nvmlClocksThrottleReasons`, as a number
    reasons: Annotated[int, Within(0, 1 << 64)] = 0
    corrected_errors: int | None = None  # memory errors during the load that were corrected
    uncorrected_errors: int | None = None  # memory errors during the load that were not


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """What one rank's device did under load, as rank 0 reports it; rates are per second."""

    rank: Count  # the rank that used it
    node: Count  # the number of its host
    model: Annotated[str, _MOST_WORDS]  # its model
    dtype: Annotated[str, _MOST_WORDS]  # the numbers that were multiplied: `fp16`, on CPUs `fp32`
    flops: _Rate  # floating-point operations per second
    copy: _Rate  # bytes per second that were read from its memory and written to it
    to_gpu: _Rate | None = None  # bytes per second from the host's memory; `null` on CPUs
    from_gpu: _Rate | None = None  # bytes per second to the host's memory; `null` on CPUs
    sensors: Sensors = Sensors()  # what the driver says of the GPU; nothing on CPUs, or without NVML
    numa_node: Count | None = None  # the NUMA node that the GPU is at; `null` on CPUs, and if it isn't known

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.to_gpu is not None

    @property
    def name(self) -> str:
        """How users know the device on its host."""
        return f"rank {self.rank}" if self.sensors.number is None else f"GPU {self.sensors.number}"

    @property
    def slowdown(self) -> str:
        """Why the hardware or the driver slowed it down; a full load at the power limit is as it should be."""
        return describe_reasons(self.sensors.reasons & FAULTS)


@dataclass(frozen=True, slots=True)
class _Speed:
    """One of the speeds that are compared: its field, its unit, and what the number is of."""

    field: str
    unit: float
    words: str

    def of(self, load: MeasuredLoad) -> float:
        """Return the speed of a device in this unit."""
        return (getattr(load, self.field) or 0.0) / self.unit

    def describe(self, load: MeasuredLoad, value: float) -> str:
        """Return a speed in words."""
        return f"{_number(value)} {self.words.format(dtype=load.dtype)}"

    def peers(self, load: MeasuredLoad, alike: Sequence[MeasuredLoad]) -> list[MeasuredLoad]:
        """Return those of a model that should be as fast: for PCIe, only GPUs at the same NUMA node of their hosts."""
        is_pcie = self.field in ("to_gpu", "from_gpu")
        return [each for each in alike if not is_pcie or each.numa_node == load.numa_node]


_COPY = _Speed("copy", 1e9, "GB/s in memory")
_OF_CPUS = _Speed("flops", 1e9, "GFLOP/s in {dtype}"), _COPY
_OF_GPUS = (
    _Speed("flops", 1e12, "TFLOP/s in {dtype}"), _COPY,
    _Speed("to_gpu", 1e9, "GB/s to the GPU"), _Speed("from_gpu", 1e9, "GB/s from the GPU"),
)  # fmt: skip


def check(loads: Sequence[MeasuredLoad], hosts: Sequence[str]) -> list[Finding]:
    """Return the slow and sick devices, then a note with the figures of each model; hosts: in the order of the ranks.

    Of a model with one device, there are only the figures.
    """
    models: dict[tuple[str, str], list[MeasuredLoad]] = {}
    for load in loads:
        models.setdefault((load.model, load.dtype), []).append(load)
    found = [finding for alike in models.values() for load in alike for finding in _judge(load, alike, hosts)]
    notes = [_describe_model(alike, hosts) for alike in models.values()]
    return sorted(found, key=lambda finding: finding.severity.rank) + notes


def read_loads(results: bytes, hosts: int) -> tuple[MeasuredLoad, ...]:
    """Return what rank 0 of a run on so many hosts has sent; raise FormError if it is malformed."""
    try:
        found = load_json(results)["loads"]
    except (KeyError, TypeError) as error:
        raise FormError(f"no measurements: {error!r}") from None
    loads: tuple[MeasuredLoad, ...] = reader_of(tuple[MeasuredLoad, ...])(found)
    if any(each.node >= hosts for each in loads):
        raise FormError(f"more than {count(hosts, 'host')}")
    return loads


def as_records(loads: Sequence[MeasuredLoad], hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the measurements as JSON values, each with the name of its host."""
    return [{"host": hosts[load.node], **asdict(load)} for load in loads]


def _judge(load: MeasuredLoad, alike: Sequence[MeasuredLoad], hosts: Sequence[str]) -> list[Finding]:
    """Return at most one finding, with all that is wrong with a device."""
    lags = {speed: _find_lag(speed, load, alike) for speed in _speeds_of(load)}
    slow = [speed for speed, lag in lags.items() if lag >= (_SLOWER if load.is_gpu else _MUCH_SLOWER_CPU)]
    errors = [count(number, f"{kind} memory error") for number, kind in _list_errors(load.sensors) if number]
    if not slow and not errors and not load.slowdown:
        return []
    said: list[str] = []
    for speed in slow:
        peers = speed.peers(load, alike)
        text = f"{speed.describe(load, speed.of(load))}, {100 * lags[speed]:.0f} % below the median "
        text += _number(_usual(speed, peers)) + (f" of {_count_model(peers)}" if not said else "")
        said.append(text + (f" at NUMA node {load.numa_node}" if len(peers) < len(alike) else ""))
    heat = "" if load.sensors.hottest_c is None else f"{load.sensors.hottest_c:.0f} degrees C"
    state = ", ".join(filter(None, [heat, load.slowdown]))
    said += [state] if state else []
    host = hosts[load.node]
    text = f"{load.name}: " + "; ".join([*said, *errors])
    return [Finding((host,), text, _find_fix(load, slow, host), _find_severity(load, [lags[speed] for speed in slow]))]


def _speeds_of(load: MeasuredLoad) -> tuple[_Speed, ...]:
    return _OF_GPUS if load.is_gpu else _OF_CPUS


def _find_severity(load: MeasuredLoad, lags: Iterable[float]) -> Severity:
    is_much_slower = load.is_gpu and any(lag >= _MUCH_SLOWER for lag in lags)
    return PROBLEM if load.sensors.uncorrected_errors or is_much_slower else WARNING


def _find_lag(speed: _Speed, load: MeasuredLoad, alike: Sequence[MeasuredLoad]) -> float:
    """Return by which part of its peers' median a device is slower; 0 for one that is faster."""
    usual = _usual(speed, speed.peers(load, alike))
    return max(0.0, 1 - speed.of(load) / usual) if usual else 0.0


def _usual(speed: _Speed, alike: Sequence[MeasuredLoad]) -> float:
    """Return the median; of two devices the faster one, which is how the other should be."""
    return median_high(map(speed.of, alike))


def _list_errors(sensors: Sensors) -> tuple[tuple[int | None, str], ...]:
    return (sensors.uncorrected_errors, "uncorrectable"), (sensors.corrected_errors, "corrected")


def _find_fix(load: MeasuredLoad, slow: Sequence[_Speed], host: str) -> str:
    if not load.is_gpu:
        return "look what else runs on its cores"
    if slow and {speed.field for speed in slow} <= {"to_gpu", "from_gpu"}:
        return "look at the width of its PCIe link with nvidia-smi -q, and at what else uses the link"
    leave_out = "leave it out with --exclude" + (
        "" if load.sensors.number is None else f" {host}:{load.sensors.number}"
    )
    return f"see nvidia-smi -q there, its cooling and power supply, or {leave_out}: all other ranks wait for it"


def _describe_model(alike: Sequence[MeasuredLoad], hosts: Sequence[str]) -> Finding:
    """Return the figures of all devices of a model."""
    said = []
    for speed in _speeds_of(alike[0]):
        values = sorted(map(speed.of, alike))
        spread = f" ({_number(values[0])} to {_number(values[-1])})" if len(values) > 1 else ""
        said.append(speed.describe(alike[0], _usual(speed, alike)) + spread)
    heat = max(load.sensors.hottest_c or 0 for load in alike)
    said += [f"up to {heat:.0f} degrees C"] if heat else []
    names = dict.fromkeys(hosts[load.node] for load in alike)
    return Finding(tuple(names), f"{_count_model(alike)} under load: {', '.join(said)}", "", NOTE)


def _count_model(alike: Sequence[MeasuredLoad]) -> str:
    return f"{len(alike)} x {alike[0].model}"


def _number(value: float) -> str:
    """Return three digits, and all digits before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
