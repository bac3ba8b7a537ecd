"""How `launch top` shows what the GPUs of all hosts do: as much of it as fits on the screen. Pure."""

# The types of fields are looked at by launcher.forms, so annotations are not postponed.
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

from launcher.forms import AS_ROW, FormError, Most, Within, load_json, reader_of
from launcher.hosts.ranges import fold_names, fold_numbers
from launcher.job.facts import FAULTS, GpuSample, HostSample, describe_reasons
from launcher.node import messages
from launcher.output.output_streams import Line, Style
from launcher.wording import count, duration, fold_ranks

if TYPE_CHECKING:
    from launcher.session.connection import Event

_HEADS = ("HOST", "GPU", "UTIL %", "MEM GiB", "POWER W", "TEMP C", "SM MHz", "HELD BY")  # and ranks or users
_RIGHT = (2, 3, 4, 5, 6)  # the columns with numbers
_BUSY_PERCENT = 5.0
_MOST_ODD = 4  # of what stands out, on a screen
_OLD_S = 20.0  # what a host told so long ago is marked


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

    def after(self, event: "Event", gpus: tuple[GpuSample, ...]) -> "HostNow":
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


@dataclass(frozen=True, slots=True)
class _Group:
    """GPUs of one host, or of several, that do the same."""

    hosts: str  # in the first row of them
    gpus: tuple[GpuSample, ...]
    user: str
    ranks: tuple[int, ...]

    @property
    def why(self) -> str:
        bits = 0
        for gpu in self.gpus:
            bits |= gpu.reasons or 0
        return describe_reasons(bits).replace("thermal slowdown", "thermal")

    @property
    def has_fault(self) -> bool:
        return any((gpu.reasons or 0) & FAULTS for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class _Row:
    cells: tuple[str, ...]  # of all columns, or only the host and a text about it
    style: Style = Style.TEXT


def draw(now: RunNow, width: int, height: int | None, title: str = "") -> list[Line]:
    """Return the lines of the screen, none longer than its width, and no more than its height; None: all lines."""
    hosts = dict(sorted(now.hosts.items(), key=lambda item: -_standing(item[1])))
    most = _MOST_ODD if height is None else max(1, min(_MOST_ODD, height // 4))
    shown = now.odd if height is None or len(now.odd) <= most else now.odd[: most - 1]
    texts = [*shown, *([f"{len(now.odd) - len(shown)} more stand out"] if len(shown) < len(now.odd) else [])]
    odd = [Line(part, Style.STRONG) for text in texts for part in wrap(f"! {text}", width, subsequent_indent="  ")]
    room = None if height is None else height - len(odd) - bool(title) - 1  # the heads of the columns
    rows: list[_Row] = []
    for find_rows in (partial(_host_rows, is_each=True), _host_rows, _folded_rows):
        rows = [*find_rows(hosts, now.at)]
        if room is None or len(rows) <= room:
            break
    has_ranks = any(now.ranks for now in hosts.values())
    table = _align(rows, (*_HEADS, "RANK" if has_ranks else "USED BY"), width)
    if room is not None and len(rows) > room:
        table[room:] = [Line(f"... and {len(rows) - room + 1} more lines: a larger window shows them")]
    cut = [Line(_cut(line.text, width), line.style) for line in ([Line(title)] if title else []) + table + odd]
    return cut if height is None else cut[:height]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _standing(now: HostNow) -> float:
    """Return how much a host stands out: 0 if all is well."""
    if now.lost is not None or now.error is not None:
        return 2.0
    return 1.0 if any((gpu.reasons or 0) & FAULTS for gpu in now.gpus) else 0.0


def _folded_rows(hosts: Mapping[str, HostNow], at: float) -> Iterator[_Row]:
    """Yield a row for the GPUs of all hosts that do the same."""
    alike: dict[tuple[object, ...], list[tuple[str, list[_Group]]]] = {}
    for name, now in hosts.items():
        yield from _troubles(name, now, at)
        groups = _group(now)
        if not groups and now.lost is None and now.error is None:
            yield _Row((name, describe_host(now) or "no GPUs"))
        key = tuple((group.user, group.why, len(group.gpus), _is_busy(group.gpus[0])) for group in groups)
        alike.setdefault(key, []).append((name, groups))
    for same in alike.values():
        names = fold_names(name for name, _ in same)
        for number, parts in enumerate(zip(*(groups for _, groups in same), strict=True)):
            gpus = tuple(gpu for part in parts for gpu in part.gpus)
            ranks = tuple(sorted(rank for part in parts for rank in part.ranks))
            yield _gpu_row(_Group("" if number else names, gpus, parts[0].user, ranks))


def _group(now: HostNow, *, is_each: bool = False) -> list[_Group]:
    """Return the GPUs of a host that do the same, or each of them."""
    alike: dict[tuple[object, ...], list[GpuSample]] = {}
    for gpu in now.gpus:
        user = now.users.get(str(gpu.index), "")
        ranks, number = _ranks_of(now, [gpu]), gpu.index if is_each else -1
        key = gpu.name, user, bool(ranks), describe_reasons(gpu.reasons), _is_busy(gpu), number
        alike.setdefault(key, []).append(gpu)
    return [_Group("", tuple(gpus), str(key[1]), _ranks_of(now, gpus)) for key, gpus in alike.items()]


def _is_busy(gpu: GpuSample) -> bool:
    return (gpu.utilization or 0.0) >= _BUSY_PERCENT


def _ranks_of(now: HostNow, gpus: Iterable[GpuSample]) -> tuple[int, ...]:
    return tuple(now.ranks[str(gpu.index)] for gpu in gpus if str(gpu.index) in now.ranks)


def _troubles(name: str, now: HostNow, at: float) -> Iterator[_Row]:
    """Yield why a host, or its GPUs, can't be asked."""
    if now.lost is not None:
        yield _Row((name, f"lost: {now.lost}"), Style.STRONG)
    elif now.error is not None:
        yield _Row((name, now.error), Style.STRONG)
    elif now.at == 0.0:
        yield _Row((name, "has told nothing yet"))
    elif at - now.at > _OLD_S:
        yield _Row((name, f"told this {duration(at - now.at)} ago"), Style.STRONG)


def _host_rows(hosts: Mapping[str, HostNow], at: float, *, is_each: bool = False) -> Iterator[_Row]:
    """Yield a row for each GPU, or for those of a host that do the same, below one for the host."""
    for name, now in hosts.items():
        yield from _troubles(name, now, at)
        text = describe_host(now)
        if text or now.gpus or (now.at and now.lost is None and now.error is None):
            yield _Row((name, text or ("" if now.gpus else "no GPUs")))
        yield from map(_gpu_row, _group(now, is_each=is_each))


def describe_host(now: HostNow) -> str:
    """Return `CPU 37 %  load 35  memory 93/512 GiB  disk 12 % free  network 1,200 MiB/s`; empty if nothing is known."""
    host = now.host
    if host is None:
        return ""
    parts = []
    if host.cpu_percent is not None:
        parts.append(f"CPU {host.cpu_percent:.0f} %")
    if host.load is not None:
        parts.append(f"load {host.load:.0f}")
    if host.memory_used_mib is not None and host.memory_mib is not None:
        parts.append(f"memory {host.memory_used_mib >> 10}/{host.memory_mib >> 10} GiB")
    if host.disk_free_percent is not None:
        parts.append(f"disk {host.disk_free_percent:.0f} % free")
    if host.network_mib_s is not None:
        parts.append(f"network {host.network_mib_s:,.0f} MiB/s")
    return "  ".join(parts)


def _gpu_row(group: _Group) -> _Row:
    gpus = group.gpus
    used = [gpu.memory_used_mib and gpu.memory_used_mib / 1024 for gpu in gpus]
    most = {round(gpu.memory_mib / 1024) for gpu in gpus if gpu.memory_mib}
    limits = {round(gpu.power_limit_w) for gpu in gpus if gpu.power_limit_w}
    clocks = {round(gpu.max_clock_mhz) for gpu in gpus if gpu.max_clock_mhz}
    cells = (
        group.hosts, fold_numbers(sorted({gpu.index for gpu in gpus})),
        _span([gpu.utilization for gpu in gpus]),
        _span(used, most),
        _span([gpu.power_w for gpu in gpus], limits),
        _span([gpu.temperature_c for gpu in gpus]),
        _span([gpu.clock_mhz for gpu in gpus], clocks),
        group.why, fold_ranks(group.ranks) if group.ranks else group.user,
    )  # fmt: skip
    return _Row(cells, Style.STRONG if group.has_fault else Style.TEXT)


def _span(values: Sequence[float | None], limits: Collection[int] = ()) -> str:
    """Return `97-99`, or with what they can be at most `640-690/700`; empty if nothing is known."""
    known = sorted(round(value) for value in values if value is not None)
    if not known:
        return ""
    text = f"{known[0]}" if known[0] == known[-1] else f"{known[0]}-{known[-1]}"
    return f"{text}/{max(limits)}" if limits else text


def _align(rows: Sequence[_Row], heads: Sequence[str], width: int) -> list[Line]:
    """Return the rows below their heads; a column that no row needs is left out, and the last one is cut first."""
    full = [row for row in rows if len(row.cells) == len(heads)]
    used = [number for number in range(len(heads)) if number < 2 or any(row.cells[number] for row in full)]
    widths = {
        number: max([len(row.cells[number]) for row in full] + ([len(heads[number])] if full else [0]))
        for number in used
    }
    widths[0] = max([widths[0], *(len(row.cells[0]) for row in rows)])
    gap = "  " if sum(widths.values()) + 2 * len(used) - 2 <= width else " "
    lines = [Line(_cut(_join(heads, used, widths, gap), width))] if full else []
    for row in rows:
        is_full = len(row.cells) == len(heads)
        text = _join(row.cells, used, widths, gap) if is_full else f"{row.cells[0]:<{widths[0]}}  {row.cells[1]}"
        lines.append(Line(_cut(text.rstrip(), width), row.style))
    return lines


def _join(cells: Sequence[str], used: Iterable[int], widths: Mapping[int, int], gap: str) -> str:
    return gap.join(
        f"{cells[number]:>{widths[number]}}" if number in _RIGHT else f"{cells[number]:<{widths[number]}}"
        for number in used
    ).rstrip()


def describe_size(now: RunNow) -> str:
    """Return `2 hosts, 16 GPUs`."""
    gpus = sum(len(host.gpus) for host in now.hosts.values())
    return f"{count(len(now.hosts), 'host')}, {count(gpus, 'GPU')}"


def now_as_text(now: RunNow) -> str:
    """Return it as JSON, which `parse_now` reads."""
    hosts = {name: asdict(host) | {"gpus": [astuple(gpu) for gpu in host.gpus]} for name, host in now.hosts.items()}
    return json.dumps({"at": now.at, "hosts": hosts, "odd": now.odd, "doing": now.doing})


def parse_now(text: bytes) -> RunNow | None:
    """Return what `now_as_text` gave; None if it can't be that: another machine may have sent it."""
    try:
        found: RunNow = reader_of(RunNow)(load_json(text))
    except FormError:
        return None
    return found
