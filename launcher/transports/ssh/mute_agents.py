"""SSH agents that accept connections and never answer: both clients would wait for one without end."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

ANSWER_S = 10.0  # a locked agent may ask its user first
_LIST_KEYS = b"\0\0\0\1\x0b"  # SSH_AGENTC_REQUEST_IDENTITIES (draft-miller-ssh-agent)
_lock = threading.Lock()
_are_mute: dict[str, bool] = {}  # by their sockets; each is waited for once in this process


def find_socket(place: str | None) -> str:
    """Return the socket of the agent that IdentityAgent names, or else that of SSH_AUTH_SOCK."""
    return os.path.expandvars("$SSH_AUTH_SOCK" if place in (None, "SSH_AUTH_SOCK") else str(Path(place).expanduser()))


def is_mute(place: str | None, on_mute: Callable[[str], object] | None) -> bool:
    """Tell whether an agent is there and doesn't answer; on_mute: gets its socket, once."""
    path = find_socket(place)
    with _lock:
        is_known = path in _are_mute
        if not is_known:
            _are_mute[path] = place != "none" and _is_mute(path)
    if _are_mute[path] and not is_known and on_mute is not None:
        on_mute(path)
    return _are_mute[path]


def _is_mute(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(ANSWER_S)
            agent.connect(path)
            agent.sendall(_LIST_KEYS)
            agent.recv(1)
    except TimeoutError:
        return True
    except OSError:  # there is none
        pass
    return False
