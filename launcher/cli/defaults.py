"""launcher.toml, or [tool.launcher] in pyproject.toml: defaults for the options of every command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from launcher.errors import UsageError

FILE = "launcher.toml"
_KEYS = (
    "hosts", "hostfile", "colon", "include", "exclude", "num_nodes", "gpus", "nproc", "cpu", "script", "workdir",
    "python", "setup", "venv", "conda", "env", "env_file", "legacy", "master_addr", "master_port", "rdzv_timeout",
    "transport", "ssh_config", "accept_new_host_keys", "ask_password", "connect_timeout", "silence", "stop_timeout",
    "stacks", "hang_timeout", "no_check", "quiet", "ranks", "log_dir",
    "nodes", "time", "partition", "mem", "cpus_per_task", "account", "qos", "constraint", "requeue",
)  # fmt: skip
_WHOLE = ("num_nodes", "nodes", "cpus_per_task", "gpus", "nproc", "master_port", "rdzv_timeout")
_LISTS = ("hosts", "env", "env_file")


def read_defaults(folder: Path) -> dict[str, Any]:
    """Return click's default map: the file's values for each command, or nothing where there is no file."""
    values: dict[str, Any] = {}
    for path, table in ((folder / "pyproject.toml", ("tool", "launcher")), (folder / FILE, ())):
        if path.is_file():
            values |= _read(path, table)
    if not values:
        return {}
    from launcher.cli import COMMANDS

    return {**values, **dict.fromkeys(COMMANDS, values)}


def _read(path: Path, table: tuple[str, ...]) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content: Any = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        if table:
            return {}  # a pyproject.toml of somebody else's that is broken is theirs to mend
        raise UsageError(f"{path.name}: {error}") from None
    for key in table:
        content = content.get(key, {}) if isinstance(content, dict) else {}
    if not isinstance(content, dict):
        raise UsageError(f"{path.name}: [{'.'.join(table)}] must be a table, got {content!r}")
    return {name: _check(path.name, name, value) for name, value in _normalized(content).items()}


def _normalized(content: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in content.items()}


def _check(file: str, name: str, value: Any) -> Any:
    """Return a value as click takes it; raise UsageError where the name or the type is wrong."""
    if name not in _KEYS:
        import difflib

        guesses = difflib.get_close_matches(name, _KEYS, 1)
        guess = f"; did you mean {guesses[0]!r}?" if guesses else ""
        raise UsageError(f"{file}: no option {name!r}{guess}")
    is_list = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    if name in _LISTS and is_list:
        return ",".join(value) if name == "hosts" else value
    if name in _WHOLE and isinstance(value, float):
        raise UsageError(f"{file}: {name} must be a whole number, got {value!r}")
    if not isinstance(value, str | int | float | bool):
        wanted = "a text or a list of texts" if name in _LISTS else "one value"
        raise UsageError(f"{file}: {name} must be {wanted}, got {value!r}")
    return [value] if name in ("env", "env_file") else value
