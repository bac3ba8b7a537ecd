"""launcher.toml, or [tool.launcher] in pyproject.toml: defaults for the options of every command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from launcher.errors import UsageError

FILE = "launcher.toml"
_KEYS = (
    "hosts", "hostfile", "include", "exclude", "num_nodes", "gpus", "nproc", "cpu", "script", "workdir", "python",
    "env", "env_file", "master_addr", "master_port", "rdzv_timeout", "ssh_config", "accept_new_host_keys",
    "connect_timeout", "silence", "stop_timeout", "quiet", "ranks", "log_dir",
)  # fmt: skip


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
        content = content.get(key, {})
    values = {str(key).replace("-", "_"): value for key, value in content.items()}
    for key in values:
        if key not in _KEYS:
            import difflib

            guesses = difflib.get_close_matches(key, _KEYS, 1)
            guess = f"; did you mean {guesses[0]!r}?" if guesses else ""
            raise UsageError(f"{path.name}: no option {key!r}{guess}")
    if "hosts" in values and isinstance(values["hosts"], list):
        values["hosts"] = ",".join(values["hosts"])
    return values
