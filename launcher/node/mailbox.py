"""Where a relay under pdsh gets what the launcher says: a socket of a name, which leaves no file behind.

Everybody on the node can read the name in a command line, so both ends look whose the other one is.
"""

from __future__ import annotations

import os
import sys
from socket import AF_UNIX, SO_PEERCRED, SOL_SOCKET, socket


def open_mailbox(nonce: str, task: int) -> socket:
    """Listen for `launcher.node.mail`."""
    mailbox = socket(AF_UNIX)
    mailbox.bind(name_of(nonce, task))
    mailbox.listen()
    return mailbox


def accept(mailbox: socket) -> socket | None:
    """Return who brings mail, or None where it is another user."""
    mail, _ = mailbox.accept()
    return mail if is_own(mail) else None


def name_of(nonce: str, task: int) -> bytes:
    """Return the name of a task's mailbox; what begins with a zero byte is in no file system."""
    return b"\0launch-%s-%d" % (nonce.encode(), task)


def is_own(sock: socket) -> bool:
    """Whether the other end is a process of our own user."""
    credentials = sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)  # process, user and group, of 4 bytes each
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid()
