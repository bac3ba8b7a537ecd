"""What systemd says of this machine: whether it shuts down, and how logind is set up; without it, nothing."""

from __future__ import annotations

import subprocess

_MANAGER = "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
_ANSWER_S = 2.0


def is_shutting_down() -> bool:
    """Tell whether this machine is being shut down, so that its processes get SIGTERM; a system without systemd can't.

    logind may have ended by then, and systemd still answers.
    """
    return is_set("PreparingForShutdown") or _ask("systemctl", "is-system-running") == "stopping"


def is_set(name: str) -> bool:
    """Tell whether a property of logind is true."""
    return _ask("busctl", "get-property", *_MANAGER, name) == "b true"


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip()
