"""Measure the built-in trainer: its tokens per second, from its own log."""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.timing import Row, Spent, run

PLAIN_LOOP = Path(__file__).parent / "plain_loop.py"
PROCESSES = (1, 2, 4)
PLAIN_LIMIT = 0.98  # of the plain loop's speed
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class Execute(Protocol):
    """Run a command to its end, or raise an error if it fails."""

    def __call__(self, argv: Sequence[str | Path], *, env: dict[str, str]) -> Spent: ...


@dataclass(frozen=True, slots=True)
class Work:
    """A model and the work per process; the first steps, which warm up and compile, don't count."""

    layers: int
    heads: int
    dim: int
    context: int
    batch_size: int
    steps: int
    log_every: int
    uncounted_steps: int
    turns: int

    def flags(self) -> list[str]:
        """Return the trainer's options."""
        flags = ["--epochs", "1", "--steps-per-epoch", str(self.steps), "--log-every", str(self.log_every)]
        for name in ("layers", "heads", "dim", "context", "batch_size"):
            flags += [f"--{name}", str(getattr(self, name))]
        return flags

    def write_text(self, path: Path, processes: int) -> Path:
        """Write random text, which is as much work as words, half as much again as the steps need."""
        size_bytes = self.context * self.batch_size * self.steps * processes * 3 // 2
        path.write_bytes(random.Random(1).randbytes(size_bytes))
        return path


@dataclass(frozen=True, slots=True)
class Way:
    """How the ranks split the work, and whether they compute in bf16 with a compiled model."""

    kind: str = "ddp"  # or fsdp
    processes: int = 1
    short: bool = False

    def flags(self) -> list[str]:
        """Return the trainer's options."""
        return ["--parallel", self.kind, *(("--amp", "bf16", "--compile") if self.short else ())]


SMALL = Work(layers=2, heads=4, dim=128, context=64, batch_size=32, steps=60, log_every=5, uncounted_steps=10, turns=5)
ON_A_GPU = Work(
    layers=12, heads=12, dim=768, context=1024, batch_size=16, steps=120, log_every=20, uncounted_steps=40, turns=3
)


def scaling() -> list[Row]:
    """Measure 1, 2 and 4 processes with DDP over gloo and the same work each: tokens per second against one process."""
    with tempfile.TemporaryDirectory() as folder:
        text = SMALL.write_text(Path(folder) / "text", max(PROCESSES))
        measures = [partial(_trainer_speed, SMALL, text, Way(processes=number)) for number in PROCESSES]
        turns = [[measure() for measure in measures] for _ in range(SMALL.turns)]
    cores = len(os.sched_getaffinity(0))
    # Half of the theoretical maximum: the cores also exchange gradients, and two may be threads of one core.
    return [
        _compare(f"{number} processes / 1", min(number, cores) / 2, [(turn[place], turn[0]) for turn in turns], cores)
        for place, number in enumerate(PROCESSES)
        if place
    ]


def trainer() -> list[Row]:
    """Measure the trainer's steps against a plain loop without this project, on one process."""
    rows = [_against_plain_loop("trainer / plain loop, CPU", SMALL, Way(), CPU_ONLY)]
    if not _has_gpu():
        detail = f"{rows[0].detail}; no GPU here: DDP and FSDP with bf16 and --compile not measured"
        return [replace(rows[0], detail=detail)]
    for kind in ("ddp", "fsdp"):
        way = Way(kind, short=True)
        rows.append(_against_plain_loop(f"{kind}, bf16, compiled / plain loop, GPU", ON_A_GPU, way, {}))
    return rows


def _against_plain_loop(name: str, work: Work, way: Way, env: dict[str, str]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        text = work.write_text(Path(folder) / "text", way.processes)
        turns = [take_turn(work, way, text, env=env) for _ in range(work.turns)]
    return _compare(name, PLAIN_LIMIT, turns, len(os.sched_getaffinity(0)))


def take_turn(work: Work, way: Way, text: Path, *, env: dict[str, str], execute: Execute = run) -> tuple[float, float]:
    """Return the tokens per second of the trainer and of the plain loop, one right after the other."""
    return (
        _trainer_speed(work, text, way, env=env, execute=execute),
        _plain_speed(work, text, way, env=env, execute=execute),
    )


def find_ratio(turns: Sequence[tuple[float, float]]) -> float:
    """Return the median over the turns of what the trainer reaches of the plain loop's speed."""
    return statistics.median(mine / other for mine, other in turns)


def _compare(name: str, limit: float, turns: Sequence[tuple[float, float]], cores: int) -> Row:
    """Compare the two runs of each turn, one right after the other: a machine's speed drifts by more than 2 percent."""
    mine, other = (statistics.median(speeds) for speeds in zip(*turns, strict=True))
    detail = f"{mine:.0f} against {other:.0f} tokens/s, {cores} cores, median of {len(turns)}"
    return Row(name, find_ratio(turns), "ratio", limit, detail, at_least=True)


def _trainer_speed(
    work: Work, text: Path, way: Way, *, env: dict[str, str] = CPU_ONLY, execute: Execute = run
) -> float:
    with tempfile.TemporaryDirectory() as folder:
        argv = [*_torchrun(way), "-m", "launcher.trainer", *work.flags(), *way.flags()]
        execute([*argv, "--data", str(text), "--save-dir", folder], env={**os.environ, **env})
        return _read_speed(work, Path(folder) / "metrics.jsonl")


def _plain_speed(work: Work, text: Path, way: Way, *, env: dict[str, str], execute: Execute) -> float:
    options = json.dumps({**asdict(work), **asdict(way), "data": str(text)})
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        execute([*_torchrun(way), str(PLAIN_LOOP), options, str(metrics)], env={**os.environ, **env})
        return _read_speed(work, metrics)


def _torchrun(way: Way) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(way.processes)]


def _read_speed(work: Work, metrics: Path) -> float:
    """Return the speed between the two fastest log lines: other load can only slow the trainer down."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return max(float(line.get("tokens_per_s", 0)) for line in lines if line["step"] > work.uncounted_steps)


def _has_gpu() -> bool:
    return run([sys.executable, "-c", "import torch; print(torch.cuda.is_available())"]).output.strip() == "True"
