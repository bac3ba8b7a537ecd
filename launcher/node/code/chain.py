"""Nodes in a chain, each of which passes pieces of code on to the next: the launch host sends each piece only once.

A node connects to the next one over TLS. All of them have one certificate with its key, made for this delivery and sent
over the launcher's own connection, and accept nobody without it. What arrives this way is checked by its hash like
everything else, and what doesn't arrive is sent by the launcher itself. A neighbour may be hostile: a piece that isn't
one ends its connection before anything of it is passed on, and is no error of this node.

A node that has taken a piece waits until the next one has room for it. So a slow node slows the launcher down instead
of filling the memory of those before it; and since a chain is no circle, no nodes can wait for each other.
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

    from launcher.node.code.missing_pieces import Parts

    Header = Dict[str, Any]
    Unpack = Callable[[Header, bytes], Parts]

JOIN_S = 4.0  # to connect to the next node; a firewall may answer nothing
SILENCE_S = 10.0  # for which a whole piece of the previous node is waited for, once the launcher has sent everything
MOST_ADDRESSES = 4
_SEND_S = 10.0
_READ_BYTES = 1 << 18
_WAITING = 4  # pieces for the next node
_MOST_HEADER_BYTES = 1 << 20
_MOST_PAYLOAD_BYTES = messages.PIECE_BYTES + (messages.PIECE_BYTES >> 10)  # what zlib can't shrink grows a little
_MOST_STRANGERS = 64  # connections that have not proved themselves, at the same time
_OVER = b""
_YES, _NO = b"+", b"-"
_HELLO, _BEGIN, _END = "hello", "begin", "end"


class ChainLink:
    """The place of this node in a chain: a connection from the previous node, and one to the next."""

    def __init__(self, number: int, pem: bytes, unpack: Unpack, take: Callable[[Parts], object]) -> None:
        """Listen; raise OSError if that is impossible.

        number: of this node; pem: certificate and key; unpack: raises ValueError for what isn't the next piece of the
        previous node; take: takes its parts.
        """
        self._server_context = _make_context(ssl.PROTOCOL_TLS_SERVER, pem)
        self._client_context = _make_context(ssl.PROTOCOL_TLS_CLIENT, pem)
        self._unpack = unpack
        self._take_parts = take
        self._listener = _listen()
        self.port: int = self._listener.getsockname()[1]
        self._number = number
        self._lock = threading.Lock()
        self._strangers: dict[ssl.SSLSocket, str] = {}  # where each comes from, the oldest first
        self._dials = 0  # addresses of the next node that are being tried
        self._sender: _Sender | None = None
        self._has_begun = False  # the previous node
        self._previous: ssl.SSLSocket | None = None  # while more may come from it
        self._is_passing_on = False
        self._due_at = time.monotonic()
        _start(self._accept)

    def join(self, following: dict[str, Any] | None, *, has_previous: bool) -> bool:
        """Connect to the following node, unless this is the last; return whether both neighbours are there."""
        addresses = following["addresses"][:MOST_ADDRESSES] if following is not None else []
        self._dials = len(addresses)
        for address in addresses:
            assert following is not None  # it has addresses
            _start(self._try, following["number"], address, following["port"])

        def is_complete() -> bool:
            return (following is None or self._sender is not None) and (self._has_begun or not has_previous)

        deadline = time.monotonic() + JOIN_S
        while time.monotonic() < deadline and not is_complete():
            with self._lock:
                if following is not None and self._sender is None and not self._dials:
                    break  # it has refused at all of its addresses
            time.sleep(0.005)
        return is_complete()

    def pass_on(self, message: bytes) -> None:
        """Queue a message for the next node; wait while too much is queued."""
        if self._sender is not None:
            self._sender.put(message)

    def finish(self) -> None:
        """Wait until the previous node has sent everything, or is too slow; then tell the next node."""
        self._due_at = time.monotonic() + SILENCE_S
        while self._previous is not None and (self._is_passing_on or time.monotonic() < self._due_at):
            time.sleep(0.002)
        self.pass_on(messages.encode(_END))
        self.pass_on(_OVER)
        if self._sender is not None:
            self._sender.join()

    def close(self) -> None:
        """Close everything."""
        _close(self._listener)
        with self._lock:
            if self._previous is not None:
                _close(self._previous)
            if self._sender is not None:
                _close(self._sender.sock)

    # ---- to the next node -----------------------------------------------------------------------------------------

    def _try(self, number: int, address: str, port: int) -> None:
        try:
            self._dial(number, address, port)
        finally:
            with self._lock:
                self._dials -= 1

    def _dial(self, number: int, address: str, port: int) -> None:
        try:
            plain = socket.create_connection((address, port), JOIN_S)
        except OSError:
            return
        try:
            sock = self._client_context.wrap_socket(plain)
            sock.sendall(messages.encode(_HELLO, to=number))
            is_right = sock.recv(1) == _YES  # or this address is another node's, such as that of docker0
        except OSError:
            _close(plain)
            return
        with self._lock:
            is_first = is_right and self._sender is None
            if is_first:
                self._sender = _Sender(sock)
                self._sender.put(messages.encode(_BEGIN))
        if not is_first:
            _close(sock)

    # ---- from the previous node -----------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                plain, (source, *_) = self._listener.accept()
            except OSError:  # it was closed
                return
            try:
                plain.settimeout(JOIN_S)
                sock = self._server_context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            except OSError:  # it has gone
                _close(plain)
                continue
            with self._lock:
                self._strangers[sock] = source
                if len(self._strangers) > _MOST_STRANGERS:
                    self._turn_away()
            _start(self._meet, sock)

    def _turn_away(self) -> None:
        """End the oldest connection of the address with the most, so that nobody else's address is kept out."""
        sources = list(self._strangers.values())
        busiest = max(sources, key=sources.count)
        oldest = next(sock for sock, source in self._strangers.items() if source == busiest)
        del self._strangers[oldest]
        try:
            socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # not TLS's, which another thread uses
        except OSError:  # it has gone
            pass

    def _leave(self, sock: ssl.SSLSocket) -> None:
        _close(sock)
        with self._lock:
            self._strangers.pop(sock, None)

    def _meet(self, sock: ssl.SSLSocket) -> None:
        """Take the connection of a node that has the key and means this one; a stranger is left alone."""
        try:
            sock.do_handshake()
            decoder = messages.Decoder(_MOST_HEADER_BYTES, _accept)
            header = _receive(sock, decoder)
            sock.sendall(_YES if header.get("to") == self._number else _NO)
            is_chosen = _receive(sock, decoder)["type"] == _BEGIN  # of several addresses only one is
            sock.settimeout(None)
        except (OSError, ValueError, EOFError):
            self._leave(sock)
            return
        with self._lock:
            is_first = is_chosen and not self._has_begun
            if is_first:
                self._strangers.pop(sock, None)
                self._previous, self._has_begun = sock, True
        if is_first:
            self._read(sock, decoder)
        else:
            self._leave(sock)

    def _read(self, sock: ssl.SSLSocket, decoder: messages.Decoder) -> None:
        try:
            while True:
                data = sock.recv(_READ_BYTES)
                if not data:
                    return
                for header, payload in decoder.feed(data):
                    if header["type"] != messages.PIECE:  # it is _END
                        return
                    self._take(header, payload)
        except (OSError, ValueError):
            return
        finally:
            with self._lock:
                self._previous = None
            _close(sock)

    def _take(self, header: Header, payload: bytes) -> None:
        """Pass a piece on before it is written here, so that all nodes work at the same time."""
        parts = self._unpack(header, payload)
        self._is_passing_on = True  # however long the next node takes, the previous one isn't silent
        fields = {"parts": header["parts"], "is_packed": bool(header.get("is_packed"))}
        self.pass_on(messages.encode(messages.PIECE, payload, **fields))
        self._wait_longer(sum(len(data) for _, _, data in parts))
        self._is_passing_on = False
        self._take_parts(parts)

    def _wait_longer(self, size: int) -> None:
        """Give the previous node more time, by how much of a piece has come.

        One that sends a byte now and then would have others wait, and the launcher name this node for it.
        """
        now = time.monotonic()
        self._due_at = min(max(self._due_at, now) + SILENCE_S * size / messages.PIECE_BYTES, now + SILENCE_S)


class _Sender:
    """A connection to the next node, with a queue; after an error everything for it is dropped."""

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


def _accept(header: Header) -> Header:
    """Return a neighbour's header; raise MalformedMessage if more follows than a piece may have."""
    if header.get("size", 0) > _MOST_PAYLOAD_BYTES:
        raise messages.MalformedMessage("a piece of %d bytes" % header["size"])
    return header


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
