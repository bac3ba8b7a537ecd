"""Check the GPUs that a run would use on a node: whether other processes use them, and whether they are healthy."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnosis.signatures import explain_lines
from launcher.job.facts import Gpu, GpuProcess
from launcher.job.plan import count_processes, used_gpus, visible_gpus
from launcher.preflight.findings import PROBLEM, WARNING, CheckedHost, Finding, Severity, on_cpus
from launcher.wording import count, listed

_FULL = 0.5  # of a GPU's memory: with more in use a training run is bound to fail
_FEW_PIDS = 3
_FEW_JOBS = 32
_IDLE_MIB = 1024  # a driver keeps some hundred MiB for itself
_MPS_SERVER = "nvidia-cuda-mps"  # as /proc has its name: it lets processes share a GPU that is exclusively its own
# The oldest driver for each CUDA of torch (docs.nvidia.com/deploy/cuda-compatibility).
_OLDEST_DRIVERS = {"11": 450, "12": 525, "13": 580}


def check(node: CheckedHost) -> Iterator[Finding]:
    """Yield what is wrong with the GPUs that this node would use."""
    if node.fact.checks is None or not node.job.wants_gpus:
        return
    if _is_built_for_cpus(node):
        fix = f"install one for its GPUs, or {on_cpus(node.job)}"
        yield Finding((node.name,), f"torch {node.fact.torch_version} is a CPU-only build", fix)
    gpus = [*used_gpus(node.job, node.host, node.fact)]
    yield from _check_lost(node, gpus)
    yield from _check_driver(node, gpus)
    yield from _check_mig(node)
    gpus = [gpu for gpu in gpus if gpu.fault is None]
    yield from _check_busy(node, gpus)
    for gpu in gpus:
        if gpu.compute_mode == "Prohibited":
            yield _find_blocked(node, gpu)
        if gpu.ecc_errors:
            text = f"GPU {gpu.index} had {count(gpu.ecc_errors, 'uncorrectable memory error')}"
            yield Finding((node.name,), text, "reset it, or leave it out with --exclude: results may be wrong", WARNING)


def find_busy(node: CheckedHost) -> list[Finding]:
    """Return the problems that end with the processes that use the run's GPUs."""
    found = _check_busy(node, [*used_gpus(node.job, node.host, node.fact)])
    return [finding for finding in found if finding.severity is PROBLEM]


def name_user(node: CheckedHost) -> str:
    """Return `pid 4242 (python) of bob`, of the first process for which a run would have to wait; empty: none."""
    for gpu in used_gpus(node.job, node.host, node.fact):
        if _is_exclusive(gpu) or (_severity(gpu) is PROBLEM and gpu.processes):
            return _who([*gpu.processes[:1]])
        if _severity(gpu) is PROBLEM and hidden_mib(gpu):
            return "a process that isn't visible"
    return ""


def _is_exclusive(gpu: Gpu) -> bool:
    return gpu.compute_mode.startswith("Exclusive") and bool(gpu.processes) and gpu.processes == users_of(gpu)


def _find_blocked(node: CheckedHost, gpu: Gpu) -> Finding:
    fix = f"run nvidia-smi -i {gpu.index} -c DEFAULT"
    return Finding((node.name,), f"GPU {gpu.index} blocks new processes (compute mode {gpu.compute_mode})", fix)


def _check_lost(node: CheckedHost, gpus: list[Gpu]) -> Iterator[Finding]:
    """Yield the GPUs that don't respond, and what the tool complains of beside its table.

    A GPU that isn't even listed breaks a run that is to use all of them: it would begin with one fewer.
    """
    for gpu in gpus:
        if gpu.fault is not None:
            fix = f"reboot that host, or leave the GPU out with --exclude {node.name}:{gpu.index}"
            yield Finding((node.name,), f"GPU {gpu.index} doesn't respond ({gpu.fault})", fix)
    error = node.fact.gpu_error
    if gpus and error:
        is_choice = node.host.gpus is not None or node.host.slots is not None or node.job.nproc is not None
        known = next((found for found in explain_lines([error]) if found.name == "gpu-fell-off"), None)
        severity = PROBLEM if known and not is_choice and node.fact.visible_gpus is None else WARNING
        fix = known.fix if known else "look for the cause in dmesg there"
        yield Finding((node.name,), f"its GPU tool reports an error: {error}", fix, severity)


def _check_driver(node: CheckedHost, gpus: list[Gpu]) -> Iterator[Finding]:
    """Warn of a driver that is too old for torch's CUDA; with NVIDIA's package cuda-compat it may still do."""
    cuda, words = node.fact.cuda_version, gpus[0].driver.partition(".") if gpus else ("", "", "")
    oldest = _OLDEST_DRIVERS.get((cuda or "").partition(".")[0])
    if oldest is not None and words[0].isdigit() and int(words[0]) < oldest and node.job.program.needs_torch:
        text = f"driver {gpus[0].driver} is too old for torch's CUDA {cuda}, which needs {oldest}"
        fix = f"update it, or install a torch for CUDA {_newest_cuda(int(words[0]))}; cuda-compat helps only some GPUs"
        yield Finding((node.name,), text, fix, WARNING)


def _newest_cuda(driver: int) -> str:
    return max((cuda for cuda, oldest in _OLDEST_DRIVERS.items() if oldest <= driver), default="10")


def _check_mig(node: CheckedHost) -> Iterator[Finding]:
    """Refuse several ranks where a GPU is divided: CUDA then shows a process one MIG device, and no other GPU.

    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (CUDA Device Enumeration)
    """
    divided = [gpu.index for gpu in visible_gpus(node.host, node.fact) if gpu.is_mig]
    if divided and count_processes(node.job, node.host, node.fact) > 1:
        names = f"{node.name}:{','.join(map(str, divided))}"
        text = f"GPU {listed(divided)} in MIG mode: CUDA shows each rank the same MIG device, and no other GPU"
        yield Finding((node.name,), text, f"leave out with --exclude {names}, or turn MIG off: nvidia-smi -mig 0")


def users_of(gpu: Gpu) -> tuple[GpuProcess, ...]:
    """Return the processes that use a GPU; MPS's server only serves others."""
    return tuple(process for process in gpu.processes if process.name != _MPS_SERVER)


def _is_built_for_cpus(node: CheckedHost) -> bool:
    fact = node.fact
    is_known = node.job.program.needs_torch and fact.torch_version not in (None, "unknown")
    return is_known and bool(fact.gpus) and fact.cuda_version is None and fact.hip_version is None


def _check_busy(node: CheckedHost, gpus: list[Gpu]) -> Iterator[Finding]:
    """Yield one finding for all processes of one owner and program, which usually are one job."""
    jobs: dict[tuple[str | None, ...], list[tuple[Gpu, GpuProcess]]] = {}
    for gpu in gpus:
        for process in users_of(gpu):
            jobs.setdefault((process.owner, process.name, process.mark), []).append((gpu, process))
        if hidden := hidden_mib(gpu):
            who = "the desktop on it" if gpu.has_display else "a process that isn't visible there"
            fix = "look on the machine itself, or reset the GPU: the process is in a container or dead"
            fix = "close programs of the desktop" if gpu.has_display else fix
            text = f"GPU {gpu.index}: {gigabytes(hidden)} in use by {who}"
            yield Finding((node.name,), text, fix, _severity(gpu))
    for places in _few(jobs):
        indexes = listed(dict.fromkeys(gpu.index for gpu, _ in places))
        processes = [process for _, process in places]
        text = f"GPU {indexes} busy: {describe_processes(processes)}"
        worst = min((_severity(gpu) for gpu, _ in places), key=lambda severity: severity.rank)
        yield Finding((node.name,), text, _remedy(node, processes, len(gpus), can_wait=worst is PROBLEM), worst)
    yield from (_find_blocked(node, gpu) for gpu in gpus if _is_exclusive(gpu))


def _few(jobs: dict[tuple[str | None, ...], list[tuple[Gpu, GpuProcess]]]) -> list[list[tuple[Gpu, GpuProcess]]]:
    """Return the first jobs, which are named one by one, and then all others together as one."""
    named = list(jobs.values())
    others = [place for places in named[_FEW_JOBS:] for place in places]
    return [*named[:_FEW_JOBS], *([others] if others else [])]


def hidden_mib(gpu: Gpu) -> int:
    """Return how much memory of a GPU processes have that aren't visible on its host; 0 if some process is visible.

    nvidia-smi lists none that only draws, so what a desktop has doesn't count up to half of the memory.
    """
    used, memory = _used_mib(gpu), gpu.memory_mib or 0
    usual = memory * _FULL if gpu.has_display else max(_IDLE_MIB, memory // 20)
    return used if not gpu.processes and used > usual else 0


def _used_mib(gpu: Gpu) -> int:
    if gpu.memory_mib is None or gpu.free_mib is None:
        return 0
    return gpu.memory_mib - gpu.free_mib


def _severity(gpu: Gpu) -> Severity:
    return PROBLEM if gpu.memory_mib and _used_mib(gpu) > _FULL * gpu.memory_mib else WARNING


def _is_mixed(processes: list[GpuProcess]) -> bool:
    return len({(process.owner, process.name, process.mark) for process in processes}) > 1


def describe_processes(processes: list[GpuProcess]) -> str:
    """Return `pid 4242 (python) of bob, 10 GB` for processes of one owner and program; others are only counted."""
    memory = sum(process.memory_mib or 0 for process in processes)
    return _who(processes) + (f", {gigabytes(memory)}" if memory else "")


def _who(processes: list[GpuProcess]) -> str:
    pids = list(dict.fromkeys(process.pid for process in processes))
    first = processes[0]
    if _is_mixed(processes):
        return f"{count(len(pids), 'more process')} of other programs"
    name = f" ({first.name})" if first.name else ""
    owner = f" of {first.owner}" if first.owner else ""
    numbers = f"pid {listed(pids)}" if len(pids) <= _FEW_PIDS else f"{count(len(pids), 'process')}, first pid {pids[0]}"
    return numbers + (name + owner or ", not visible there (another container?)")


def _remedy(node: CheckedHost, processes: list[GpuProcess], number: int, *, can_wait: bool) -> str:
    mark = processes[0].mark
    if mark is not None and not _is_mixed(processes):
        return f"if run {mark.partition('.')[0]} is over, stop it with `launch clean`"
    free = node.name_free(number)
    choice = f"choose free GPUs with {free}" if free else "choose other GPUs with --include"
    return f"{choice}, {'wait with --queue, ' if can_wait else ''}or start anyway with --no-check"


def gigabytes(mib: int) -> str:
    """Return `120 GB` or `0.4 GB` for MiB, in the units of a GPU's label: 81559 MiB are 80 GB."""
    size = mib / 1024
    return f"{size:.0f} GB" if size >= 9.5 else f"{size:.1f} GB"
