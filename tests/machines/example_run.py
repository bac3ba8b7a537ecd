"""The directory of a run that has ended, as its controller leaves it: run.json, the log of node 0, and samples."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from launcher.runs.run_list import Controller, End, ListedRun

BEGAN_AT = datetime(2026, 11, 26, 8, 0, tzinfo=timezone.utc).timestamp()
RUN_ID = "20261126-080000"
ODD_HOST, ODD_GPU, ODD_RANK = "gpu2", 3, 11
FINDING = "thermal slowdown for 40 s, SM clock 800 MHz, the other 63 run at 1,980 MHz"


@dataclass(frozen=True)
class ExampleRun:
    """A run of three attempts that took the same time, the last of which failed on `ODD_HOST`."""

    hours: float = 1.0
    hosts: int = 8
    gpus: int = 8
    every_s: float = 30.0  # the samples
    name: str | None = "baseline"
    error: str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    said: str = "no line of its own"  # by the rank that fails, before that
    finding: str = FINDING
    more: dict[str, Any] = field(default_factory=dict)  # in run.json

    @property
    def names(self) -> list[str]:
        return [f"gpu{number}" for number in range(1, self.hosts + 1)]

    @property
    def ended_at(self) -> float:
        return BEGAN_AT + self.hours * 3600

    def write(self, place: Path) -> ListedRun:
        """Write the directory below `place`, and return the run as the list of runs has it."""
        folder = place / "logs" / RUN_ID
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(self.record()), "utf-8")
        with (folder / "node_0.log").open("w", encoding="utf-8") as log:
            log.writelines(self._lines())
        failed_at = _stamp(self.ended_at - 6)
        said = "".join(f"{failed_at} [{ODD_HOST}:{ODD_RANK}]! {line}\n" for line in (self.said, self.error))
        (folder / "node_1.log").write_text(said, "utf-8")
        with (folder / "samples.jsonl").open("w", encoding="utf-8") as samples:
            samples.writelines(self._samples())
        entry = place / RUN_ID
        entry.mkdir()
        controller = Controller(RUN_ID, self.name, str(folder), "laptop", "", 1, 2, BEGAN_AT)
        return ListedRun(entry, controller, is_alive=False, end=End(1, is_stopped=False))

    def record(self) -> dict[str, Any]:
        third = self.hours * 1200
        attempts = [
            self._attempt(BEGAN_AT, BEGAN_AT + third - 30, "host", None),
            self._attempt(BEGAN_AT + third, BEGAN_AT + 2 * third - 30, "network", None),
            self._attempt(BEGAN_AT + 2 * third, self.ended_at, "error", self._cause()),
        ]
        python = {"python": "/opt/venv/bin/python", "python_version": "3.11.9", "torch_version": "2.9.0+cu128"}
        gpu = {"gpus": self.gpus, "gpu_model": "NVIDIA H100 80GB HBM3", "driver": "570.86.15", "cpu_count": 192}
        torch = {"cuda_version": "12.8", "nccl_version": "2.27.5", "interface": "bond0"}
        hosts = [{"host": name, **gpu, **python, **torch} for name in self.names]
        hosts[-1]["driver"] = "570.124.06"
        return {
            "run_id": RUN_ID, "name": self.name, "user": "ann",
            "command": f"launch --hosts 'gpu[1-{self.hosts}]' --sync --restarts 10 --detach train.py --lr 3e-4",
            "directory": "/home/ann/project", "launch_host": "laptop", "again_of": None,
            "git": {"commit": "4f1c2a9be4c64cbf4b0b1c19d3f0a5a4cf0a3c51", "dirty": True, "changed_files": 3,
                    "untracked_files": 0},
            "started_at": _iso(BEGAN_AT + 4), "utc_offset": "+00:00", "ended_at": _iso(self.ended_at),
            "plan": {"world_size": self.hosts * self.gpus, "nodes": [
                {"host": name, "node_rank": rank, "first_rank": rank * self.gpus, "nproc": self.gpus}
                for rank, name in enumerate(self.names)]},
            "code": {"hash": "9b2e41d7aa03", "root": "/home/ann/project", "files": 212, "bytes": 1_204_233, "links": {},
                     "left_out": "outputs/ and 3 files of .gitignore"},
            "hosts": hosts,
            "warnings": ["gpu8: driver 570.124.06, the others have 570.86.15", "gpu2: 6 GiB free in /tmp"],
            "attempts": attempts, "result": attempts[-1]["result"], **self.more,
        }  # fmt: skip

    def _attempt(self, began_at: float, ended_at: float, outcome: str, cause: dict[str, Any] | None) -> dict[str, Any]:
        lost = {
            **self._cause(),
            "rank": None,
            "text": "lost: no heartbeat for 15 s",
            "traceback": [],
            "explanation": None,
        }
        return {
            "hosts": self.names, "spares": ["gpu9"], "master_port": 29500, "began_at": _iso(began_at),
            "ended_at": _iso(ended_at), "outcome": outcome, "progress": True,
            "then": "--restarts 10: 2 of 10 used" if cause is None else "the same error twice on the same rank",
            "restarts": {"used": 2, "without_progress": 1, "left": 9}, "search": None,
            "result": {"exit_code": 1, "seconds": ended_at - began_at, "interrupted_by": None, "time_limit": None,
                       "error": None, "left": {}, "unreachable": {},
                       "cause": {**(cause or lost), "at": _iso(ended_at - 6)}},
        }  # fmt: skip

    def _cause(self) -> dict[str, Any]:
        return {
            "host": ODD_HOST, "what": "rank", "rank": ODD_RANK, "local_rank": ODD_GPU, "exit_code": 1, "signal": None,
            "oom": None, "text": "exit code 1",
            "traceback": ['File "/home/ann/project/train.py", line 118, in step', "  loss.backward()", self.error],
            "last_lines": [self.said, self.error],
            "explanation": {"name": "cuda-oom", "cause": "its GPU is out of memory",
                            "fix": "reduce the batch size, or shard the optimizer's state"},
        }  # fmt: skip

    def _lines(self) -> list[str]:
        """Return what rank 0 prints: every 5 s a line with some numbers, one of which is NaN for a while."""
        count = int(self.hours * 720)
        lines = []
        for step in range(count):
            loss = 2.1 + 8 * math.exp(-6 * step / count) + 0.08 * math.sin(step * 1.7)
            norm = "nan" if count // 2 < step < count // 2 + 4 else f"{1 + 0.4 * math.sin(step / 9):.3f}"
            rate = 3e-4 * min(1, step / (0.05 * count)) * (1 - 0.9 * step / count)
            speed = 412_000 + 9000 * math.sin(step / 50)
            text = f"step: {step}/{count} loss={loss:.4f} lr: {rate:.3e} tokens/s={speed:,.0f}"
            stamp = _stamp(BEGAN_AT + 22 + step * 5)
            lines.append(f"{stamp} [gpu1:0] {text} {{'grad_norm': {norm}, 'mfu': {41 + math.sin(step / 30):.1f}%}}\n")
        return lines

    def _samples(self) -> list[str]:
        lines = []
        for number in range(int(self.hours * 3600 / self.every_s)):
            at = BEGAN_AT + 10 + number * self.every_s
            for place, host in enumerate(self.names):
                wave = math.sin(number / 11 + place)
                gpus = {
                    str(gpu): [96 + 2 * wave, 71_000 + 200 * gpu, 640 + 25 * wave, 63 + gpu / 2, 1980, 4]
                    for gpu in range(self.gpus)
                }
                if host == ODD_HOST and number > 0.4 * self.hours * 3600 / self.every_s:
                    gpus[str(ODD_GPU)] = [100, 71_600, 410 + 9 * wave, 87 + wave, 800 + 25 * wave, 0x40]
                sample = {"at": at, "host": host, "cpu": 37 + 5 * wave, "memory_used_gib": 93.1 + wave, "gpus": gpus}
                lines.append(json.dumps(sample) + "\n")
        at = BEGAN_AT + 10 + 0.4 * self.hours * 3600
        finding = {"at": at, "host": ODD_HOST, "gpu": ODD_GPU, "rank": ODD_RANK, "finding": self.finding}
        return [*lines, json.dumps(finding) + "\n"]


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")


def _stamp(at: float) -> str:
    return _iso(at)[:23].replace("T", " ")
