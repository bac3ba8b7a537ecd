"""What the page of a run shows, read where its logs are: small, whatever the size of the logs, so that it can travel.

It comes as JSON from a host that may be hostile. `launcher.forms` reads it by the types, so annotations aren't
postponed here.
"""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from launcher.cli.report_page.plots import MOST_LINES, Line, Plot, TimeRange, Values, find_numbers
from launcher.forms import FormError, Most, SentAs, Within, load_json, reader_of
from launcher.output.log_reader import Choice, RunLogs
from launcher.output.run_folder import SAMPLES
from launcher.runs.run_json import RunJson
from launcher.runs.run_list import ListedRun
from launcher.runs.run_rows import make_row
from launcher.runs.run_state import Activity
from launcher.wording import count

_READ_BYTES = 64_000_000  # of the end of rank 0's log
_SAMPLE_BYTES = 20_000_000  # about a day of 64 GPUs; of a longer file, lines that are spread over all of it
_MOST_LINE_BYTES = 1 << 16
_MOST_FINDINGS = 100
_GPU_NUMBERS = (
    "GPU utilization (%)", "GPU memory (GiB)", "GPU power (W)", "GPU temperature (°C)", "SM clock (MHz)",
)  # fmt: skip
_HOST_NUMBERS = {"cpu": "CPU of the hosts (%)", "memory_used_gib": "Memory in use on the hosts (GiB)"}

_Seconds = Annotated[float, Within(0, 1e11)]  # wall-clock: no date can be made of much larger ones


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of samples.jsonl: what one host did at one time; None: not known."""

    at: _Seconds
    host: str
    cpu: float | None = None  # %
    memory_used_gib: float | None = None
    # Of each GPU, by its index: the numbers of _GPU_NUMBERS, memory in MiB, and more that the page doesn't show.
    gpus: Annotated[Mapping[str, tuple[float | None, ...]], Most(256)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleFinding:
    """A line of samples.jsonl: what sets a GPU, or a whole host, apart from the others."""

    at: _Seconds
    host: str
    text: Annotated[str, SentAs("finding")]
    gpu: int | None = None  # its index; None: the host
    rank: int | None = None  # that uses it

    @property
    def place(self) -> str:
        """Return `gpu2 GPU 3 (rank 11)`."""
        gpu = f" GPU {self.gpu}" if self.gpu is not None else ""
        return f"{self.host}{gpu}{f' (rank {self.rank})' if self.rank is not None else ''}"


@dataclass(frozen=True, slots=True)
class Contents:
    """All that the page of a run shows."""

    record: RunJson
    run: str
    name: str | None
    state: str  # as in launch ps
    doing: str  # the same in more words
    times: TimeRange
    numbers: Annotated[tuple[Plot, ...], Most(64)]  # that rank 0 printed
    samples: Annotated[tuple[Plot, ...], Most(64)]  # of the GPUs and hosts
    findings: Annotated[tuple[tuple[_Seconds, str], ...], Most(1000)]  # what stood out, and when
    made_at: float  # wall-clock seconds
    runs_since: _Seconds | None = None  # the attempt that hasn't ended


def collect_contents(run: ListedRun) -> Contents:
    """Return what the page of a run shows; raise UsageError if its logs were removed."""
    folder, record, now = run.find_folder(), run.read_record(), time.time()
    row = make_row(run, now)
    times = TimeRange(run.began_at, _find_end(run, record, now))
    logs = RunLogs(folder, record.all_hosts, Choice(node=0, rank=0), _READ_BYTES)
    numbers = find_numbers(logs.read(), record.utc_offset, times)
    logs.close()
    samples, findings = read_samples(folder)
    return Contents(
        record, run.id, run.name, row.state, row.describe(), times, tuple(numbers),
        tuple(plot_samples(samples, findings, times)),
        tuple((each.at, f"{each.place}: {each.text}") for each in findings), now, _find_start(run, now),
    )  # fmt: skip


def tell_contents(run: ListedRun) -> dict[str, Any]:
    """Return the same as JSON values, for another machine."""
    return asdict(collect_contents(run))


def read_contents(found: Any) -> Contents:
    """Return what `tell_contents` gave; raise FormError for anything else."""
    contents: Contents = reader_of(Contents)(found)
    return contents


def _find_end(run: ListedRun, record: RunJson, now: float) -> float:
    """Return when a run ended, or wrote something last if its controller was killed, in wall-clock seconds."""
    if record.ended_at:
        return datetime.fromisoformat(record.ended_at).timestamp()
    written = [path.stat().st_mtime for path in run.folder.glob("*.log")] if run.is_alive is False else []
    return max(written, default=now)


def _find_start(run: ListedRun, now: float) -> float | None:
    """Return when the ranks that run now were started, in wall-clock seconds; None if none run."""
    doing = run.read_doing(now) if run.is_alive else None
    return now - doing.for_s if doing is not None and doing.what is Activity.RUNNING else None


def read_samples(folder: Path) -> tuple[list[Sample], list[SampleFinding]]:
    """Return what samples.jsonl has of both; a line that has another form is left out, as a host may have sent it."""
    samples: list[Sample] = []
    findings: list[SampleFinding] = []
    with suppress(OSError), (folder / SAMPLES).open("rb") as file:  # a run without samples, or an older one
        share = _SAMPLE_BYTES / max(1, (folder / SAMPLES).stat().st_size)
        chance = random.Random(0)  # not every n-th line: hosts take turns
        while line := file.readline(_MOST_LINE_BYTES):
            with suppress(FormError):
                if b'"finding"' in line:
                    findings += [reader_of(SampleFinding)(load_json(line))][: _MOST_FINDINGS - len(findings)]
                elif share >= 1 or chance.random() <= share:
                    samples.append(reader_of(Sample)(load_json(line)))
    return samples, findings


def plot_samples(samples: Sequence[Sample], findings: Sequence[SampleFinding], times: TimeRange) -> list[Plot]:
    """Return a plot of each number that was sampled: of all GPUs a band, but of those that were odd a line."""
    gpus = {(sample.host, index) for sample in samples for index in sample.gpus}
    odd = [gpu for gpu in dict.fromkeys((each.host, str(each.gpu)) for each in findings) if gpu in gpus][:MOST_LINES]
    odd = odd if len(odd) < len(gpus) else []
    which = f"the other {count(len(gpus) - len(odd), 'GPU')}" if odd else f"all of {count(len(gpus), 'GPU')}"
    plots = []
    for place, title in enumerate(_GPU_NUMBERS):
        scale = 1 / 1024 if title.endswith("(GiB)") else 1.0
        band, lines = Values(times), {gpu: Values(times) for gpu in odd}
        for sample in samples:
            for index, numbers in sample.gpus.items():
                if place < len(numbers) and (value := numbers[place]) is not None:
                    lines.get((sample.host, index), band).add(sample.at, value * scale)
        drawn = [
            Line(f"{host} GPU {index}", tuple((at, mean) for at, _, mean, _ in values.bins))
            for (host, index), values in lines.items() if values.bins
        ]  # fmt: skip
        plots.append(Plot(title, band.bins, tuple(drawn), f"band: {which}; line: their mean"))
    note = f"band: all of {count(len({sample.host for sample in samples}), 'host')}; line: their mean"
    for name, title in _HOST_NUMBERS.items():
        band = Values(times)
        for sample in samples:
            if (value := getattr(sample, name)) is not None:
                band.add(sample.at, value)
        plots.append(Plot(title, band.bins, note=note))
    return [plot for plot in plots if plot.bins]
