"""The request: the values of a command's options as one frozen value, made once per command.

`table.py` declares the options for click; here their values leave click. A command gets a Request, and everything below
it gets that, never click's mapping of options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal

from launcher.cli.options.sources import settle
from launcher.job.job import Start, Timeouts
from launcher.transports.settings import TransportSettings

_WAIT = Timeouts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for: each field is the option of its name, which may lack the unit; `silence_s` is --silence.

    An option that the command doesn't have has its default. What a typed option of the command line contradicts in
    launcher.toml isn't in it.
    """

    words: tuple[str, ...] = ()  # the script and its arguments

    # Which hosts, as typed; `host_choice.read_hosts` turns them into hosts, those of the Slurm job if none are named.
    hosts: str | None = None
    hostfile: Path | None = None
    include: str | None = None
    exclude: str | None = None
    num_nodes: int | None = None

    transport: str | None = None
    ssh_config: Path | None = None
    ask_password: bool = False
    connect_timeout_s: float = _WAIT.connect_timeout_s
    silence_s: float = _WAIT.silence_s
    stop_timeout_s: float = _WAIT.stop_timeout_s

    sync: str | None = None  # the directory; "": the repository or directory that we are in; None: it isn't sent
    no_sync: bool = False  # instead, if a file says so
    sync_limit: int = 100_000_000  # bytes
    link: tuple[str, ...] = ()  # each NAME=PATH

    # `job_request.read_job` makes a Job of these.
    gpus: int | None = None  # None: auto
    nproc: int | None = None
    cpu: bool = False
    is_module: bool = False
    no_python: bool = False
    start: Start = "torchrun"
    no_numa: bool = False
    workdir: str | None = None
    # One Python at most, after the lines of --setup; `job_request.read_activation` refuses several.
    python: str | None = None
    venv: str | None = None
    conda: str | None = None
    setup: str | None = None
    env: tuple[str, ...] = ()  # each K=V, or K for the value on the launch host
    env_file: tuple[Path, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_timeout_s: float = 120.0
    hang_timeout_s: float | None = None  # None: auto
    on_hang: str | None = None
    stacks: bool = True

    restarts: int = 0
    progress_dir: str | None = None
    spares: int | None = None  # the last hosts; None: those that the hostfile marks
    min_nodes: int | None = None

    share: bool = False
    claim_cpus: bool = False
    queue: float | Literal[""] | None = None  # for how long at most; "": without end; None: not at all
    no_queue: bool = False  # instead, if a file says so
    until: str | None = None  # as typed: a local time
    for_s: float | None = None

    dry_run: bool = False
    check: bool = False
    no_check: bool = False

    quiet: bool = False
    ranks: str | None = None  # whose output is shown, separated by commas; None: all
    as_json: bool = False
    log_dir: Path = Path("logs")
    verbose: bool = False
    no_samples: bool = False  # of what the GPUs do
    name: str | None = None
    detach: bool = False  # leave the terminal once all ranks run
    controller: str | None = None  # the host that then controls the run; "here": this machine; None: one of the hosts
    survive_reboots: bool = False  # let each host start what it has of the run after a boot
    notify: str | None = None  # a command for when the run ends or is started again
    fetch: tuple[str, ...] = ()  # files to copy from node 0 after the run

    # What test-distributed tests; `check` takes one of these, too.
    processes: int = 1  # on each host
    max_size: int | None = None  # MiB
    gpus_under_load_s: float | None = None
    timeout_s: float | None = None  # of a step
    plot: Path | None = None  # the picture to draw

    # Of `launch sbatch` only; all others are passed to the `launch` in the script.
    nodes: int = 1
    time: str | None = None
    partition: str | None = None
    mem: str | None = None
    cpus_per_task: int | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    job_name: str | None = None
    directive: tuple[str, ...] = ()  # each a line of its own
    requeue: bool = False
    output: Path | None = None  # where the script is written
    submit: bool = False

    @property
    def timeouts(self) -> Timeouts:
        """How long to wait for hosts and ranks."""
        return Timeouts(self.connect_timeout_s, self.silence_s, self.stop_timeout_s)

    @property
    def reach(self) -> TransportSettings:
        """How the hosts are reached."""
        return TransportSettings(self.transport, self.ssh_config, self.ask_password, silence_s=self.silence_s)


def gather(command: Callable[..., int]) -> Callable[..., int]:
    """Wrap a command so that it gets the options that its parameters name, and as `request` the Request.

    Only this function and `make_request` take click's mapping of options apart.
    """
    names = get_annotations(command)

    @wraps(command)
    def call(**options: Any) -> int:
        settled = settle(options)
        known = {"request": make_request(settled)} if "request" in names else {}
        return command(**known, **_find_values(names, settled))

    return call


def make_request(settled: Mapping[str, Any]) -> Request:
    """Return the request of these options, from which `settle` has dropped what typed ones contradict."""
    return Request(**_find_values([field.name for field in fields(Request)], settled))


def _find_values(names: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of the option of each name, as far as there are such options."""
    found = {name: name.removesuffix("_s") for name in names}
    return {name: options[option] for name, option in found.items() if option in options}
