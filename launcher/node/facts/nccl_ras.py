"""NCCL's RAS: a thread of each rank that knows the state of all, and tells it in plain text (NCCL 2.24 and later).

https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html has the protocol and its answers.
All jobs on a machine listen on port 28028 by default, and any of them may answer, so each run gets a port of its own.
"""

from __future__ import annotations

import socket
from typing import Dict

ADDRESS = "NCCL_RAS_ADDR"
_ENABLE = "NCCL_RAS_ENABLE"
_QUESTION = b"VERBOSE STATUS\n"
_QUIET_S = 11.0  # it waits up to 10 s for ranks that don't respond to it
_MOST_BYTES = 200_000  # each may become several in JSON


def give_address(env: Dict[str, str], chosen: Dict[str, str]) -> None:
    """Set the address in `env` unless the user has: it is for all ranks of this node, and for no other run.

    chosen: variables of the ranks that come later, and win.
    """
    if ADDRESS not in env and ADDRESS not in chosen:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            env[ADDRESS] = "127.0.0.1:%d" % sock.getsockname()[1]


def ask(env: Dict[str, str]) -> str:
    """Return the answer; it is empty if nobody listens there, as without NCCL."""
    host, _, port = env.get(ADDRESS, "").rpartition(":")
    if not port.isdigit() or env.get(_ENABLE) == "0":
        return ""
    text = b""
    try:
        with socket.create_connection((host.strip("[]") or "localhost", int(port)), _QUIET_S) as sock:
            sock.sendall(_QUESTION)
            while len(text) < _MOST_BYTES:
                data = sock.recv(1 << 16)
                if not data:
                    break
                text += data
    except OSError:
        pass  # what came before is an answer too
    return text[:_MOST_BYTES].decode("utf-8", "replace")
