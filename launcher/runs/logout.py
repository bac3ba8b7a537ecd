"""What a logout may take from a run that continues: its processes, its shared memory, the SSH agent of the login."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SYSTEM_UID = 1000  # RemoveIPC spares users below (logind.conf(5))
_LINGERING = Path("/var/lib/systemd/linger")
_MANAGER = "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
_ANSWER_S = 2.0


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


def _lingers() -> bool:
    try:
        return (_LINGERING / pwd.getpwuid(os.geteuid()).pw_name).exists()
    except KeyError:  # a user without a name
        return False


def _is_set(name: str) -> bool:
    """Tell whether a property of logind is true."""
    try:
        done = subprocess.run(
            ("busctl", "get-property", *_MANAGER, name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_ANSWER_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == b"b true"
