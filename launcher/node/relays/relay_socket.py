"""The socket at which a relay under pdsh gets the launcher's lines; it has a name, but no file that could be left.

Everybody on the node can read the name in a command line, so both ends check the user of the other one.
"""

from __future__ import annotations

import os
import sys
from socket import AF_UNIX, SO_PEERCRED, SOL_SOCKET, socket


def open_socket(nonce: str, task: int) -> socket:
    """Return a socket at which `launcher.node.relays.relay_input` can connect."""
    listener = socket(AF_UNIX)
    listener.bind(name_of(nonce, task))
    listener.listen()
    return listener


def accept(listener: socket) -> socket | None:
    """Return the connection of whoever brings lines, or None if that is another user."""
    sender, _ = listener.accept()
    return sender if is_own(sender) else None


def name_of(nonce: str, task: int) -> bytes:
    """Return the name of a task's socket; what begins with a zero byte is in no file system."""
    return b"\0launch-%s-%d" % (nonce.encode(), task)


def is_own(sock: socket) -> bool:
    """Tell whether the other end is a process of our own user."""
    credentials = sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)  # process, user and group, of 4 bytes each
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid()
