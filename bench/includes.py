"""Compare an ssh_config behind an Include, as most are, with the same one without: an Include must cost nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.farm import farm
from bench.timing import Row, Spent, run
from bench.ways import LAUNCH

HOSTS = 128
TURNS = 9
LIMIT = 1.03

Turn = tuple[Sequence[Spent], Sequence[Spent]]  # with an Include, without one


def includes() -> list[Row]:
    """Run a command that does nothing on 128 hosts, with and without an Include: time and CPU."""
    with farm(HOSTS) as hosts:
        including = hosts.ssh_config.with_name("ssh_config_including")
        including.write_text(f"Include {hosts.ssh_config}\n")
        plain = hosts.ssh_config
        _exec(hosts.names, including)  # the first run also compiles
        turns: list[Turn] = []
        for _ in range(TURNS):
            first, *others, last = [_exec(hosts.names, config) for config in (including, plain, plain, including)]
            turns.append(((first, last), others))
    return [
        _row("time", turns, lambda spent: spent.seconds),
        _row("CPU", turns, lambda spent: spent.cpu_seconds),
    ]


def _exec(names: list[str], config: Path) -> Spent:
    return run([*LAUNCH, "exec", "--ssh-config", config, "--hosts", ",".join(names), "--", "true"])


def _row(what: str, turns: Sequence[Turn], cost: Callable[[Spent], float]) -> Row:
    """Compare the two runs of each turn: a machine's speed drifts, so the Include runs first and last."""
    pairs = [tuple(sum(map(cost, two)) / 2 for two in turn) for turn in turns]
    ratio = statistics.median(mine / other for mine, other in pairs)
    mine, other = map(statistics.median, zip(*pairs, strict=True))
    detail = f"{mine:.3g} s against {other:.3g} s, median of {len(pairs)}"
    return Row(f"{HOSTS} hosts, Include / none, {what}", ratio, "ratio", LIMIT, detail)
