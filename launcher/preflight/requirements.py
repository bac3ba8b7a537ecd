"""Check what a plan needs of each node: its environment, a Python with torch, the directory, GPUs, a route."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.diagnosis.signatures import explain_lines
from launcher.job.activation import python_of
from launcher.job.facts import SetupFailure
from launcher.job.job import ProgramKind
from launcher.job.plan import count_processes, count_visible
from launcher.job.variables import VISIBLE_DEVICES
from launcher.node import messages
from launcher.preflight.findings import WARNING, CheckedHost, Finding, on_cpus
from launcher.wording import count


def check(node: CheckedHost) -> Iterator[Finding]:
    """Yield what would make the plan wrong on this node."""
    checks = (_check_environment, _check_python, _check_torchrun, _check_folder, _check_gpus, _check_route)
    for find in checks:
        for text, fix in find(node):
            yield Finding((node.name,), text, fix)


IN_USE = "Address already in use"  # as a node words it, so Linux; os.strerror would word it as this machine does
_WORDS = {messages.NO_PROGRAM: "isn't there", messages.NO_TORCH: "has no torch"}
_Found = Iterator[tuple[str, str]]


def _check_environment(node: CheckedHost) -> _Found:
    """Check whether the node could enter the environment of --setup, --venv or --conda."""
    venv, failure = node.job.activation.venv, node.fact.setup_failure
    if not node.fact.venv_found:
        yield (
            f"no virtual environment {venv}: {venv}/bin/python doesn't exist",
            "create it with python3 -m venv, or name another with --venv",
        )
    if failure is not None:
        yield f"{failure.step} failed ({failure.reason}){_said(failure)}", _hint(failure)


def _is_entered(node: CheckedHost) -> bool:
    """Tell whether the node could enter the environment; only then did it look for a Python."""
    return node.fact.venv_found and node.fact.setup_failure is None


def _said(failure: SetupFailure) -> str:
    # A colored error would color launch's output too.
    lines = ["".join(letter for letter in line if letter.isprintable()) for line in failure.lines]
    if len(lines) < 2:
        return "".join(f": {line}" for line in lines)
    return ":" + "".join(f"\n    {line}" for line in lines)


def _hint(failure: SetupFailure) -> str:
    if failure.step == "--setup":
        return "test it there: it runs in the working directory, in bash, without a terminal"
    has_conda = not any(line.startswith("no conda on PATH") for line in failure.lines)
    known = "name an environment, or its path, that `conda env list` shows there"
    return known if has_conda else "load conda or add it to PATH with --setup"


def _check_python(node: CheckedHost) -> _Found:
    if not node.job.program.needs_torch or node.fact.torch_version is not None or not _is_entered(node):
        return
    tried = "; ".join(f"{path}: {why}" for path, why in node.fact.pythons_tried)
    if node.job.python:
        has_none = tried.endswith(messages.NO_TORCH)
        fix = "install torch for it, or name another Python" if has_none else "name one that exists there and starts"
        yield f"--python {tried}", fix
    elif node.job.activation.has_python:
        yield f"no Python with torch ({tried})", "install torch in that environment, or name another"
    else:
        yield f"no Python with torch ({tried})", "install torch, or name a Python that has it with --python PATH"


def _check_torchrun(node: CheckedHost) -> _Found:
    """Refuse torch before 2.0: its torchrun takes no option with dashes (pytorch #94505); before 1.9 there is none."""
    version = node.fact.torch_version
    if node.job.uses_torchrun and version is not None and version.partition(".")[0] in ("0", "1"):
        yield (
            f"torch {version} is too old for torchrun as launch starts it",
            "start without it: --start plain",
        )


def _check_folder(node: CheckedHost) -> _Found:
    job = node.job
    if job.tree is not None:  # launch has looked at what it sends
        return
    if not node.fact.workdir_found and job.program.kind is not ProgramKind.BUILTIN:
        yield (
            f"the working directory {job.workdir} doesn't exist",
            "send yours with --sync, or name one that exists with --workdir",
        )
    elif not node.fact.script_found:
        yield (
            f"the script {job.program.target} is not in {job.workdir}",
            "send it with --sync, or name its directory with --workdir",
        )


def _check_gpus(node: CheckedHost) -> _Found:
    if not node.job.wants_gpus:
        return
    host, fact = node.host, node.fact
    wanted = count_processes(node.job, host, fact)
    if not fact.gpus:
        error = fact.gpu_error or "nvidia-smi lists none"
        yield f"no GPU ({error})", _gpu_remedy(error, on_cpus(node.job))
        return
    if host.gpus is not None:
        indexes = [gpu.index for gpu in fact.gpus]
        missing = sorted(set(host.gpus) - set(indexes))
        if missing:
            is_whole = indexes == list(range(len(indexes)))  # a GPU that is lost leaves a gap
            there = f"0 to {len(indexes) - 1}" if is_whole else ", ".join(map(str, indexes))
            yield f"has no GPU {', '.join(map(str, missing))}", f"choose from {there}"
        return
    visible = count_visible(host, fact)
    # The node doesn't say which variable the login or --setup has set.
    variable = next((name for name in VISIBLE_DEVICES if name in node.job.env), "*_VISIBLE_DEVICES")
    if not visible:
        fix = "the list ends at the first entry that names no GPU; a repeated entry hides all"
        yield f"{variable} hides all {count(len(fact.gpus), 'GPU')}", f"correct or unset it ({fix})"
    elif wanted > visible:
        has = f"it has {visible}" if visible == len(fact.gpus) else f"only {visible} visible ({variable})"
        option = "lower NGPUS" if node.job.in_script else "request fewer with --gpus"
        yield f"{wanted} GPUs requested, but {has}", f"{option} (one process per GPU)"


def _gpu_remedy(error: str, otherwise: str) -> str:
    """Return what to do about a GPU tool that lists nothing; otherwise: if the host may simply have no GPU."""
    if "gave no answer" in error:
        return "run nvidia-smi there: if it hangs, look for NVRM in dmesg, and reboot"
    if error == messages.NO_GPU_TOOL:
        return f"install the driver of its GPUs; if it has none, {otherwise}"
    found = next(explain_lines([error]), None)
    if found is not None and found.name == "driver-finds-none":
        return f"{found.fix}; if it has none, {otherwise}"
    return found.fix if found is not None else otherwise


def _check_route(node: CheckedHost) -> _Found:
    route = node.fact.route
    if route is None:
        return
    if route.error == IN_USE:
        fix = "omit --master-port, or find who has it with `ss -ltnp` there"
        yield f"port {node.job.master_port} is taken", fix
    elif route.error:
        yield f"can't use the address of node 0: {route.error}", "set addr= in the hostfile, or --master-addr"
    elif route.interface is None:
        yield f"no interface has the address {route.address}", "set NCCL_SOCKET_IFNAME with --env"


def find_passed_over(nodes: Sequence[CheckedHost]) -> Iterator[Finding]:
    """Yield why ranks don't run in the environment that is active where `launch` was typed.

    If no host has that environment, as with a Mac's, nobody expects it.
    """
    reasons = [_find_reason(node) for node in nodes]
    if set(reasons) == {messages.NO_PROGRAM}:
        return
    for node, reason in zip(nodes, reasons, strict=True):
        if reason is not None and node.fact.python is not None:
            why = _WORDS.get(reason, "has a Python that doesn't start")
            text = f"this terminal's environment {node.job.active_env} {why}, so ranks use {node.fact.python}"
            yield Finding((node.name,), text, "choose another with --venv, --conda or --python", WARNING)


def _find_reason(node: CheckedHost) -> str | None:
    """Return why a node passes over the active environment; None if it doesn't, or none is active."""
    folder = node.job.active_env
    return dict(node.fact.pythons_tried).get(python_of(folder)) if folder else None
