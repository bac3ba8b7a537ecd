"""The values of a command's options: one frozen value for each group of options, made once per command.

`table.py` declares the options for click; here their values leave click. A command names the groups that it takes
as the types of its parameters, and everything below it gets those values, never click's mapping of options.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal, TypeVar

from launcher.cli.options.sources import settle

Group = TypeVar("Group")


@dataclass(frozen=True, slots=True)
class HostChoice:
    """Which hosts: --hosts or --hostfile, filtered by --include, --exclude and --num-nodes.

    Each value is as typed; `host_choice.read_hosts` turns them into hosts, those of the Slurm job if none are named.
    """

    hosts: str | None = None
    hostfile: Path | None = None
    include: str | None = None
    exclude: str | None = None
    num_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """Which Python runs the ranks: one of --python, --venv and --conda, after the lines of --setup.

    More than one may be set here; `job_request.read_activation` refuses that.
    """

    python: str | None = None
    setup: str | None = None
    venv: str | None = None
    conda: str | None = None


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The options of a job that aren't values of the Job as typed: `job_request.read_job` makes those of them."""

    gpus: int | None  # None: auto
    nproc: int | None
    cpu: bool
    is_module: bool
    no_python: bool
    start: str
    workdir: str | None
    env: tuple[str, ...]  # each K=V, or K for the value on the launch host
    env_file: tuple[Path, ...]
    rdzv_timeout_s: float
    environment: PythonEnvironment
    master_addr: str | None = None
    no_numa: bool = False
    stacks: bool = True
    hang_timeout_s: float | None = None  # None: auto
    on_hang: str | None = None


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """Whether the code is sent to the hosts, and what lies beside it there."""

    sync_limit: int  # bytes
    sync: str | None = None  # the directory; "": the repository or directory that we are in; None: it isn't sent
    no_sync: bool = False  # instead, if a file says so
    link: tuple[str, ...] = ()  # each NAME=PATH


@dataclass(frozen=True, slots=True)
class RestartOptions:
    """Whether a failed run is started again, and what counts as its progress."""

    restarts: int = 0
    spares: int | None = None  # the last hosts; None: those that the hostfile marks
    min_nodes: int | None = None
    progress_dir: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """What a run claims of its hosts, for how long at most, and whether it minds the claims of others."""

    share: bool = False
    claim_cpus: bool = False
    queue: float | Literal[""] | None = None  # for how long at most; "": without end; None: not at all
    no_queue: bool = False  # instead, if a file says so
    until: str | None = None  # as typed: a local time
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What the console shows of a run, where its logs go, its name, and what happens without a console."""

    quiet: bool
    ranks: str | None  # the ranks whose output is shown, separated by commas; None: all
    as_json: bool
    log_dir: Path
    verbose: bool
    no_samples: bool = False  # of what the GPUs do
    name: str | None = None
    detach: bool = False  # leave the terminal once all ranks run
    controller: str | None = None  # the host that then controls the run; "here": this machine; None: one of the hosts
    survive_reboots: bool = False  # let each host start what it has of the run after a boot
    notify: str | None = None  # a command for when the run ends or is started again
    fetch: tuple[str, ...] = ()  # files to copy from node 0 after the run


def gather(command: Callable[..., int]) -> Callable[..., int]:
    """Wrap a command so that it gets the options and groups that its parameters name, each group as a frozen value.

    Only this function takes click's mapping of options apart. It drops defaults of launcher.toml that a typed option
    contradicts, so no value holds both. Options that neither a parameter nor a group of the command names are ignored,
    such as --config, which has taken effect by now.
    """

    @wraps(command)
    def call(**options: Any) -> int:
        return command(**_find_values(command, settle(options), {}))

    return call


def make_group(group: type[Group], options: Mapping[str, Any], **known: Any) -> Group:
    """Return a value of the dataclass `group`; raise TypeError if the command lacks an option that has no default.

    known: fields that aren't the values of options.
    """
    return group(**known, **_find_values(group, options, known))


def _find_values(taker: Any, options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return a value for each name that a command or a dataclass takes, but the known ones.

    It is a group if its annotation is a dataclass, else the option of the same name. A name may end with a unit that
    the option lacks: `silence_s` is --silence. No value is returned for a name without an option.
    """
    values: dict[str, Any] = {}
    types = vars(sys.modules[taker.__module__])
    for name, annotation in get_annotations(taker).items():
        kind, option = types.get(annotation), name.removesuffix("_s")
        if name in known:
            continue
        if isinstance(kind, type) and is_dataclass(kind):
            values[name] = make_group(kind, options)
        elif option in options:
            values[name] = options[option]
    return values
