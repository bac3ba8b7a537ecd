"""Check what a plan needs of each node: a Python with torch, the directory, enough GPUs, a route to node 0."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.job.job import ProgramKind
from launcher.job.plan import count_processes, count_visible
from launcher.job.variables import VISIBLE_DEVICES
from launcher.node import messages
from launcher.preflight import activation
from launcher.preflight.findings import Finding, Node, on_cpus
from launcher.wording import count


def check(node: Node) -> Iterator[Finding]:
    """Yield what would make the plan wrong on this node."""
    checks = (activation.find, _check_python, _check_torchrun, _check_folder, _check_gpus, _check_route)
    for find in checks:
        for text, fix in find(node):
            yield Finding((node.name,), text, fix)


IN_USE = "Address already in use"  # as a node words it, so Linux; os.strerror would word it as this machine does
_Found = Iterator[tuple[str, str]]


def _check_python(node: Node) -> _Found:
    if not node.job.program.needs_torch or node.fact.torch_version is not None or not activation.is_entered(node):
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


def _check_torchrun(node: Node) -> _Found:
    """Refuse torch before 2.0: its torchrun takes no option with dashes (pytorch #94505); before 1.9 there is none."""
    version = node.fact.torch_version
    if node.job.uses_torchrun and version is not None and version.partition(".")[0] in ("0", "1"):
        yield f"torch {version} is too old for torchrun as launch starts it", "start the ranks without it: --legacy"


def _check_folder(node: Node) -> _Found:
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


def _check_gpus(node: Node) -> _Found:
    if not node.job.wants_gpus:
        return
    host, fact = node.host, node.fact
    wanted = count_processes(node.job, host, fact)
    if not fact.gpus:
        yield f"no GPU ({fact.gpu_error or 'nvidia-smi lists none'})", on_cpus(node.job)
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


def _check_route(node: Node) -> _Found:
    route = node.fact.route
    if route is None:
        return
    if route.error and route.error.startswith(IN_USE):
        port = node.job.master_port
        fix = "stop that process, or choose another port with --master-port"
        yield f"port {port} is taken{route.error[len(IN_USE) :]}", fix
    elif route.error:
        yield f"can't use the address of node 0: {route.error}", "set addr= in the hostfile, or --master-addr"
    elif route.interface is None:
        yield f"no interface has the address {route.address}", "set NCCL_SOCKET_IFNAME with --env"
