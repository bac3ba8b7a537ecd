"""Turn a job's options and the words after them into the Job; every contradiction is a UsageError."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path, PurePosixPath

import click

from launcher.cli.mistakes import refuse_module, refuse_option, refuse_script
from launcher.cli.options.command import is_on_command_line
from launcher.cli.options.launcher_toml import current_directory, find_source
from launcher.cli.options.request import Request
from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.job.activation import find_active_env
from launcher.job.job import (
    COLLECTIVES_MODULE,
    DEFAULT_PROGRAM,
    TRAINER_MODULE,
    Activation,
    Job,
    OnHang,
    Program,
    ProgramKind,
)
from launcher.job.variables import VISIBLE_DEVICES, forwarded, parse_settings, read_env_file

_TRAINER_LINE = f"\nfrom {TRAINER_MODULE}.__main__ import main\n".encode()
_FIRST_BYTES = 1024


def read_job(request: Request, hosts: Sequence[Host]) -> Job:
    """Return the job that the options and the words after them describe."""
    named_env: dict[str, str] = {}
    for path in request.env_file:
        named_env |= read_env_file(path)
    named_env |= parse_settings(request.env, os.environ)
    refuse_second_choice(named_env, hosts)
    program = read_program(request)
    nproc = read_size(request, hosts)
    # A timeout that the user chose ends the run, and a learned one doesn't.
    on_hang = request.on_hang or (OnHang.TELL if request.hang_timeout_s is None else OnHang.RESTART)
    return Job(
        program=program,
        nproc=nproc,
        cpu=request.cpu,
        gpus=request.gpus,
        may_use_cpus=may_use_cpus(program, request, hosts),
        workdir=read_workdir(request),
        python=request.python,
        activation=read_activation(request),
        active_env=find_active_env(os.environ),
        env=forwarded(os.environ) | named_env,
        named_env=frozenset(named_env),
        master_addr=request.master_addr,
        master_port=request.master_port,
        rendezvous_timeout_s=math.ceil(request.rdzv_timeout_s),  # torchrun takes whole seconds
        timeouts=request.timeouts,
        start=request.start,
        binds_cpus=not request.no_numa,
        with_stacks=request.stacks,
        hang_timeout_s=request.hang_timeout_s,
        on_hang=OnHang(on_hang),
        in_script="LAUNCH_SCRIPT" in os.environ,
    )


def read_workdir(request: Request) -> str:
    """Return the working directory on the hosts; by default it has the path of the one here."""
    return resolve_workdir(request.workdir) or str(local_workdir(request.words))


def local_workdir(words: Sequence[str]) -> Path:
    """Return where relative paths begin on this machine: the current directory.

    The script of a launcher.toml in a parent directory runs in that directory, as if `launch` had been typed there,
    since its arguments may be paths too.
    """
    file = find_source("script")
    is_above = file is not None and file.folder is not None and bool(_default_script(words))
    return file.folder if file and file.folder and is_above else current_directory()


def resolve_workdir(path: str | None) -> str | None:
    """Return the path of --workdir on the hosts: relative to the current directory; `~` is the host's."""
    if not path or path.startswith("~"):
        return path or None
    return str(Path(path) if path.startswith("/") else current_directory() / path)


def refuse_second_choice(env: Mapping[str, str], hosts: Sequence[Host]) -> None:
    """Raise UsageError if GPUs are chosen twice: the ranks would use other GPUs than those that are checked."""
    for name in (name for name in VISIBLE_DEVICES if name in env):
        for host in hosts:
            if host.gpus is not None:
                chosen = ",".join(map(str, host.gpus))
                text = f"{name}={env[name]} and {host.name}:{chosen} (--include or --exclude) both choose GPUs"
                raise UsageError(text, "use only one of them")


def read_program(request: Request) -> Program:
    """Return what every rank runs: the words as they were typed, or the built-in trainer."""
    is_module, no_python = request.is_module, request.no_python
    if is_module and no_python:
        raise UsageError("-m and --no-python are both given", "omit --no-python: a module needs Python")
    words = [*_default_script(request.words), *request.words]
    if not words:
        if is_module or no_python:
            raise UsageError("-m and --no-python need a name after them")
        return DEFAULT_PROGRAM
    if is_module:
        refuse_module(words)
        # These are sent to the hosts and need not be installed there.
        is_ours = words[0] in (TRAINER_MODULE, COLLECTIVES_MODULE)
        return Program(ProgramKind.BUILTIN if is_ours else ProgramKind.MODULE, words[0], tuple(words[1:]))
    if no_python:
        refuse_option(words)
        return Program(ProgramKind.COMMAND, words[0], tuple(words[1:]))
    refuse_script(words, is_here=read_workdir(request) == str(current_directory()))
    is_trainer = _wraps_trainer(Path(read_workdir(request), words[0]))
    return Program(ProgramKind.SCRIPT, words[0], tuple(words[1:]), is_trainer)


def _wraps_trainer(path: Path) -> bool:
    """Return whether a file here is the built-in trainer, as the checkout's train.py is; its own line tells."""
    try:
        if not path.is_file():  # a pipe isn't read
            return False
        with path.open("rb") as file:
            return _TRAINER_LINE in file.read(_FIRST_BYTES)
    except OSError:
        return False


def _default_script(words: Sequence[str]) -> list[str]:
    """Return the script of launcher.toml and its arguments if none was typed; options for it may follow `--`.

    A list holds the words as they are; a string is a path, which may contain spaces.
    """
    default = click.get_current_context().lookup_default("script")
    if not default or str(default).isspace() or (words and not words[0].startswith("-")):
        return []
    if isinstance(default, list):
        return [str(word) for word in default]
    return [str(default)]


def read_size(request: Request, hosts: Sequence[Host]) -> int | None:
    """Return the processes per host; raise UsageError if options and slots= contradict each other."""
    gpus, nproc = request.gpus, request.nproc
    if gpus is not None and request.cpu:
        raise UsageError("--gpus and --cpu are both given", "to train on CPUs, pass --nproc N --cpu")
    if gpus is not None and nproc is not None and nproc != gpus:
        raise UsageError(f"--gpus {gpus} and --nproc {nproc} differ", "pass one of them: each GPU gets one process")
    size = nproc if nproc is not None else gpus
    for host in hosts:
        name = "--nproc" if nproc is not None else "--gpus"
        is_overruled = host.gpus is None and is_on_command_line(name[2:])
        if size is not None and host.slots is not None and host.slots != size and not is_overruled:
            raise UsageError(
                f"{host.source}: {host.name} has {host.slots} slots, but {name} is {size}",
                f"remove {name} or slots=",
            )
        if size is None and request.cpu and host.slots is None:
            fix = "pass --nproc N, or set slots=N in the hostfile"
            raise UsageError("--cpu needs a number of processes", fix)
    return size


def may_use_cpus(program: Program, request: Request, hosts: Sequence[Host]) -> bool:
    """Return whether hosts without GPUs are good enough: for the built-in trainer, if nobody has asked for GPUs.

    Somebody's own script might fail there, or train for days without its GPUs.
    """
    asks = request.cpu or request.gpus is not None or any(host.gpus is not None for host in hosts)
    return program.is_trainer and not asks


def read_activation(request: Request) -> Activation:
    """Return what sets up the environment of the run; raise UsageError if two Pythons are named."""
    named = {"python": request.python, "venv": request.venv, "conda": request.conda}
    for name, rival in combinations(named, 2):
        if named[name] and named[rival]:
            raise UsageError(f"--{name} and --{rival} are both given", "pass only one of them")
    return Activation(request.setup or None, _read_venv(request.venv, request.workdir), request.conda or None)


def _read_venv(path: str | None, workdir: str | None) -> str | None:
    """Return the path on the hosts: relative to --workdir, as SCRIPT is, or else to the current directory."""
    if not path:
        return None
    venv = PurePosixPath(path)
    is_whole = str(venv).startswith("~") or workdir
    return str(venv if is_whole else current_directory() / venv)
