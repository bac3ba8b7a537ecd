"""Ask about hosts and runs: `check`, `hosts` and `runs`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.api.child import ask
from launcher.api.options import Argv, Value, as_words, script_words
from launcher.api.values import CheckResult, Host, ListedRun, read_check, read_hosts, read_runs


def check(argv: Argv = (), **options: Value) -> CheckResult:
    """Compare the hosts and return what would break a run, as `launch check` does, with its options by their names."""
    return read_check(ask("check", [*as_words(options), *script_words(argv)]))


def hosts(**options: Value) -> list[Host]:
    """Return the hosts in rank order as launch reads them, spares last, without contacting them.

    The options are `hosts`, `hostfile`, `include`, `exclude` and others of `launch hosts`.
    """
    return read_hosts(ask("hosts", as_words(options)))


def runs(
    *, all: bool = False, hosts: str | Sequence[str] | None = None, ssh_config: str | os.PathLike[str] | None = None
) -> list[ListedRun]:
    """Return the runs that were started on this machine, the newest first, as `launch ps` lists them.

    all: not only the active ones and the newest 20; hosts: the runs that these hosts control.
    """
    return read_runs(ask("ps", as_words({"all": all, "hosts": hosts, "ssh_config": ssh_config})))
