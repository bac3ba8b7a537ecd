"""What a `launch` owes the Python program that started it with `launcher.launch`: to end with it, and errors as values.

Everything else is what `--json` gives to any program; see docs/decisions/0027-python-api.md.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.errors import LauncherError

OWNER = "LAUNCH_OWNER"  # of the environment: the process id of that program, which is this process's parent
_LOOK_S = 0.2


def find_owner(variables: MutableMapping[str, str]) -> int | None:
    """Return the process that owns this one, and remove it from the environment, which others inherit."""
    owner = variables.pop(OWNER, "")
    return int(owner) if owner.isdecimal() else None


def end_with(owner: int) -> None:
    """Stop this process as SIGTERM does, once its owner is gone, however that ended.

    A pipe would stay open in processes that the owner has forked. A timer needs no thread, which --detach can't have
    before it forks, and is not the child's that then controls the run.
    """

    def look(*_: object) -> None:
        if os.getppid() != owner:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # Python then restores the default, which ends the process


def report_error(error: LauncherError) -> None:
    """Print an error as the last object of stdout, with all that its exception has."""
    import json
    from dataclasses import asdict

    from launcher.cli.find_run import ControllerLost
    from launcher.errors import ChecksFailed, HostsUnreachable
    from launcher.output.console import dated
    from launcher.output.output_streams import describe_error

    event = dated(
        "error",
        exit_code=error.exit_code,
        shown=describe_error(error).removeprefix("launch: "),
        message=error.message,
        fix=error.fix,
        unreachable=list(map(asdict, error.failures)) if isinstance(error, HostsUnreachable | ControllerLost) else [],
        findings=[finding.as_record() for finding in error.findings] if isinstance(error, ChecksFailed) else [],
    )
    print(json.dumps(event), flush=True)
