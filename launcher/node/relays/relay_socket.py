"""The socket on which a relay under pdsh receives the launcher's lines: an abstract one, which leaves no file.

A task of a separate pdsh delivers them: it runs `main`, from this module alone.

All users of the node can read its name in a command line, so each end checks the user of the other end.
"""

from __future__ import annotations

import os
import sys
from binascii import b2a_base64
from socket import AF_UNIX, SHUT_WR, SO_PEERCRED, SOL_SOCKET, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    Line = Tuple[bytes, Optional[int]]  # its words, and the number of the text that follows in base64

TIMEOUT_S = 10.0  # for a relay, which does nothing that takes long


def open_socket(nonce: str, task: int) -> socket:
    """Return a listening socket to which `main` can connect."""
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


def main(nonce: str, rank: int, texts: list[bytes], inputs: list[tuple[int, List[Line]]]) -> None:
    """Deliver the lines for host number `rank` of this pdsh, and print `got`; texts: what several lines may share."""
    task, lines = inputs[rank]
    with socket(AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect(name_of(nonce, task))
        except OSError as error:
            sys.exit("its relay does not respond: %s" % error.strerror)
        if not is_own(sock):
            sys.exit("the socket belongs to another user")
        for words, number in lines:
            sock.sendall(words + (b"\n" if number is None else b" " + b2a_base64(texts[number])))  # with its newline
        sock.shutdown(SHUT_WR)
        if sock.recv(1):
            print("~%s got %d" % (nonce, task), flush=True)
