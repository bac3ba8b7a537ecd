"""What a logout may take from a run that continues: its processes, its shared memory, the SSH agent of the login.

And whether it isn't the user who ends its process, but the shutdown of the machine.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping
from pathlib import Path

_LOGIND = (
    "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager",
)  # fmt: skip
_ANSWER_S = 2.0
_SYSTEM_UID = 1000  # RemoveIPC spares users below (logind.conf(5))
_LINGERING = Path("/var/lib/systemd/linger")


def warn_of_logout(variables: Mapping[str, str], restarts: int) -> list[str]:
    """Return a line for each that this process needs, with the remedy; variables: its environment."""
    lines = []
    if os.geteuid() != 0 and _is_set("KillUserProcesses"):  # logind spares root
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


def warn_of_lost_memory(host: str) -> list[str]:
    """Return a line if this host, where ranks may run, removes the shared memory of a user without a login."""
    if os.geteuid() < _SYSTEM_UID or _lingers() or not _is_set("RemoveIPC"):
        return []
    return [
        f"launch: {host} removes your shared memory when you log out (RemoveIPC); fix: loginctl enable-linger there"
    ]


def is_shutting_down() -> bool:
    """Tell whether this machine is being shut down, so that its processes get SIGTERM; a system without systemd can't.

    logind may have ended by then, and systemd still answers.
    """
    return _is_set("PreparingForShutdown") or _ask("systemctl", "is-system-running") == "stopping"


def _lingers() -> bool:
    try:
        return (_LINGERING / pwd.getpwuid(os.geteuid()).pw_name).exists()
    except KeyError:  # a user without a name
        return False


def _is_set(name: str) -> bool:
    """Ask systemd-logind; a system without it takes nothing."""
    return _ask(*_LOGIND, name) == "b true"


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
