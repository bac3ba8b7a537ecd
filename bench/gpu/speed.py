"""The trainer's tokens per second, from its own log, against those of a plain loop with the same model and data."""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.gpu.part import Outcome, require
from bench.gpu.trial import Trial
from launcher.wording import count

PLAIN_LOOP = Path(__file__).with_name("plain_loop.py")
PLAIN_LIMIT = 0.98  # of the plain loop's speed
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
MOST_TURNS = 3


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


SMALL = Work(layers=2, heads=4, dim=128, context=64, batch_size=32, steps=30, log_every=5, uncounted_steps=10)
ON_A_GPU = Work(layers=12, heads=12, dim=768, context=1024, batch_size=16, steps=120, log_every=20, uncounted_steps=40)


def compare_with_plain_loop(kind: str, trial: Trial) -> Outcome:
    """Take turns with the plain loop as long as there is time for another, at most three."""
    processes = min(trial.gpus, 2) or 2
    work, env = (ON_A_GPU, {}) if trial.on_gpu else (SMALL, CPU_ONLY)
    text = str(work.write_text(trial.folder / "text", processes))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    precision = ["--amp", "bf16", "--compile"] if trial.on_gpu else []
    trainer = [*torchrun, "-m", "launcher.trainer", *work.flags(), "--parallel", kind, *precision, "--data", text]
    options = json.dumps({**asdict(work), "kind": kind, "short": trial.on_gpu, "data": text})
    turns: list[tuple[float, float]] = []
    longest_s = 0.0
    while len(turns) < MOST_TURNS and (not turns or (trial.on_gpu and longest_s < trial.left_s)):
        began_at = time.monotonic()
        with tempfile.TemporaryDirectory(dir=trial.folder) as name:
            own, plain = Path(name) / "metrics.jsonl", Path(name) / "plain.jsonl"
            trial.execute([*trainer, "--save-dir", name], env=env)
            trial.execute([*torchrun, PLAIN_LOOP, options, plain], env=env)
            turns.append((_read_speed(work, own), _read_speed(work, plain)))
        longest_s = max(longest_s, time.monotonic() - began_at)
    return judge_speed(turns, processes, is_limited=trial.on_gpu)


def judge_speed(turns: Sequence[tuple[float, float]], ranks: int, *, is_limited: bool) -> Outcome:
    """Return the median of the turns' ratios; PartError if the limit applies and isn't reached."""
    ratio, (mine, other) = statistics.median(mine / other for mine, other in turns), turns[-1]
    seen = f"{mine:.0f} against {other:.0f} tokens/s, {count(ranks, 'rank')}, median of {count(len(turns), 'turn')}"
    if not is_limited:
        return Outcome(f"{ratio:.2f}", f"{seen}; no limit on CPUs")
    require(ratio >= PLAIN_LIMIT, f"{ratio:.3f} of the plain loop, at least {PLAIN_LIMIT} is required: {seen}")
    return Outcome(f"{ratio:.3f}", seen)


def _read_speed(work: Work, metrics: Path) -> float:
    """Return the speed between the two fastest log lines: other load can only slow a loop down."""
    lines: list[Mapping[str, float]] = [json.loads(line) for line in metrics.read_text().splitlines()]
    return max(line.get("tokens_per_s", 0.0) for line in lines if line["step"] > work.uncounted_steps)
