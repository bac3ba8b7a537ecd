"""Run the command of --notify: the controller of a run does, and a host of it if the controller is gone."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Mapping

LONGEST_S = 60.0
# The command comes through a pipe: every user of this machine can read a command line, and a webhook is a secret.
_SHELL = ("/bin/sh", "-c", 'command=$(cat); exec </dev/null; eval "$command"')
_CODES = {126: ", it can't be run", 127: ", it wasn't found"}


def run_notice(command: bytes, env: Mapping[str, str]) -> str:
    """Run it for a minute at most, with the processes that it starts; return what failed, or ""."""
    try:
        process = subprocess.Popen(
            _SHELL, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return "can't run --notify: %s" % error.strerror
    try:
        process.communicate(command, LONGEST_S)
    except subprocess.TimeoutExpired:
        with suppress(OSError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
        return "--notify was killed after %g s" % LONGEST_S
    code = process.returncode
    if code > 0:
        return "--notify failed (exit code %d%s)" % (code, _CODES.get(code, ""))
    return "--notify failed (signal %d)" % -code if code else ""
