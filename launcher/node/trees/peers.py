"""Nodes that pass pieces of code on to each other, so that the launch host needs to send each piece only once.

Every node connects to every other one over TLS. All of them have one certificate with its key, made for this delivery
and sent over the launcher's own connection, and accept nobody without it. What arrives this way is checked by its hash
like everything else, and what doesn't arrive is sent by the launcher itself.

A node takes pieces of others in a thread for each connection, which never waits for the network to take something; so
no circle of nodes can wait for each other.
"""

from __future__ import annotations

import os
import queue
import socket
import ssl
import threading
import time

from launcher.node import messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Mapping

    Header = Dict[str, Any]
    OnPiece = Callable[[Header, bytes], object]

JOIN_S = 4.0  # to connect to all other nodes; a firewall may answer nothing
SILENCE_S = 10.0  # without a byte of any node, once the launcher has sent everything
MOST_ADDRESSES = 4
_SEND_S = 10.0
_READ_BYTES = 1 << 18
_WAITING = 4  # pieces for one node
_MOST_STRANGERS = 64
_OVER = b""
_YES, _NO = b"+", b"-"
_HELLO, _BEGIN, _END = "hello", "begin", "end"


class Peers:
    """The connections of this node to the others: one to each for what it passes on, one from each for what they do."""

    def __init__(self, number: int, pem: bytes, on_piece: OnPiece) -> None:
        """Listen; raise OSError if that is impossible.

        number: of this node; pem: certificate and key; on_piece: takes a piece of another node.
        """
        self._server_context = _make_context(ssl.PROTOCOL_TLS_SERVER, pem)
        self._client_context = _make_context(ssl.PROTOCOL_TLS_CLIENT, pem)
        self._on_piece = on_piece
        self._listener = _listen()
        self.port: int = self._listener.getsockname()[1]
        self._number = number
        self._names: set[int] = set()
        self._dialling: list[int] = []  # a number for each address that is being tried
        self._lock = threading.Lock()
        self._strangers = 0
        self._senders: dict[int, _Sender] = {}
        self._readers: dict[int, ssl.SSLSocket] = {}  # that have not said `end`
        self._begun: set[int] = set()
        self._heard_at = time.monotonic()
        _start(self._accept)

    def join(self, peers: list[dict[str, Any]]) -> bool:
        """Connect to all peers and wait until they have; return whether all of them are there."""
        self._names = {peer["number"] for peer in peers}
        ways = [
            (peer["number"], address, peer["port"]) for peer in peers for address in peer["addresses"][:MOST_ADDRESSES]
        ]
        self._dialling = [number for number, _, _ in ways]
        for way in ways:
            _start(self._try, *way)
        deadline = time.monotonic() + JOIN_S
        while time.monotonic() < deadline and not self._is_complete() and not self._is_hopeless():
            time.sleep(0.005)
        return self._is_complete()

    def _is_hopeless(self) -> bool:
        """Tell whether a peer has refused at all of its addresses."""
        with self._lock:
            return not self._names <= self._senders.keys() | set(self._dialling)

    def _is_complete(self) -> bool:
        with self._lock:
            return self._senders.keys() == self._names and self._begun == self._names

    def pass_on(self, message: bytes) -> None:
        """Queue a message for all peers; wait while too much is queued for one that still takes something."""
        for sender in list(self._senders.values()):
            sender.put(message)

    def finish(self) -> None:
        """Say that no more will come, and wait until all peers have said so, or all are silent for too long."""
        self.pass_on(messages.encode(_END))
        self.pass_on(_OVER)
        for sender in list(self._senders.values()):
            sender.join()
        self._heard_at = max(self._heard_at, time.monotonic())
        while self._readers and time.monotonic() - self._heard_at < SILENCE_S:
            time.sleep(0.002)

    def close(self) -> None:
        """Close everything."""
        _close(self._listener)
        with self._lock:
            for sock in [*self._readers.values(), *(sender.sock for sender in self._senders.values())]:
                _close(sock)

    # ---- to the others --------------------------------------------------------------------------------------------

    def _try(self, number: int, address: str, port: int) -> None:
        try:
            self._dial(number, address, port)
        finally:
            with self._lock:
                self._dialling.remove(number)

    def _dial(self, number: int, address: str, port: int) -> None:
        try:
            plain = socket.create_connection((address, port), JOIN_S)
        except OSError:
            return
        try:
            sock = self._client_context.wrap_socket(plain)
            sock.sendall(messages.encode(_HELLO, number=self._number, to=number))
            is_right = sock.recv(1) == _YES  # or this address is another node's, such as that of docker0
        except OSError:
            _close(plain)
            return
        with self._lock:
            is_first = is_right and number not in self._senders
            if is_first:
                self._senders[number] = _Sender(sock)
                self._senders[number].put(messages.encode(_BEGIN))
        if not is_first:
            _close(sock)

    # ---- from the others ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            with self._lock:
                self._strangers += 1
                is_welcome = self._strangers <= _MOST_STRANGERS
            if is_welcome:
                _start(self._meet, plain)
            else:
                self._leave(plain)

    def _leave(self, sock: socket.socket) -> None:
        _close(sock)
        with self._lock:
            self._strangers -= 1

    def _meet(self, plain: socket.socket) -> None:
        """Take one connection of a node that has the key and means this one; a stranger is left alone."""
        try:
            plain.settimeout(JOIN_S)
            sock = self._server_context.wrap_socket(plain, server_side=True)
            decoder = messages.Decoder(max_header_bytes=1 << 20)
            header = _receive(sock, decoder)
            sock.sendall(_YES if header.get("to") == self._number else _NO)
            is_chosen = _receive(sock, decoder)["type"] == _BEGIN  # of several addresses only one is
            sock.settimeout(None)
        except (OSError, ValueError, KeyError, EOFError):
            self._leave(plain)
            return
        if not is_chosen:
            self._leave(sock)
            return
        with self._lock:
            self._strangers -= 1
            self._begun.add(header["number"])
            self._readers[header["number"]] = sock
        self._read(header["number"], sock, decoder)

    def _read(self, number: int, sock: ssl.SSLSocket, decoder: messages.Decoder) -> None:
        try:
            while True:
                data = sock.recv(_READ_BYTES)
                if not data:
                    return
                self._heard_at = time.monotonic()
                for header, payload in decoder.feed(data):
                    if header["type"] == _END:
                        return
                    self._on_piece(header, payload)
        except (OSError, ValueError):
            return
        finally:
            with self._lock:
                self._readers.pop(number, None)
            _close(sock)


class _Sender:
    """A connection to one node, with a queue; after an error everything for it is dropped."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock
        self._queue: queue.Queue[bytes] = queue.Queue(_WAITING)
        sock.settimeout(_SEND_S)
        self._thread = _start(self._send)

    def put(self, message: bytes) -> None:
        self._queue.put(message)

    def join(self) -> None:
        self._thread.join()

    def _send(self) -> None:
        is_open = True
        while True:
            message = self._queue.get()
            if message == _OVER:
                return
            try:
                if is_open:
                    self.sock.sendall(message)
            except OSError:
                is_open = False


def _receive(sock: ssl.SSLSocket, decoder: messages.Decoder) -> Header:
    """Return the next message; no other one follows before this node has answered it, to its sender or the launcher."""
    while True:
        data = sock.recv(_READ_BYTES)
        if not data:
            raise EOFError
        for header, _ in decoder.feed(data):
            return header


def list_addresses(env: Mapping[str, str]) -> list[str]:
    """Return this node's addresses, first the one at which the launcher has reached it."""
    from launcher.node.facts import network

    words = env.get("SSH_CONNECTION", "").split()
    first = [words[2]] if len(words) == 4 else []
    found = [address for name, address in network.list_addresses() if not name.startswith("lo")]
    return list(dict.fromkeys([*first, *found]))[:MOST_ADDRESSES]


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
        except OSError:  # it is disabled
            pass
    return socket.create_server(("", 0), backlog=512)


def _make_context(protocol: int, pem: bytes) -> ssl.SSLContext:
    """Return TLS's settings: both sides show this certificate, and accept this one alone."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    certificate = pem[: pem.index(b"-----END CERTIFICATE-----")] + b"-----END CERTIFICATE-----\n"
    context.load_verify_locations(cadata=certificate.decode("ascii"))
    fd = os.memfd_create("launch")  # OpenSSL reads a key from a file only
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain("/proc/self/fd/%d" % fd)
    finally:
        os.close(fd)
    return context


def _start(work: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _close(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()
