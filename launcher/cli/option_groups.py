"""What the options of a command say: one frozen value for each group of options, made once per command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How the hosts are reached: --transport, and what SSH is told."""

    transport: str | None = None  # None: srun in a Slurm job, else fabric
    ssh_config: Path | None = None
    accept_new_host_keys: bool = False
    ask_password: bool = False


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a host, for its heartbeat, and for ranks that stop.

    The defaults are those of the options, for commands that lack some of them.
    """

    connect_timeout_s: float = 10.0
    silence_s: float = 15.0
    stop_timeout_s: float = 15.0


def make_group(group: type[Any], options: Mapping[str, Any]) -> Any:
    """Return a value of the dataclass `group`: each field is the option of its name, or a group of its own.

    The name of a field may end with its unit, as in `silence_s`. An option that the command hasn't got is left to the
    field's default; without a default that is a TypeError.
    """
    types = get_type_hints(group)
    values: dict[str, Any] = {}
    for field in fields(group):
        option = field.name.removesuffix("_s")
        if is_dataclass(types[field.name]):
            values[field.name] = make_group(types[field.name], options)
        elif option in options:
            values[field.name] = options[option]
    return group(**values)
