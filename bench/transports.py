"""Compare the transports, and what a user would type without `launch`: 64 hosts, in turns.

srun is not among them: 64 nodes of Slurm on one machine are 64 slurmd, and would measure those (docs/decisions/0037
has what its agents cost).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.farm import Farm, farm
from bench.sessions import Gate, gate, hold
from bench.timing import Row, run
from bench.ways import CLUSH, PLAIN_PDSH, SSH_LOOP, TRANSPORTS, WAYS, command_of

HOSTS = 64
LINES = 10_000  # of 100 bytes, from each host
FEW_HOSTS = 2
MANY_LINES = 500_000
TURNS = 3
IDLE_S = 24.0  # four heartbeats each way

Turn = Mapping[str, float]  # figures by name

# As the table shows them; CPU, and memory while idle, are the sum over all of a method's processes on the launch host.
FIGURES = {
    "connect": "64 hosts answer, s",
    "exec": "64 hosts, `true`, s",
    "exec_cpu": "64 hosts, `true`, CPU s",
    "idle": "64 idle hosts, % of a core",
    "idle_mib": "64 idle hosts, MiB",
    "stream": "64 hosts x 1 MB, MB/s",
    "stream_cpu": "64 hosts x 1 MB, CPU s for 100 MB",
    "stream_mib": "64 hosts x 1 MB, peak MiB of `launch`",
    "flood": "2 hosts x 50 MB, MB/s",
    "flood_cpu": "2 hosts x 50 MB, CPU s for 100 MB",
    "flood_mib": "2 hosts x 50 MB, peak MiB of `launch`",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """The limit of a transport's figure, as a multiple of a plain tool's figure."""

    figure: str
    transport: str
    tool: str
    limit: float

    def row(self, turns: Mapping[str, Sequence[Turn]]) -> Row:
        """Compare the two runs of each turn, one right after the other: a busy machine's speed drifts."""
        pairs = [
            (mine[self.figure], other[self.figure])
            for mine, other in zip(turns[self.transport], turns[self.tool], strict=True)
        ]
        ratio = statistics.median(mine / other for mine, other in pairs)
        mine, other = (statistics.median(values) for values in zip(*pairs, strict=True))
        name = f"{FIGURES[self.figure]}: {self.transport} / {self.tool}"
        return Row(name, ratio, "ratio", self.limit, f"{mine:.3g} against {other:.3g}, median of {len(pairs)}")


# The hosts are on this machine, so their processes take its CPU as well. Nobody waits for the ssh of pdsh, which
# `launch` kills, so their CPU isn't known.
CLAIMS = (
    Claim("exec", "fabric", SSH_LOOP, 0.8),
    Claim("exec", "ssh", SSH_LOOP, 1.5),
    Claim("exec", "pdsh", PLAIN_PDSH, 2.5),
    Claim("exec_cpu", "fabric", SSH_LOOP, 0.3),
    Claim("exec_cpu", "ssh", SSH_LOOP, 1.3),
    Claim("stream_cpu", "fabric", SSH_LOOP, 1.8),
    Claim("stream_cpu", "ssh", SSH_LOOP, 1.8),
    Claim("flood_cpu", "fabric", SSH_LOOP, 1.5),
    Claim("flood_cpu", "ssh", SSH_LOOP, 1.8),
)
MOST = {"idle": ("% of a core", 1.0), "stream_mib": ("MiB", 256.0)}


def transports() -> list[Row]:
    """Print the figures of all methods as Markdown, and return the limits that they must meet."""
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    with farm(HOSTS) as hosts, gate() as door:
        for _ in range(TURNS):
            for way in WAYS:
                turns[way].append(_measure(way, hosts, door))
    print("\n".join(_table(turns)))
    return [
        *(_most_row(figure, name, turns[name]) for figure in MOST for name in TRANSPORTS),
        *(claim.row(turns) for claim in CLAIMS),
    ]


def _measure(way: str, hosts: Farm, door: Gate) -> Turn:
    spent = run(command_of(way, hosts, hosts.names, "true"))
    figures = {"exec": spent.seconds, "exec_cpu": spent.cpu_seconds}
    if way == CLUSH:  # 62 MB took clush two minutes
        return figures
    held = hold(command_of(way, hosts, hosts.names, door.command(LINES)), door, HOSTS, LINES, IDLE_S)
    figures |= {"connect": held.connect_s, "idle": held.idle_percent, "idle_mib": held.idle_mib}
    figures |= {"stream": held.stream_mb_per_s, "stream_cpu": held.stream_cpu_s}
    few = hosts.names[:FEW_HOSTS]
    flood = hold(command_of(way, hosts, few, door.command(MANY_LINES)), door, FEW_HOSTS, MANY_LINES, 0)
    figures |= {"flood": flood.stream_mb_per_s, "flood_cpu": flood.stream_cpu_s}
    return {**figures, "stream_mib": held.peak_mib, "flood_mib": flood.peak_mib} if way in TRANSPORTS else figures


def _most_row(figure: str, name: str, turns: Sequence[Turn]) -> Row:
    unit, limit = MOST[figure]
    values = [turn[figure] for turn in turns]
    return Row(f"{FIGURES[figure]}: {name}", statistics.median(values), unit, limit, f"median of {len(turns)}")


def _table(turns: Mapping[str, Sequence[Turn]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: medians, minimum and maximum."""
    yield f"| {TURNS} turns | {' | '.join(turns)} |"
    yield f"|---|{'---|' * len(turns)}"
    for figure, words in FIGURES.items():
        yield f"| {words} | {' | '.join(_cell(figure, own) for own in turns.values())} |"


def _cell(figure: str, turns: Sequence[Turn]) -> str:
    values = [turn[figure] for turn in turns if figure in turn]
    if not values:
        return "-"
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"
