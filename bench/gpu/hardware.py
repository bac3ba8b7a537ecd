"""What is installed: GPUs, driver, torch, CUDA, NCCL. torch is asked in a process of its own, as ranks are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

# Raises nothing on a torch for CPUs. `uuid` has no "GPU-" in front of it, unlike nvidia-smi's.
_PROBE = """
import json, torch
from torch.cuda import nccl
gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
version = nccl.version() if torch.version.cuda and torch.distributed.is_nccl_available() else ()
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "nccl": ".".join(map(str, version)) or None,
    "gpus": [[gpu.name, gpu.total_memory, f"GPU-{gpu.uuid}"] for gpu in gpus],
}))
"""
PROBE_S = 60


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as torch sees it."""

    name: str
    memory_bytes: int
    uuid: str  # with GPU- in front


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the parts run on; None for what isn't installed."""

    gpus: Sequence[Gpu]
    torch: str
    cuda: str | None
    nccl: str | None
    driver: str | None
    cores: int

    def __str__(self) -> str:
        names = dict.fromkeys(f"{gpu.name} ({gpu.memory_bytes / (1 << 30):.1f} GiB)" for gpu in self.gpus)
        devices = f"{len(self.gpus)} x {' and '.join(names)}" if self.gpus else "no GPU"
        versions = {"driver": self.driver, "torch": self.torch, "CUDA": self.cuda, "NCCL": self.nccl}
        words = [devices, f"{self.cores} cores", *(f"{name} {value}" for name, value in versions.items() if value)]
        return ", ".join(words)


def find_hardware() -> Hardware:
    """Ask torch and nvidia-smi; RuntimeError if torch can't be imported."""
    try:
        answer = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"importing torch and finding its GPUs takes over {PROBE_S} s") from None
    if answer.returncode:
        said = answer.stderr.strip().splitlines() or [f"the import of torch ended with exit code {answer.returncode}"]
        raise RuntimeError(said[-1])
    return parse_hardware(answer.stdout, _ask_driver(), len(os.sched_getaffinity(0)))


def parse_hardware(probe: str, driver: str, cores: int) -> Hardware:
    """Return what the probe printed in its last line, and nvidia-smi's first line; both may be about no GPU."""
    known = json.loads(probe.strip().splitlines()[-1])
    gpus = [Gpu(*gpu) for gpu in known["gpus"]]
    lines = driver.split()
    return Hardware(gpus, known["torch"], known["cuda"], known["nccl"], lines[0] if lines else None, cores)


def _ask_driver() -> str:
    argv = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
