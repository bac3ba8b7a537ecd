"""Brings a relay on this node what the launcher says to it: the task of a short pdsh, sent alone."""

from __future__ import annotations

import os
import sys
from binascii import b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    Line = Tuple[bytes, Optional[int]]  # its words, and which text follows in base64

TIMEOUT_S = 10.0  # for a relay, which does nothing that takes long


def main(nonce: str, rank: int, texts: list[bytes], mails: list[tuple[int, List[Line]]]) -> None:
    """Deliver the mail for our place among the hosts of this pdsh, and say so; texts: what several lines share."""
    from socket import AF_UNIX, SHUT_WR, SO_PEERCRED, SOL_SOCKET, socket

    task, lines = mails[rank]
    with socket(AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect(b"\0launch-%s-%d" % (nonce.encode(), task))
        except OSError as error:
            sys.exit("its relay does not answer: %s" % error.strerror)
        credentials = sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) != os.getuid():
            sys.exit("the mailbox is somebody else's")
        for words, number in lines:
            sock.sendall(words + (b"\n" if number is None else b" " + b2a_base64(texts[number])))  # with its newline
        sock.shutdown(SHUT_WR)
        if sock.recv(1):
            print("~%s got %d" % (nonce, task), flush=True)
