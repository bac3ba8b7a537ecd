"""--notify: run a command of the user's when a run has ended, starts again or waits; a failing one is a line."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Callable, Mapping

from launcher.concurrency import start_thread
from launcher.errors import LauncherError
from launcher.node.agents.notice import run_notice
from launcher.runs.records import Result
from launcher.runs.report import describe_cause

LOOK_S = 5.0  # for the shell to find the program
_PLAIN_WORD = re.compile(r"\s*([\w./+-]+)(?=\s|$)")


class Notifier:
    """Runs the command in a shell, with the event in its environment: LAUNCH_EVENT is `end`, `restart` or `wait`."""

    def __init__(
        self, command: str, run_id: str, name: str | None, env: Mapping[str, str], say: Callable[[str], object]
    ) -> None:
        """name: of the run; env: the environment of the command; say: gets why it failed, never the command itself."""
        self._command = command
        self._env = {**env, "LAUNCH_RUN": run_id, "LAUNCH_NAME": name or ""}
        self._say = say

    def __call__(self, event: str, result: Result) -> None:
        """Run it; at the end of the run, wait until it has ended."""
        cause = describe_cause(result.cause) if result.cause is not None else result.error or ""
        env = {
            **self._env, "LAUNCH_EVENT": event, "LAUNCH_EXIT_CODE": str(result.exit_code),
            "LAUNCH_CAUSE": cause.replace("\0", ""),
        }  # fmt: skip
        if event == "end":
            self._run(env)
            return
        try:
            start_thread(lambda: self._run(env), "notify", lambda error: None)
        except LauncherError as error:
            self._say(f"launch: can't run --notify: {error.message}")

    def warn(self) -> None:
        """Say if the shell doesn't find the program with which the command begins."""
        first = _PLAIN_WORD.match(self._command)
        if first is None:  # the shell makes the word
            return
        argv = ["/bin/sh", "-c", 'command -v "$1"', "sh", first[1]]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                argv, env=self._env, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=LOOK_S
            )
            if done.returncode:
                self._say(f"launch: --notify won't run: {first[1]} isn't found on {socket.gethostname()}")
                self._say("  fix: name it with its absolute path on the controller host")

    def _run(self, env: Mapping[str, str]) -> None:
        """Run it for a minute at most, with the processes that it starts."""
        if failed := run_notice(os.fsencode(self._command), env):
            self._say(f"launch: {failed}")
