"""What the machine's own tools say of its GPUs, kept in files: real output for the tests' stand-ins."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

from bench.gpu.hardware import Gpu
from bench.gpu.part import Outcome, require
from bench.gpu.trial import ROOT, Trial
from launcher.node.facts.gpus import query_gpus
from launcher.node.nvml import NvmlError, find_gpu, list_gpus
from launcher.wording import count

KEPT = ROOT / "outputs" / "gpu"
QUERY_S = 60
_FIELDS = (
    "index,name,uuid,pci.bus_id,driver_version,persistence_mode,compute_mode,mig.mode.current,memory.total,memory.used,"
    "memory.free,utilization.gpu,power.draw,power.limit,temperature.gpu,clocks.sm,clocks.max.sm,"
    "clocks_throttle_reasons.active,ecc.errors.uncorrected.volatile.total,pcie.link.gen.current,pcie.link.width.current"
)
_COMMANDS = {
    "smi": "nvidia-smi",
    "smi-list": "nvidia-smi -L",
    "smi-gpu": f"nvidia-smi --query-gpu={_FIELDS} --format=csv",
    "smi-apps": "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
    "smi-wrong-field": "nvidia-smi --query-gpu=index,no.such.field --format=csv",
    "smi-wrong-gpu": "nvidia-smi -i 99 --query-gpu=index --format=csv",
    "smi-xml": "nvidia-smi -q -x",
    "smi-topology": "nvidia-smi topo -m",
    "smi-nvlink": "nvidia-smi nvlink --status",
    "proc": "head -50 /proc/driver/nvidia/version /proc/driver/nvidia/params /proc/driver/nvidia/gpus/*/*",
    "devices": "ls -l /dev/nvidia* /dev/dri /dev/dxg",
    "pci": "for v in $(grep -l 10de /sys/bus/pci/devices/*/vendor); do cd ${v%/*}; head numa_node local_cpulist; done",
    "libraries": "ldconfig -p | grep -i -E 'nvidia-ml|libcuda'",
    "kernel": "uname -r; dmesg | grep -i -E 'nvrm|xid' | tail",
}


def keep_queries(trial: Trial) -> Outcome:
    """Write the output of every query to outputs/gpu, with what both readers of NVML and the facts say."""
    KEPT.mkdir(parents=True, exist_ok=True)
    slowest_s, slowest = 0.0, ""
    for name, command in _COMMANDS.items():
        began_at = time.monotonic()
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=QUERY_S, check=False)
        spent_s = time.monotonic() - began_at
        said = f"$ {command}\n{done.stdout}{done.stderr}exit code {done.returncode}, {spent_s:.2f} s\n"
        (KEPT / f"{name}.txt").write_text(said)
        slowest_s, slowest = max((slowest_s, slowest), (spent_s, name))
    facts, sensors = query_gpus(), [read_sensors(gpu) for gpu in trial.hardware.gpus]
    (KEPT / "read.json").write_text(json.dumps({"facts": facts, "nvml": read_nvml(), "sensors": sensors}, indent=1))
    require(len(facts["gpus"]) == len(trial.hardware.gpus), f"{facts['gpu_error']}; torch: {trial.hardware}")
    seen = f"the slowest query, {slowest}; {count(len(_COMMANDS) + 1, 'file')} in {KEPT.relative_to(ROOT)}"
    return Outcome(f"{slowest_s:.1f} s", seen)


def read_nvml() -> list[Any] | str:
    """Return what the hosts' reader samples of each GPU, or why it can't."""
    try:
        return [gpu.sample(index) for index, gpu in enumerate(list_gpus())]
    except NvmlError as error:
        return str(error)


def read_sensors(gpu: Gpu) -> list[int | None] | None:
    """Return what the load test's reader knows of a GPU: its number, °C, MHz, mW, uncorrected and corrected errors."""
    found = find_gpu(gpu.uuid, None)
    if found is None:
        return None
    names = ("index", "temperature_c", "clock_mhz", "power_mw", "uncorrected_errors", "corrected_errors")
    return [found.read(name) for name in names]
