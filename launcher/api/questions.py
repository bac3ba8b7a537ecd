"""Ask about hosts and runs, or for their files: `check`, `free`, `hosts`, `runs` and `fetch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.api.child import ask, call
from launcher.api.options import Argv, Scalar, as_words, list_words, script_words
from launcher.api.run import AnyRun, File, name_run
from launcher.api.values import (
    CheckResult,
    FreeResult,
    Host,
    ListedRun,
    read_check,
    read_free,
    read_hosts,
    read_runs,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from launcher.api.option_types import Options


def check(argv: Argv = (), **options: Unpack[Options]) -> CheckResult:
    """Compare the hosts and return what would break a run, as `launch check` does, with its options by their names."""
    return read_check(ask("check", [*as_words(options), *script_words(argv)]))


def free(**options: Unpack[Options]) -> FreeResult:
    """Return which GPUs of the hosts are free, and who has claimed or uses the others, as `launch free` shows them."""
    return read_free(ask("free", as_words(options)))


def hosts(**options: Unpack[Options]) -> list[Host]:
    """Return the hosts in rank order as launch reads them, spares last, without contacting them.

    The options are `hosts`, `hostfile`, `include`, `exclude` and others of `launch hosts`.
    """
    return read_hosts(ask("hosts", as_words(options)))


def runs(*, all: bool = False, hosts: str | Sequence[str] | None = None, ssh_config: File = None) -> list[ListedRun]:
    """Return the runs that were started on this machine, the newest first, as `launch ps` lists them.

    all: not only the active ones and the newest 20; hosts: the runs that these hosts control.
    """
    return read_runs(ask("ps", as_words({"all": all, "hosts": hosts, "ssh_config": ssh_config})))


def fetch(
    run: AnyRun = None, paths: Argv = (), *, all: bool = False, code: bool = False,
    limit: Scalar | None = None, log_dir: File = None, controller: str | None = None, ssh_config: File = None,
) -> None:  # fmt: skip
    """Copy the logs of a run from the host that controls it, or files of its ranks, as `launch fetch` does.

    run: None is the newest one
    paths: of the ranks' files, such as outputs/, which go to `log_dir`/ID-fetched instead of the logs to `log_dir`/ID
    all: copy them from all hosts, not only from node 0
    code: copy the code of the run instead, to paths or else to ID-code
    limit: of what is copied from each host, such as "2GB"
    controller: the host that controls the run, if it was started on another machine
    """
    given = {
        "all": all, "code": code, "limit": limit, "log_dir": log_dir, "controller": controller, "ssh_config": ssh_config
    }  # fmt: skip
    names = list_words(paths)
    word = name_run(run) or (["latest"] if names else [])
    call(["fetch", *as_words(given), "--", *word, *names])
