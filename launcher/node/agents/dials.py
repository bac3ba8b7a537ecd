"""Connecting to all addresses of the controller at once, up to TLS with the certificate that was expected."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import select
import socket
import ssl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

DIAL_S = 10.0  # for one address
MOST_REFUSALS = 3  # in a row, by an address that was connected: the controller's port never moves, so it has ended
_MISFIT = "certificate does not fit"
_REFUSED = "connection refused"


class DialFailed(Exception):
    """Raised when an address can't be used; its text says why."""


class Dials:
    """The addresses of the controller, and the connections to them that are being made.

    None waits for another: an address that hangs delays nothing. The certificate is compared before anything is sent
    but TLS's own handshake. Neither its dates nor names count, so clocks and addresses may be wrong.
    """

    def __init__(self, addresses: list[tuple[str, int]], fingerprint: str, known: str = "") -> None:
        """addresses: numeric ones with their ports, since a resolver may hang; fingerprint: SHA-256 in hex.

        known: the name of one that was connected.
        """
        self.pending: list[Dial] = []
        self._known = known  # the address that was connected last
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
        except DialFailed as error:
            self._fail(dial, str(error))
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
        """Do what is possible now; return the socket if its certificate fits, or raise DialFailed."""
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
        except OSError as error:
            raise DialFailed(_describe(error)) from None
        certificate = self._socket.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), fingerprint):
            raise DialFailed(_MISFIT)
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
