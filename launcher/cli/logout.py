"""What a logout may take from a run that continues: its processes, and the SSH agent that came with the login."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

_ASK = (
    "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager",
    "KillUserProcesses",
)  # fmt: skip
_ANSWER_S = 2.0


def warn_of_logout(variables: Mapping[str, str], restarts: int) -> list[str]:
    """Return a line for each, with the remedy; variables: this process's."""
    lines = []
    if os.geteuid() != 0 and _ends_processes():  # logind spares root
        lines.append(
            "launch: this system ends your processes when you log out (KillUserProcesses); "
            "fix: loginctl enable-linger, and systemd-run --user --scope launch ..."
        )
    if restarts and "SSH_CONNECTION" in variables and "SSH_AUTH_SOCK" in variables:
        lines.append(
            "launch: a restart after you log out can't use the SSH agent of this login; "
            "fix: let this machine log in to the hosts with a key file"
        )
    return lines


def _ends_processes() -> bool:
    """Ask systemd-logind; a system without it ends none."""
    try:
        done = subprocess.run(_ASK, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == "b true"
