"""Read samples.jsonl: what the GPUs and hosts of a run did while its ranks ran, and which GPU was odd.

A line is `{"at": ..., "host": "gpu1", "cpu": 37.0, "memory_used_gib": 93.1, "gpus": {"0": [utilization in %, memory in
MiB, power in W, temperature in °C, SM clock in MHz, throttle reasons]}}`, with null for what could not be read, or
`{"at": ..., "host": "gpu1", "gpu": 3, "rank": 11, "finding": "..."}`, about a host without `gpu` and `rank`. All of it
comes from hosts: what has another form is left out.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.forms import FormError, load_json
from launcher.runs.samples import FILE

_READ_BYTES = 20_000_000  # about a day of 64 GPUs; of a longer file, lines that are spread over all of it
_MOST_LINE_BYTES = 1 << 16
_MOST_FINDINGS = 100
_MOST_GPUS = 256  # of a host
_MOST_AT = 1e11  # wall-clock seconds, in the year 5138; no date can be made of much larger ones


@dataclass(frozen=True, slots=True)
class Sample:
    """What one host did at one time; None: not known."""

    at: float  # wall-clock seconds
    host: str
    cpu_percent: float | None
    memory_gib: float | None
    gpus: Mapping[str, Sequence[float | None]]  # by index: percent, MiB, W, °C, MHz


@dataclass(frozen=True, slots=True)
class SampleFinding:
    """What sets a GPU, or a whole host, apart from the others."""

    at: float
    host: str
    gpu: str | None  # its index; None: the host
    rank: int | None  # that uses it
    text: str

    @property
    def place(self) -> str:
        """Return `gpu2 GPU 3 (rank 11)`."""
        gpu = f" GPU {self.gpu}" if self.gpu is not None else ""
        return f"{self.host}{gpu}{f' (rank {self.rank})' if self.rank is not None else ''}"


def read_samples(folder: Path) -> tuple[list[Sample], list[SampleFinding]]:
    """Return what a run's directory has of both, in the order of the file; empty without one."""
    samples: list[Sample] = []
    findings: list[SampleFinding] = []
    try:
        with (folder / FILE).open("rb") as file:
            share = _READ_BYTES / max(1, (folder / FILE).stat().st_size)
            chance = random.Random(0)  # not every n-th line: hosts take turns
            while line := file.readline(_MOST_LINE_BYTES):
                is_finding = b'"finding"' in line
                if not line.endswith(b"\n") or (not is_finding and share < 1 and chance.random() > share):
                    continue
                value = _parse(line)
                if is_finding:
                    if len(findings) < _MOST_FINDINGS and (finding := _as_finding(value)):
                        findings.append(finding)
                elif sample := _as_sample(value):
                    samples.append(sample)
    except OSError:
        pass  # a run without samples, or an older one
    return samples, findings


def _parse(line: bytes) -> dict[str, Any]:
    try:
        found = load_json(line)
    except FormError:
        return {}
    return found if isinstance(found, dict) else {}


def _as_sample(found: Mapping[str, Any]) -> Sample | None:
    at, host, gpus = _time(found.get("at")), found.get("host"), found.get("gpus")
    if at is None or not isinstance(host, str):
        return None
    lists = gpus.items() if isinstance(gpus, dict) and len(gpus) <= _MOST_GPUS else ()
    values = {index: [*map(_number, each[:5])] for index, each in lists if isinstance(each, list) and len(each) >= 5}
    return Sample(at, host, _number(found.get("cpu")), _number(found.get("memory_used_gib")), values)


def _as_finding(found: Mapping[str, Any]) -> SampleFinding | None:
    at, host, gpu, rank, text = (found.get(name) for name in ("at", "host", "gpu", "rank", "finding"))
    seconds = _time(at)
    if seconds is None or not isinstance(host, str) or not isinstance(text, str):
        return None
    index = str(gpu) if isinstance(gpu, (int, str)) else None
    return SampleFinding(seconds, host, index, rank if isinstance(rank, int) else None, text)


def _number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and abs(value) < 1e15 else None  # type: ignore[arg-type]


def _time(value: object) -> float | None:
    at = _number(value)
    return at if at is not None and 0 <= at <= _MOST_AT else None
