"""From the exceptions of Fabric and paramiko to the failure of a login."""

from __future__ import annotations

import errno
import socket

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from launcher.errors import HostFailure
from launcher.transports.ssh.failures import LET_IT_SIGN, SECOND_KEY, SECOND_PASSWORD, Destination
from launcher.transports.ssh.host_keys import ChangedHostKey, UnknownHostKey, UnrecordedHostKey
from launcher.transports.ssh.identities import LoginRefused
from launcher.transports.ssh.openssh_config import HostConfig
from launcher.transports.ssh.packet_limits import OversizedError

# macOS reports EHOSTDOWN for a host in the same network that doesn't answer.
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
_DROPPED = ("Error reading SSH protocol banner", "Connection reset by peer", "EOF during negotiation")


def classify(
    error: Exception, hop: HostConfig, proxy_error: str | None = None, non_ssh_reply: str | None = None
) -> HostFailure:
    """Return the failure for an exception that the login of a hop raised, to the host or to one of its jump hosts.

    proxy_error: the last line that the ProxyCommand has printed; None without one.
    non_ssh_reply: the first line of a server that doesn't speak SSH.
    """
    place = hop.place
    if isinstance(error, OversizedError):
        return place.no_ssh(str(error))
    if non_ssh_reply is not None:
        return place.no_ssh(f"it says {non_ssh_reply!r}")
    for find in (_host_key, _silence, _login, _network):
        failure = find(error, hop, place)
        if failure is not None:
            return failure
    if proxy_error is not None and isinstance(error, EOFError | OSError | paramiko.SSHException):
        return place.cut_off(proxy_error)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return place.incompatible(str(error))
    if any(text in str(error) for text in _DROPPED):
        return place.dropped()
    return place.lost() if isinstance(error, EOFError) else place.other(f"{type(error).__name__}: {error}")


def _host_key(error: Exception, hop: HostConfig, place: Destination) -> HostFailure | None:
    if isinstance(error, ChangedHostKey):
        return place.key_changed(error.fingerprint, error.known_fingerprint)
    if isinstance(error, UnrecordedHostKey):
        return place.key_unrecorded(error.reason)
    if isinstance(error, UnknownHostKey):
        return place.key_unknown(error.kind_and_fingerprint)
    return None


def _login(error: Exception, hop: HostConfig, place: Destination) -> HostFailure | None:
    if not isinstance(error, LoginRefused):
        return None
    if error.locked and not error.tried:
        return place.key_encrypted()
    return place.login_refused(error.tried, _login_hint(error, hop))


def _login_hint(error: LoginRefused, hop: HostConfig) -> str:
    """Return how the user can log in to this host, or an empty text if copying a key there is the remedy."""
    if "gssapi-with-mic" in error.wanted and hop.option("gssapiauthentication") == "yes":
        return "use --transport ssh, which supports GSSAPI"
    takes_password = {"password", "keyboard-interactive"} & set(error.wanted)
    if error.has_accepted:
        return SECOND_PASSWORD if takes_password else SECOND_KEY
    if takes_password and "publickey" not in error.wanted:
        return "pass --ask-password: it wants a password"
    return LET_IT_SIGN if error.has_declined else ""


def _silence(error: Exception, hop: HostConfig, place: Destination) -> HostFailure | None:
    if isinstance(error, paramiko.AuthenticationException) and "timeout" in str(error).lower():
        return place.slow_login()
    return place.timed_out() if _is_timeout(error) else None


def _network(error: Exception, hop: HostConfig, place: Destination) -> HostFailure | None:
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
    return None


def _is_timeout(error: Exception) -> bool:
    """Tell whether the other side was silent: paramiko reports a missing banner by three kinds of errors."""
    texts = ("timed out", "no existing session")
    return (
        isinstance(error, TimeoutError)
        or isinstance(error.__context__, TimeoutError)
        or any(text in str(error).lower() for text in texts)
    )
