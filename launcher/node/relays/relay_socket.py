"""The socket on which a relay under pdsh receives the launcher's lines: an abstract one, which leaves no file.

All users of the node can read its name in a command line, so each end checks the user of the other end.
"""

from __future__ import annotations

import os
import sys
from socket import AF_UNIX, SO_PEERCRED, SOL_SOCKET, socket


def open_socket(nonce: str, task: int) -> socket:
    """Return a listening socket to which `launcher.node.relays.relay_input` can connect."""
    listener = socket(AF_UNIX)
    listener.bind(name_of(nonce, task))
    listener.listen()
    return listener


def accept(listener: socket) -> socket | None:
    """Return the next connection, or None if it comes from another user."""
    sender, _ = listener.accept()
    return sender if is_own(sender) else None


def name_of(nonce: str, task: int) -> bytes:
    """Return the name of a task's socket; it begins with a zero byte, so it is in no file system."""
    return b"\0launch-%s-%d" % (nonce.encode(), task)


def is_own(sock: socket) -> bool:
    """Tell whether the other end is a process of the same user."""
    credentials = sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)  # process, user and group, of 4 bytes each
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid()
