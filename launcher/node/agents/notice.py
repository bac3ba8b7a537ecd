"""Run the command of --notify on a host of a run whose controller is gone: nobody else is left who could."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST_S = 60.0
# The command comes through a pipe: every user of this machine can read a command line, and a webhook is a secret.
_SHELL = ("/bin/sh", "-c", 'command=$(cat); exec </dev/null; eval "$command"')


def run_notice(command: bytes, variables: dict[str, Any]) -> None:
    """Run it for a minute at most, with the processes that it starts; variables: added to the environment."""
    import signal
    import subprocess

    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    try:
        process = subprocess.Popen(
            _SHELL, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        process.communicate(command, LONGEST_S)
    except OSError:
        pass  # nobody could be told
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
