"""From the exceptions of Fabric and paramiko to the failure of a login, and to what ssh is tried for."""

from __future__ import annotations

import errno
import socket

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from launcher.errors import HostFailure
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.host_keys import ChangedHostKey, NeedsSsh, UnknownHostKey
from launcher.transports.ssh.identities import LoginRefused
from launcher.transports.ssh.logins import LoginError
from launcher.transports.ssh.packet_limits import OversizedError

# macOS reports EHOSTDOWN for a host in the same network that doesn't answer.
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
_DROPPED = ("Error reading SSH protocol banner", "Connection reset by peer", "EOF during negotiation")


class TakesSsh(LoginError):
    """Fabric can't log in, and not because of the network: ssh may, and `reason` says what it is used for."""

    def __init__(self, reason: str, failure: HostFailure, jump_host: str | None) -> None:
        """failure: what is reported where ssh can't be used."""
        super().__init__(failure, jump_host)
        self.reason = reason


def classify(error: Exception, place: Destination, non_ssh_reply: str | None, jump_host: str | None) -> LoginError:
    """Return what an exception means that the login to `place` raised.

    non_ssh_reply: the first line of a server that doesn't speak SSH. jump_host: its name, if `place` is one.
    """
    failure = _find_network_failure(error, place, non_ssh_reply)
    if failure is not None:
        return LoginError(failure, jump_host)
    if isinstance(error, LoginRefused):
        failure = place.login_refused(error.tried)
        if error.has_typed:
            return LoginError(failure, jump_host)
        return TakesSsh("a login that fabric's keys don't open", failure, jump_host)
    if isinstance(error, NeedsSsh):
        return TakesSsh(str(error), place.takes_ssh(str(error)), jump_host)
    if isinstance(error, UnknownHostKey):
        return TakesSsh("a host key that fabric doesn't find in known_hosts", place.key_unknown(), jump_host)
    if isinstance(error, ChangedHostKey):
        return TakesSsh("a host key other than that in known_hosts", place.key_changed(str(error)), jump_host)
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):  # of this machine, such as too many open files
        return LoginError(place.other(said), jump_host)
    return TakesSsh(
        f"fabric fails ({said})", place.lost() if isinstance(error, EOFError) else place.other(said), jump_host
    )


def _find_network_failure(error: Exception, place: Destination, non_ssh_reply: str | None) -> HostFailure | None:
    if isinstance(error, OversizedError):
        return place.no_ssh(str(error))
    if non_ssh_reply is not None:
        return place.no_ssh(f"it says {non_ssh_reply!r}")
    if isinstance(error, paramiko.AuthenticationException) and "timeout" in str(error).lower():
        return place.slow_login()
    if _is_timeout(error):
        return place.timed_out()
    if isinstance(error, NoValidConnectionsError):
        error = next(iter(error.errors.values()))
    if isinstance(error, socket.gaierror):
        return place.name_unknown()
    if isinstance(error, ConnectionRefusedError):
        return place.refused()
    if isinstance(error, paramiko.ChannelException):
        return place.no_way(error.text)
    if isinstance(error, OSError) and error.errno in _NO_ROUTE:
        return place.no_route()
    return place.dropped() if any(text in str(error) for text in _DROPPED) else None


def _is_timeout(error: Exception) -> bool:
    """Tell whether the other side was silent: paramiko reports a missing banner by three kinds of errors."""
    texts = ("timed out", "no existing session")
    return (
        isinstance(error, TimeoutError)
        or isinstance(error.__context__, TimeoutError)
        or any(text in str(error).lower() for text in texts)
    )
