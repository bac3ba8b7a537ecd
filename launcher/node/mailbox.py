"""Where a relay under pdsh gets what the launcher says: a socket of a name, which leaves no file behind."""

from __future__ import annotations

import os
import sys
from socket import AF_UNIX, SO_PEERCRED, SOL_SOCKET, socket


def open_mailbox(nonce: str, task: bytes) -> socket:
    """Listen for `launcher.node.mail`, which knows the name."""
    mailbox = socket(AF_UNIX)
    mailbox.bind(b"\0launch-%s-%s" % (nonce.encode(), task))
    mailbox.listen()
    return mailbox


def accept(mailbox: socket) -> socket | None:
    """Return who brings mail; None for another user, who may have read the name in a command line."""
    mail, _ = mailbox.accept()
    credentials = mail.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)  # process, user and group, of 4 bytes each
    return mail if int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid() else None
