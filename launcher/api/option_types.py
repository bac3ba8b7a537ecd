"""The options of the functions by their names, for editors and type checkers; docs/options_table.py writes this."""

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


class Options(TypedDict, total=False):
    """Options of all functions; a command refuses those that it lacks."""

    ask_password: Switch
    conda: File
    config: File
    connect_timeout: Time
    controller: Text
    cpu: Switch
    detach: Switch
    enter: Text
    env: str | Sequence[str] | Mapping[str, str | int | float | None] | None
    env_file: Files
    exclude: Texts
    for_: Time
    gpus: int | Literal["auto"] | None
    hang_timeout: Time
    hostfile: File
    hosts: Texts
    include: Texts
    link: Texts
    log_dir: File
    master_addr: Text
    master_port: Number
    min_nodes: Number
    module: Switch
    name: Text
    no_check: Switch
    no_numa: Switch
    no_python: Switch
    no_sync: Switch
    notify: Text
    nproc: Number
    num_nodes: Number
    on_hang: Literal["tell", "end", "restart"] | None
    progress_dir: File
    python: File
    queue: bool | float | str | None
    quiet: Switch
    ranks: int | str | Sequence[int] | Sequence[str] | None
    rdzv_timeout: Time
    restarts: Number
    same_code: Switch
    setup: Text
    share: Switch
    silence: Time
    spares: Number
    ssh_config: File
    stacks: Switch
    start: Literal["torchrun", "warm", "plain"] | None
    stop_timeout: Time
    sync: bool | str | os.PathLike[str] | None
    sync_limit: Size
    transport: Literal["srun", "fabric", "ssh", "pdsh"] | None
    until: Text
    venv: File
    verbose: Switch
    workdir: File
