"""The hosts and runs of this machine that may be named: files are read, nobody is asked.

The names are other people's text, in files that `launch` didn't write. So only those are offered that need no quoting
in any shell and move no cursor, which all names that `launch` accepts do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.completion.vocabulary import HOST, HOSTS_OF_RUN, LISTS, RUN

if TYPE_CHECKING:
    from launcher.hosts.host import Host

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]*")


def find_names(kind: str, typed: Mapping[str, str]) -> dict[str, str]:
    """Return the names of a kind, each with what is to be said about it; typed: the options before the cursor."""
    if kind == RUN:
        found = _find_runs()
    elif kind in (HOST, *LISTS):
        found = dict.fromkeys(_find_hosts(typed, is_of_run=kind == HOSTS_OF_RUN), "")
    else:
        return {}
    return {name: text for name, text in found.items() if _SAFE.fullmatch(name) and _SAFE.fullmatch(text or name)}


def _find_runs() -> dict[str, str]:
    """Return the ids of all runs, each with its name, and the names, each with the id of its newest run."""
    from launcher.runs.run_names import read_names
    from launcher.runs.state_home import find_state

    runs = read_names(find_state(os.environ) / "runs")
    names = {name: run_id for run_id, name in reversed(runs.items()) if name}
    return {**names, **runs}


def _find_hosts(typed: Mapping[str, str], *, is_of_run: bool) -> Iterator[str]:
    """Yield the hosts that are listed for a run, and those that SSH knows; is_of_run: only if none are listed."""
    listed = [*_find_listed(typed)]
    yield from listed
    if not (listed and is_of_run):
        from launcher.transports.ssh.named_hosts import find_named_hosts

        config = typed.get("--ssh-config")
        yield from find_named_hosts(Path(config).expanduser() if config else None)


def _find_listed(typed: Mapping[str, str]) -> Iterator[str]:
    """Yield the hosts of --hosts or --hostfile, or else those of launcher.toml; none if these can't be read."""
    from launcher.errors import LauncherError

    chosen = {name: typed[f"--{name}"] for name in ("hosts", "hostfile") if f"--{name}" in typed}
    with suppress(LauncherError, OSError, RuntimeError):
        chosen = chosen or _read_defaults(typed.get("--config"))
        if chosen:
            yield from (host.name for host in _read_chosen(chosen))


def _read_chosen(chosen: Mapping[str, str]) -> Sequence[Host]:
    from launcher.hosts.hostfiles import parse_hosts, read_hostfile

    if "hosts" in chosen:
        return parse_hosts(chosen["hosts"], colon="slots")
    path = Path(chosen["hostfile"]).expanduser()
    return read_hostfile(path, colon="slots") if path.is_file() else ()  # a pipe would wait for its writer


def _read_defaults(config: str | None) -> dict[str, str]:
    """Return what launcher.toml has of --hosts and --hostfile, the latter from where that file is."""
    from launcher.cli.options.toml_files import find_files, read_named

    chosen: dict[str, str] = {}
    for file in [read_named(Path(config))] if config else find_files():
        hosts, hostfile = file.content.get("hosts"), file.content.get("hostfile")
        if isinstance(hosts, str | list):
            chosen["hosts"] = hosts if isinstance(hosts, str) else ",".join(map(str, hosts))
        if isinstance(hostfile, str):
            chosen["hostfile"] = hostfile if config else str(file.folder / hostfile)
    return chosen
