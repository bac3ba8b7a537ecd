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
from typing import Any, Optional

from launcher.node import clock, messages

OUT_BYTES = 256 << 10  # while this much waits to be sent, no process's output is read
_READ_BYTES = 64 << 10
_WRITE_BYTES = 16 << 10  # a TLS record
DIAL_S = 10.0  # for one address
MOST_REFUSALS = 3  # in a row, by an address that was connected: the controller's port never moves, so it has ended
_MISFIT = "certificate does not fit"
_REFUSED = "connection refused"


class Dials:
    """The addresses of the controller, and the connections to them that are being made.

    None waits for another: an address that hangs delays nothing. The certificate is compared before anything is sent
    but TLS's own handshake. Neither its dates nor names count, so clocks and addresses may be wrong.
    """

    def __init__(self, addresses: list[tuple[str, int]], fingerprint: str) -> None:
        """addresses: numeric ones with their ports, since a resolver may hang; fingerprint: SHA-256 in hex."""
        self.pending: list[Dial] = []
        self._known = ""  # the address that was connected last
        self._refusals = 0  # by that address, since then
        self._faults: dict[str, str] = {}  # by address: what went wrong there last
        self._addresses = addresses
        self._fingerprint = fingerprint
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2

    def begin(self, now: float) -> None:
        """Begin to connect to every address with which that isn't in progress; now: as for `expire`."""
        names = {dial.name for dial in self.pending}
        for host, port in self._addresses:
            if _name(host, port) in names:
                continue
            try:
                self.pending.append(Dial(host, port, now))
            except OSError as error:
                self.note_fault(_name(host, port), _describe(error))

    def advance(self, dial: Dial) -> Optional[ssl.SSLSocket]:
        """Continue with an address that is ready; once its certificate fits, drop the others and return the socket."""
        if dial not in self.pending:  # another one was faster
            return None
        try:
            connected = dial.advance(self._context, self._fingerprint)
        except OSError as error:
            self._fail(dial, _describe(error))
            return None
        if connected is not None:
            self._known, self._refusals = dial.name, 0
            self.pending.remove(dial)
            self.close()
        return connected

    def expire(self, now: float) -> None:
        """Drop the addresses that took too long."""
        for dial in [dial for dial in self.pending if now >= dial.deadline]:
            self._fail(dial, "no answer in %g s" % DIAL_S)

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

    def close(self) -> None:
        """Drop all connections that are being made."""
        for dial in self.pending:
            self._faults.setdefault(dial.name, "no answer")
            dial.close()
        self.pending.clear()

    def _fail(self, dial: Dial, why: str) -> None:
        self.note_fault(dial.name, why)
        self.pending.remove(dial)
        dial.close()


class Dial:
    """One connection that is being made: TCP, then TLS's handshake."""

    def __init__(self, host: str, port: int, now: float) -> None:
        """Begin, or raise OSError if it is known already that this can't succeed."""
        self.name = _name(host, port)
        self.events = select.POLLOUT  # to wait for before the next `advance`
        self.deadline = now + DIAL_S
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        family, kind, protocol, _, address = found[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self._socket.connect_ex(address)
            _check(0 if code == errno.EINPROGRESS else code)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor to wait for; it stays the same."""
        return self._socket.fileno()

    def advance(self, context: ssl.SSLContext, fingerprint: str) -> Optional[ssl.SSLSocket]:
        """Do what is possible now; return the socket if its certificate fits, or raise OSError."""
        try:
            if not isinstance(self._socket, ssl.SSLSocket):
                _check(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                self._socket = context.wrap_socket(self._socket, do_handshake_on_connect=False)
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self.events = select.POLLIN
            return None
        except ssl.SSLWantWriteError:
            self.events = select.POLLOUT
            return None
        certificate = self._socket.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), fingerprint):
            raise OSError(errno.EPROTO, _MISFIT)
        return self._socket

    def close(self) -> None:
        """Drop the connection."""
        self._socket.close()


def _check(code: int) -> None:
    """Raise OSError if a system call has returned an error's number."""
    if code:
        raise OSError(code, os.strerror(code))


def _name(host: str, port: int) -> str:
    return "%s port %d" % (host, port)


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

    def __init__(self, sock: ssl.SSLSocket, name: str) -> None:
        """name: of the address, for messages; sock: non-blocking, with its handshake done."""
        self.name = name
        self.is_welcome = False  # the controller has accepted this agent
        self.is_lost = False
        self.heard_at = clock.boottime()
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
                    self.heard_at = clock.boottime()
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
