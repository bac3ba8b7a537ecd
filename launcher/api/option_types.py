"""The options of each function by their names, for editors and type checkers; docs/options_table.py writes this."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

Switch = bool | None
Text = str | None
Number = int | None
Time = float | str | None  # in seconds, or such as "10m"
Size = int | str | None  # in bytes, or such as "2GB"
File = str | os.PathLike[str] | None
Texts = str | Sequence[str] | None
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


class SinglenodeOptions(TypedDict, total=False):
    """Options of `launch singlenode`."""

    claim_cpus: Switch
    conda: File
    config: File
    cpu: Switch
    detach: Switch
    env: str | Sequence[str] | Mapping[str, str | int | float | None] | None
    env_file: Files
    fetch: Files
    for_: Time
    gpus: int | Literal["auto"] | None
    hang_timeout: Time
    log_dir: File
    master_port: Number
    module: Switch
    name: Text
    no_check: Switch
    no_numa: Switch
    no_python: Switch
    no_samples: Switch
    notify: Text
    nproc: Number
    on_hang: Literal["tell", "end", "restart"] | None
    progress_dir: File
    python: File
    queue: bool | float | str | None
    quiet: Switch
    ranks: int | str | Sequence[int] | Sequence[str] | None
    rdzv_timeout: Time
    restarts: Number
    setup: Text
    share: Switch
    silence: Time
    stacks: Switch
    start: Literal["torchrun", "warm", "plain"] | None
    stop_timeout: Time
    until: Text
    venv: File
    verbose: Switch
    workdir: File


class LaunchOptions(SinglenodeOptions, total=False):
    """Options of `launch run`."""

    ask_password: Switch
    connect_timeout: Time
    controller: Text
    enter: Text
    exclude: Texts
    hostfile: File
    hosts: Texts
    include: Texts
    link: Texts
    master_addr: Text
    min_nodes: Number
    no_sync: Switch
    num_nodes: Number
    spares: Number
    ssh_config: File
    sync: bool | str | os.PathLike[str] | None
    sync_limit: Size
    transport: Literal["srun", "fabric", "ssh", "pdsh"] | None


class HostsOptions(TypedDict, total=False):
    """Options of `launch hosts`."""

    config: File
    enter: Text
    exclude: Texts
    hostfile: File
    hosts: Texts
    include: Texts
    num_nodes: Number


class FreeOptions(HostsOptions, total=False):
    """Options of `launch free`."""

    ask_password: Switch
    connect_timeout: Time
    python: File
    silence: Time
    ssh_config: File
    stop_timeout: Time
    transport: Literal["srun", "fabric", "ssh", "pdsh"] | None


class CheckOptions(FreeOptions, total=False):
    """Options of `launch check`."""

    conda: File
    cpu: Switch
    env: str | Sequence[str] | Mapping[str, str | int | float | None] | None
    env_file: Files
    gpus: int | Literal["auto"] | None
    link: Texts
    master_addr: Text
    master_port: Number
    module: Switch
    no_numa: Switch
    no_python: Switch
    no_sync: Switch
    nproc: Number
    packages: Switch
    rdzv_timeout: Time
    setup: Text
    start: Literal["torchrun", "warm", "plain"] | None
    sync: bool | str | os.PathLike[str] | None
    sync_limit: Size
    venv: File
    workdir: File


class AgainOptions(LaunchOptions, total=False):
    """Options of `launch again`."""

    same_code: Switch
