"""A configuration that is behind an Include, as most are, beside the same one without: it must cost nothing."""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.farm import farm
from bench.timing import Row, Spent, run
from bench.ways import LAUNCH

HOSTS = 128
TURNS = 10  # an even number: each of the two goes first as often as the other
LIMIT = 1.03


def includes() -> list[Row]:
    """128 hosts, a command that does nothing: with an Include against without one, in time and CPU."""
    with farm(HOSTS) as hosts:
        including = hosts.ssh_config.with_name("ssh_config_including")
        including.write_text(f"Include {hosts.ssh_config}\n")
        configs = (including, hosts.ssh_config)
        turns = []
        _exec(hosts.names, including)  # the first one also compiles
        for turn in range(TURNS):
            order = configs if turn % 2 else configs[::-1]
            spent = {config: _exec(hosts.names, config) for config in order}
            turns.append([spent[config] for config in configs])
    return [
        _row("time", "s", [(mine.seconds, other.seconds) for mine, other in turns]),
        _row("CPU", "s", [(mine.cpu_seconds, other.cpu_seconds) for mine, other in turns]),
    ]


def _exec(names: list[str], config: Path) -> Spent:
    return run([*LAUNCH, "exec", "--ssh-config", config, "--hosts", ",".join(names), "--", "true"])


def _row(what: str, unit: str, pairs: list[tuple[float, float]]) -> Row:
    """Compare the two of each turn, which ran one after the other: a busy machine's speed drifts."""
    ratio = statistics.median(mine / other for mine, other in pairs)
    mine, other = (statistics.median(values) for values in zip(*pairs, strict=True))
    detail = f"{mine:.3g} {unit} against {other:.3g} {unit}, median of {len(pairs)}"
    return Row(f"{HOSTS} hosts, Include / none, {what}", ratio, "ratio", LIMIT, detail)
