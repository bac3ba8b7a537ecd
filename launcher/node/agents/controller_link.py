"""The TLS connection to the controller: dialing all of its addresses at once, and messages both ways, without blocking.

An address counts once TLS has shown the certificate that was expected.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import select
import socket
import ssl
from typing import Any, Dict, Optional, Tuple

from launcher.node import messages
from launcher.node.system import boottime

OUT_BYTES = 256 << 10  # while this much waits to be sent, no process's output is read
_READ_BYTES = 64 << 10
_WRITE_BYTES = 16 << 10  # a TLS record
MOST_REFUSALS = 3  # in a row, by an address that was connected: the controller's port never moves, so it has ended
_MISFIT = "certificate does not fit"
_REFUSED = "connection refused"


class Dials:
    """The addresses of the controller, and how it went to connect to each.

    None waits for another: an address that hangs delays nothing. The certificate is compared before anything is sent
    but TLS's own handshake. Neither its dates nor names count, so clocks and addresses may be wrong.
    """

    def __init__(self, addresses: list[tuple[str, int]], fingerprint: str) -> None:
        """addresses: numeric ones with their ports, since a resolver may hang; fingerprint: SHA-256 in hex."""
        self._known = ""  # the address that was connected last
        self._refusals = 0  # by that address, since then
        self._faults: dict[str, str] = {}  # by address: what went wrong there last
        self._addresses = addresses
        self._fingerprint = fingerprint
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2

    def connect(self, most_s: float) -> Optional[Tuple[str, ssl.SSLSocket]]:
        """Dial all addresses, and block until one is connected; return it with its name, None if none is in time."""
        dials, poll, until = self._begin(), select.poll(), boottime() + most_s
        for fd in dials:
            poll.register(fd, select.POLLOUT)
        try:
            while dials and boottime() < until:
                for fd, _ in poll.poll(max(0.0, until - boottime()) * 1000):
                    name, sock = dials[fd]
                    try:
                        events = self._advance(sock)
                    except OSError as error:
                        self.note_fault(name, _describe(error))
                        poll.unregister(fd)
                        dials.pop(fd)[1].close()
                        continue
                    if not events:
                        self._known, self._refusals = name, 0
                        return dials.pop(fd)
                    poll.modify(fd, events)
            for name, _ in dials.values():
                self.note_fault(name, "no answer")
        finally:
            for _, sock in dials.values():
                sock.close()
        return None

    def _begin(self) -> Dict[int, Tuple[str, ssl.SSLSocket]]:
        """Begin to connect; return those that may succeed, by descriptor."""
        dials = {}
        for host, port in self._addresses:
            name = "%s port %d" % (host, port)
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
                family, kind, protocol, _, address = found[0]
                plain = socket.socket(family, kind, protocol)
                plain.setblocking(False)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock = self._context.wrap_socket(plain, do_handshake_on_connect=False)
                _check(sock.connect_ex(address))
            except OSError as error:
                self.note_fault(name, _describe(error))
            else:
                dials[sock.fileno()] = name, sock
        return dials

    def _advance(self, sock: ssl.SSLSocket) -> int:
        """Do what is possible now; return what to wait for, 0 if the certificate fits, or raise OSError."""
        _check(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            return select.POLLIN
        except ssl.SSLWantWriteError:
            return select.POLLOUT
        certificate = sock.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), self._fingerprint):
            raise OSError(errno.EPROTO, _MISFIT)
        return 0

    def note_fault(self, name: str, why: str) -> None:
        """Remember why an address could not be used."""
        self._faults[name] = why
        if name == self._known:
            self._refusals = self._refusals + 1 if why == _REFUSED else 0

    def is_refused(self) -> bool:
        """Tell whether nobody listens any more where the controller was."""
        return self._refusals >= MOST_REFUSALS

    def describe_faults(self) -> str:
        """Return what went wrong at each address, in one line."""
        return "; ".join("%s: %s" % fault for fault in self._faults.items()) or "no address"


def _check(code: int) -> None:
    """Raise OSError if a connection can't be made, as a system call says by the number of an error."""
    if code not in (0, errno.EINPROGRESS):
        raise OSError(code, os.strerror(code))


def _describe(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "no TLS there (%s)" % (error.reason or error)
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


class ControllerLink:
    """A TLS connection, and the messages that wait to be sent.

    Once `is_lost` is set it stays so, and the owner closes the connection; messages that came before the loss are still
    returned by `receive`.
    """

    def __init__(self, name: str, sock: ssl.SSLSocket) -> None:
        """name: of the address, for messages; sock: non-blocking, with its handshake done."""
        self.name = name
        self.is_welcome = False  # the controller has accepted this agent
        self.is_lost = False
        self.heard_at = boottime()
        self._socket = sock
        self._decoder = messages.Decoder()
        self._outgoing = bytearray()
        # TLS may have to write before it can read, or the reverse.
        self._receive_needs = select.POLLIN
        self._send_needs = select.POLLOUT

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    def events(self) -> int:
        """Return the events to wait for now."""
        return self._receive_needs | (self._send_needs if self._outgoing else 0)

    @property
    def is_full(self) -> bool:
        """Tell whether so much waits to be sent that no more output should be read."""
        return len(self._outgoing) >= OUT_BYTES

    @property
    def is_flushed(self) -> bool:
        """Tell whether nothing waits to be sent."""
        return not self._outgoing

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        """Queue a message; `flush` sends it."""
        self._outgoing += messages.encode(kind, payload, **fields)

    def flush(self) -> None:
        """Send as much as the network takes now."""
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as view:
                    # After a refusal TLS expects the same bytes again, or more: bytes are only ever added behind them.
                    sent = self._socket.send(view[:_WRITE_BYTES])
                del self._outgoing[:sent]
        except ssl.SSLWantWriteError:
            self._send_needs = select.POLLOUT
        except ssl.SSLWantReadError:
            self._send_needs = select.POLLIN
        except OSError:
            self.is_lost = True

    def receive(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return the messages that have arrived. Reads all that is there, which the windows of the channels bound."""
        found: list[tuple[dict[str, Any], bytes]] = []
        try:
            while not self.is_lost:
                data = self._socket.recv(_READ_BYTES)
                if data:
                    self.heard_at = boottime()
                    found += self._decoder.feed(data)
                else:
                    self.is_lost = True
        except ssl.SSLWantReadError:
            self._receive_needs = select.POLLIN
        except ssl.SSLWantWriteError:
            self._receive_needs = select.POLLIN | select.POLLOUT
        except (OSError, messages.MalformedMessage):
            self.is_lost = True
        return found

    def close(self) -> None:
        """Close the connection; what waits to be sent is dropped."""
        self._socket.close()
