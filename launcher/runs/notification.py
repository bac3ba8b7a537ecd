"""--notify: run a command of the user's when a run has ended or is started again; a failing one harms nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from launcher.concurrency import start_thread
from launcher.errors import LauncherError
from launcher.runs.report import describe_cause
from launcher.runs.result import Result

LONGEST_S = 60.0
# The command comes through a pipe: every user of this machine can read a command line, and a webhook is a secret.
_SHELL = ("/bin/sh", "-c", 'command=$(cat); exec </dev/null; eval "$command"')


class Notifier:
    """Runs the command in a shell, with what happened in its environment: LAUNCH_EVENT is `end` or `restart`."""

    def __init__(self, command: str, run_id: str, env: Mapping[str, str]) -> None:
        """env: the environment of the command."""
        self._command = command
        self._run_id = run_id
        self._env = env

    def __call__(self, event: str, result: Result) -> None:
        """Run it; at the end of the run, wait until it has ended."""
        cause = describe_cause(result.cause) if result.cause is not None else result.error or ""
        env = {
            **self._env, "LAUNCH_RUN": self._run_id, "LAUNCH_EVENT": event,
            "LAUNCH_EXIT_CODE": str(result.exit_code), "LAUNCH_CAUSE": cause.replace("\0", ""),
        }  # fmt: skip
        if event == "end":
            self._run(env)
            return
        with contextlib.suppress(LauncherError):
            start_thread(lambda: self._run(env), "notify", lambda error: None)

    def _run(self, env: Mapping[str, str]) -> None:
        """Run it for a minute at most, with the processes that it starts."""
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                _SHELL, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.communicate(os.fsencode(self._command), LONGEST_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
