"""A task of a separate pdsh that delivers the launcher's lines to this node's relay; sent with `relay_socket` only."""

from __future__ import annotations

import sys
from binascii import b2a_base64
from socket import AF_UNIX, SHUT_WR, socket

from launcher.node.relays import relay_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    Line = Tuple[bytes, Optional[int]]  # its words, and the number of the text that follows in base64

TIMEOUT_S = 10.0  # for a relay, which does nothing that takes long


def main(nonce: str, rank: int, texts: list[bytes], inputs: list[tuple[int, List[Line]]]) -> None:
    """Deliver the lines for host number `rank` of this pdsh, and print `got`; texts: what several lines may share."""
    task, lines = inputs[rank]
    with socket(AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        try:
            sock.connect(relay_socket.name_of(nonce, task))
        except OSError as error:
            sys.exit("its relay does not respond: %s" % error.strerror)
        if not relay_socket.is_own(sock):
            sys.exit("the socket belongs to another user")
        for words, number in lines:
            sock.sendall(words + (b"\n" if number is None else b" " + b2a_base64(texts[number])))  # with its newline
        sock.shutdown(SHUT_WR)
        if sock.recv(1):
            print("~%s got %d" % (nonce, task), flush=True)
