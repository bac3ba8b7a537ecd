"""Which of a node's GPUs a process sees, given CUDA_VISIBLE_DEVICES or the two variables of AMD's ROCm.

The rules are the drivers', as repeated by `torch.cuda._parse_visible_devices`: a list of numbers, or of UUIDs or
their prefixes, ends at the first entry that names no GPU, and a duplicate entry hides all GPUs.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

Seen = Mapping[int, Dict[str, Any]]


CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
UNKNOWN = -1  # the index of the GPU that a MIG device is part of


def find_visible(gpus: list[dict[str, Any]], env: Mapping[str, str]) -> list[int] | None:
    """Return the indexes of the GPUs that a process with this environment sees, in its order.

    Return None if it sees all of them, or if it names UUIDs and those of the GPUs aren't known.
    """
    seen = {gpu["index"]: gpu for gpu in gpus}
    found = None
    for name in _variables(gpus, env):
        if name not in env or not seen:
            continue
        found = _choose(env[name], seen)
        if found is None:
            return None
        by_index = {gpu["index"]: gpu for gpu in gpus}
        seen = dict(enumerate(by_index[index] for index in found if index in by_index))
    return found


def _variables(gpus: list[dict[str, Any]], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that apply, in order: ROCr's hides GPUs and renumbers the rest, HIP's selects from those."""
    if not any(gpu.get("is_amd") for gpu in gpus):
        return (CUDA,)
    if ROCR in env:
        return (ROCR, HIP)
    return (HIP,) if HIP in env else (CUDA,)


def _choose(text: str, seen: Seen) -> list[int] | None:
    """Return the indexes of the GPUs that a list names; `seen` maps the numbers in the list to GPUs."""
    entries = text.split(",")
    if text.startswith("MIG-"):
        return [_find_mig(entries[0], seen)]  # CUDA shows one MIG device to a process
    has_uuids = text.startswith("GPU-")
    if has_uuids and not all(gpu["uuid"] for gpu in seen.values()):
        return None
    chosen: list[int] = []
    for entry in entries:
        index = _find_uuid(entry.strip(), seen) if has_uuids else _find_number(entry, seen)
        if index is None:
            break
        if index in chosen:
            return []
        chosen.append(index)
    return chosen


def _find_number(entry: str, seen: Seen) -> int | None:
    text = entry.strip()
    gpu = seen.get(int(text)) if text.isdecimal() else None
    return gpu["index"] if gpu else None


def _find_uuid(entry: str, seen: Seen) -> int | None:
    named = [gpu["index"] for gpu in seen.values() if entry.startswith("GPU-") and gpu["uuid"].startswith(entry)]
    return named[0] if len(named) == 1 else None


def _find_mig(entry: str, seen: Seen) -> int:
    """Return the GPU of a MIG device, or UNKNOWN: its name holds that GPU's UUID only up to driver 450."""
    found = [gpu["index"] for gpu in seen.values() if len(seen) == 1 or (gpu["uuid"] and gpu["uuid"] in entry)]
    return found[0] if len(found) == 1 else UNKNOWN
