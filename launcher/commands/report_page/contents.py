"""What the page of a run shows, read where its logs are: small, whatever the size of the logs, so that it can travel.

It comes as JSON from a host that may be hostile. `launcher.forms` reads it by the types, so annotations aren't
postponed here.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

from launcher.commands.report_page.numbers import find_numbers
from launcher.commands.report_page.plot import MOST_LINES, Line, Plot, Point, TimeRange, find_most
from launcher.commands.report_page.samples import Sample, SampleFinding, read_samples
from launcher.forms import Most, Within, reader_of
from launcher.output.log_reader import Choice, RunLogs
from launcher.runs.run_json import RunJson
from launcher.runs.run_list import ListedRun
from launcher.runs.run_rows import make_row
from launcher.runs.run_state import Activity
from launcher.wording import count

_READ_BYTES = 64_000_000  # of the end of rank 0's log
_GPU_NUMBERS = (
    "GPU utilization (%)", "GPU memory (GiB)", "GPU power (W)", "GPU temperature (°C)", "SM clock (MHz)",
)  # fmt: skip
_HOST_NUMBERS: Mapping[str, Callable[[Sample], float | None]] = {
    "CPU of the hosts (%)": lambda sample: sample.cpu_percent,
    "Memory in use on the hosts (GiB)": lambda sample: sample.memory_gib,
}


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
    findings: Annotated[tuple[SampleFinding, ...], Most(1000)]
    made_at: float  # wall-clock seconds
    runs_since: Annotated[float, Within(0, 1e11)] | None = None  # the attempt that hasn't ended


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
        tuple(plot_samples(samples, findings, times)), tuple(findings), now, _find_start(run, now),
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


def plot_samples(samples: Sequence[Sample], findings: Sequence[SampleFinding], times: TimeRange) -> list[Plot]:
    """Return a plot of each number that was sampled: of all GPUs a band, and a line for those that were odd."""
    gpus = {(sample.host, index) for sample in samples for index in sample.gpus}
    named = dict.fromkeys((each.host, str(each.gpu)) for each in findings)
    odd = [gpu for gpu in named if gpu in gpus][:MOST_LINES]
    plots = []
    for place, title in enumerate(_GPU_NUMBERS):
        scale = 1 / 1024 if title.endswith("(GiB)") else 1.0
        points: dict[tuple[str, str], list[Point]] = {gpu: [] for gpu in sorted(gpus)}
        for sample in samples:
            for index, values in sample.gpus.items():
                if (value := values[place]) is not None:
                    points[sample.host, index].append((sample.at, value * scale))
        lines = [
            Line(f"{host} GPU {index}", tuple((at, middle) for at, _, middle, _ in times.reduce(found, find_most)))
            for host, index in odd if (found := points[host, index])
        ]  # fmt: skip
        bins = times.reduce((point for found in points.values() for point in found), find_most)
        plots.append(Plot(title, bins, tuple(lines), f"band: 80 % of {count(len(gpus), 'GPU')}; line: their median"))
    hosts = count(len({sample.host for sample in samples}), "host")
    for title, read in _HOST_NUMBERS.items():
        found = [(sample.at, value) for sample in samples if (value := read(sample)) is not None]
        plots.append(Plot(title, times.reduce(found, find_most), note=f"band: 80 % of {hosts}; line: their median"))
    return [plot for plot in plots if plot.bins]
