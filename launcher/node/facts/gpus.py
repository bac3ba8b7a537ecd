"""This node's GPUs, from nvidia-smi or else rocm-smi. Having no GPU, or neither tool, is a fact and not an error."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional

from launcher.node import messages, system
from launcher.node.processes import proc

TOOL_TIMEOUT_S = 5
# Without persistence mode, nvidia-smi loads the driver's firmware into each GPU, which took 25 s on some machines
# (github.com/Azure/AgentBaker/pull/2829).
LOADING_TIMEOUT_S = 60
DRIVER = "/proc/driver/nvidia"  # there while the driver is loaded
_FIELDS = (
    "index", "name", "memory.total", "driver_version", "uuid", "memory.free", "compute_mode",
    "ecc.errors.uncorrected.volatile.total", "pci.bus_id", "display_active", "temperature.gpu", "mig.mode.current",
)  # fmt: skip
_LOST = ("[GPU is lost]", "[GPU requires reset]")
_UNKNOWN_ERROR = "[Unknown Error]"  # some GPUs that are well answer so for a fan
_APP_FIELDS = ("gpu_uuid", "pid", "used_memory")
_AMD_COMMAND = ["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json"]
KERNEL_LOG = "/dev/kmsg"  # which on most systems only root may read
_MOST_RECORDS = 20000  # more than its ring holds
_MOST_XIDS = 20  # told at once
_XID_START = b"NVRM: Xid (PCI:"
CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
UNKNOWN = -1  # the index of the GPU that a MIG device is part of


class _Answer(NamedTuple):
    """What a tool printed to stdout and stderr, in lines, and its exit code."""

    lines: List[str]
    complaints: List[str]
    code: Optional[int]  # None: it didn't start, or didn't finish in time


def query_gpus() -> dict[str, Any]:
    """Return this node's GPUs with the processes on them, or the reason why there are none."""
    begun = [_begin(_nvidia_query("gpu", _FIELDS)), _begin(_nvidia_query("compute-apps", _APP_FIELDS))]
    if begun[0] is None:
        return _query_amd()
    timeout_s = LOADING_TIMEOUT_S if os.path.isdir(DRIVER) else TOOL_TIMEOUT_S
    deadline = time.monotonic() + timeout_s
    answer, apps = (_finish(tool, max(0.01, deadline - time.monotonic())) for tool in begun)
    if answer.code is None:
        return {"gpus": [], "gpu_error": "nvidia-smi gave no answer in %d s" % timeout_s}
    # With a warning (exit code 14: a corrupted infoROM) the table is complete; a lost GPU is a line in it.
    gpus = [gpu for gpu in map(_parse_gpu, answer.lines) if gpu is not None]
    others = [line for line in answer.lines if _parse_gpu(line) is None] + answer.complaints
    for gpu in gpus:
        gpu["processes"] = [process for line in apps.lines for process in _parse_app(line, gpu["uuid"])]
    error = others[0] if others else "nvidia-smi failed" if not gpus and answer.code else None
    return {"gpus": gpus, "gpu_error": error}


def _nvidia_query(what: str, fields: tuple[str, ...]) -> list[str]:
    return ["nvidia-smi", "--query-%s=%s" % (what, ",".join(fields)), "--format=csv,noheader,nounits"]


def _begin(command: list[str]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError:
        return None


def _finish(tool: subprocess.Popen[bytes] | None, timeout_s: float | None) -> _Answer:
    if tool is None:
        return _Answer([], [], None)
    try:
        stdout, stderr = tool.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        tool.kill()  # don't wait for it: with a hung driver it stays in state D
        return _Answer([], [], None)
    return _Answer(_lines(stdout), _lines(stderr), tool.returncode)


def _lines(text: bytes) -> list[str]:
    return [line for line in text.decode("utf-8", "replace").splitlines() if line.strip()]


def _parse_gpu(line: str) -> dict[str, Any] | None:
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(_FIELDS) or not words[0].isdigit():
        return None
    values = dict(zip(_FIELDS, words))
    uuid = values["uuid"]
    return {
        "index": int(values["index"]),
        "name": values["name"],
        "memory_mib": _number(values["memory.total"]),
        "driver": values["driver_version"],
        "uuid": "" if uuid.startswith("[") else uuid,
        "free_mib": _number(values["memory.free"]),
        "compute_mode": values["compute_mode"],
        "ecc_errors": _number(values["ecc.errors.uncorrected.volatile.total"]),
        "processes": [],
        "bus_id": values["pci.bus_id"],
        "fault": _find_fault(words, values),
        "has_display": values["display_active"] == "Enabled",
        "is_mig": values["mig.mode.current"] == "Enabled",
    }


def _find_fault(words: list[str], values: dict[str, str]) -> str | None:
    """Return what is printed instead of the values of a GPU that doesn't respond."""
    is_unknown = _UNKNOWN_ERROR in map(values.get, ("memory.total", "memory.free", "temperature.gpu"))
    found = [word for word in words if word in _LOST] + ([_UNKNOWN_ERROR] if is_unknown else [])
    return found[0].strip("[]") if found else None


def _number(word: str) -> int | None:
    return int(word) if word.isdigit() else None  # [N/A], [Not Supported]


def _parse_app(line: str, uuid: str) -> list[dict[str, Any]]:
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(_APP_FIELDS) or words[0] != uuid or not words[1].isdigit():
        return []
    return [{"pid": int(words[1]), "memory_mib": _number(words[2]), **describe_process(int(words[1]))}]


def describe_process(pid: int) -> dict[str, Any]:
    """Return a process's owner, name and run mark; None for what can't be seen, such as in another container.

    The driver may count processes in another PID namespace than this one: the process with this id here is then another
    one, as its open files show.
    """
    described: dict[str, Any] = {"owner": None, "name": None, "mark": None}
    process = proc.read_process(pid)
    if process is None or (proc.has_gpus() and proc.holds_gpu(process) is False):
        return described
    described.update(name=process.name, mark=proc.read_mark(pid))
    with suppress(OSError):  # it has just exited
        described["owner"] = system.user_name(os.stat("/proc/%d" % pid).st_uid)
    return described


def _query_amd() -> dict[str, Any]:
    tool = _begin(_AMD_COMMAND)
    if tool is None:
        return {"gpus": [], "gpu_error": messages.NO_GPU_TOOL}
    answer = _finish(tool, TOOL_TIMEOUT_S)
    if answer.code is None:
        return {"gpus": [], "gpu_error": "rocm-smi gave no answer in %d s" % TOOL_TIMEOUT_S}
    gpus = _parse_amd(answer.lines)
    return {"gpus": gpus, "gpu_error": None if gpus else [*answer.complaints, "rocm-smi lists none"][0]}


def _parse_amd(lines: list[str]) -> list[dict[str, Any]]:
    """Read {"card0": {"Card series": ..., "VRAM Total Memory (B)": ...}, "system": {...}}; return the GPUs.

    A card also gets what is said of the system. Keys are in small letters: "Card series" became "Card Series".
    """
    try:
        found = json.loads("\n".join(line for line in lines if line.lstrip().startswith("{")) or "{}")
        table = {name: {key.lower(): value for key, value in each.items()} for name, each in found.items()}
        cards = {int(name[4:]): card for name, card in table.items() if name.startswith("card")}
        return [_amd_gpu(index, {**table.get("system", {}), **cards[index]}) for index in sorted(cards)]
    except (ValueError, AttributeError, TypeError):
        return []


def list_processes() -> list[dict[str, Any]]:
    """Return the processes that have memory on NVIDIA's GPUs, each with the UUID of its GPU; a hang has no end here."""
    answer = _finish(_begin(_nvidia_query("compute-apps", _APP_FIELDS)), None)
    found = [(line.partition(",")[0].strip(), line) for line in answer.lines]
    return [dict(process, gpu=uuid) for uuid, line in found for process in _parse_app(line, uuid)]


def _amd_gpu(index: int, card: dict[str, Any]) -> dict[str, Any]:
    total, used = (_mebibytes(card.get("vram total %smemory (b)" % word)) for word in ("", "used "))
    names = [card.get(key) for key in ("card series", "device name", "card model")]
    return {
        "index": index,
        "name": ([str(name) for name in names if name not in (None, "", "N/A")] + ["AMD GPU"])[0],
        "memory_mib": total,
        "driver": str(card.get("driver version", "")),
        "uuid": "",
        "free_mib": total - used if total is not None and used is not None else None,
        "compute_mode": "",
        "ecc_errors": None,
        "processes": [],
        "bus_id": "",
        "is_amd": True,
    }


def _mebibytes(text: Any) -> int | None:
    return int(text) >> 20 if str(text).isdigit() else None


def find_visible(gpus: list[dict[str, Any]], env: Mapping[str, str]) -> list[int] | None:
    """Return the indexes of the GPUs that a process with this environment sees, in its order.

    The rules are the drivers', as repeated by `torch.cuda._parse_visible_devices`. Return None if it sees all of them,
    or if it names UUIDs and those of the GPUs aren't known.
    """
    seen = {gpu["index"]: gpu for gpu in gpus}
    found = None
    for name in _list_variables(gpus, env):
        if name not in env or not seen:
            continue
        found = _choose(env[name], seen)
        if found is None:
            return None
        by_index = {gpu["index"]: gpu for gpu in gpus}
        seen = dict(enumerate(by_index[index] for index in found if index in by_index))
    return found


def _list_variables(gpus: list[dict[str, Any]], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that apply, in order: ROCr's hides GPUs and renumbers the rest, HIP's selects from those."""
    if not any(gpu.get("is_amd") for gpu in gpus):
        return (CUDA,)
    if ROCR in env:
        return (ROCR, HIP)
    return (HIP,) if HIP in env else (CUDA,)


def _choose(text: str, seen: dict[int, dict[str, Any]]) -> list[int] | None:
    """Return the indexes of the GPUs that a list names; `seen` maps the numbers in the list to GPUs.

    A list of numbers, or of UUIDs or their beginnings, ends at the first entry that names no GPU, and a duplicate entry
    hides all GPUs.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if text.startswith("MIG-"):  # CUDA shows one MIG device to a process; up to driver 450 its name holds its GPU's
        found = [gpu["index"] for gpu in seen.values() if len(seen) == 1 or (gpu["uuid"] and gpu["uuid"] in entries[0])]
        return found if len(found) == 1 else [UNKNOWN]
    has_uuids = text.startswith("GPU-")
    if has_uuids and not all(gpu["uuid"] for gpu in seen.values()):
        return None
    chosen: list[int] = []
    for entry in entries:
        if has_uuids:
            named = [gpu["index"] for gpu in seen.values() if len(entry) > 4 and gpu["uuid"].startswith(entry)]
        else:
            named = [gpu["index"] for number, gpu in seen.items() if entry == str(number)]
        if len(named) != 1:
            break
        if named[0] in chosen:
            return []
        chosen += named
    return chosen


def follow_xids() -> Callable[[], list[dict[str, Any]]]:
    """Return what finds the faults that the driver has logged since the last call; it finds none without the right."""
    try:
        fd = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        return list

    def find() -> list[dict[str, Any]]:
        found = [_parse_xid(record) for record in _read_records(fd) if _XID_START in record]
        return [entry for entry in found if entry is not None][:_MOST_XIDS]

    return find


def _read_records(fd: int) -> Iterator[bytes]:
    """Yield the records that were not read yet (Documentation/ABI/testing/dev-kmsg)."""
    for _ in range(_MOST_RECORDS):
        try:
            record = os.read(fd, 8192)
        except BrokenPipeError:  # the ring has overwritten the record; the next read returns the oldest one left
            continue
        except OSError:  # the end of the log, where a read would block
            return
        if not record:
            return
        yield record


def _parse_xid(record: bytes) -> dict[str, Any] | None:
    """Parse `4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, ...`."""
    text = record.decode("utf-8", "replace").partition(";")[2]
    gpu, _, rest = text.partition("(PCI:")[2].partition("): ")
    number = rest.partition(",")[0].strip()
    if " Nonfatal " in rest or not number.isdigit():  # of NVLink 5: `149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03`
        return None
    return {"gpu": gpu, "number": int(number)}
