"""Every way in which a connection of Fabric's fails, told by paramiko's exceptions and judged."""

from __future__ import annotations

import errno
import socket

import fabric
import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from launcher.transports.host_keys import UnknownHostKey, first_known_file
from launcher.transports.ssh_failures import Judgement, Place

_DROPPED = ("Error reading SSH protocol banner", "Connection reset by peer", "EOF during negotiation")


def judge(error: Exception, hop: fabric.Connection) -> Judgement:
    """Return the class of an exception that `hop` raised: a connection, or a gateway's."""
    place = _place(hop)
    for find in (_host_key, _silence, _login, _network):
        judgement = find(error, hop, place)
        if judgement is not None:
            return judgement
    if any(text in str(error) for text in _DROPPED):
        return place.dropped()
    return place.lost() if isinstance(error, EOFError) else place.other(f"{type(error).__name__}: {error}")


def _place(hop: fabric.Connection) -> Place:
    known = hop.ssh_config.get("userknownhostsfile")
    return Place(hop.original_host, hop.host, hop.port, hop.user, known_file=known and str(first_known_file(known)))


def _host_key(error: Exception, hop: fabric.Connection, place: Place) -> Judgement | None:
    if isinstance(error, paramiko.BadHostKeyException):
        return place.key_changed(error.key.fingerprint, error.expected_key.fingerprint)
    return place.key_unknown(error.fingerprint) if isinstance(error, UnknownHostKey) else None


def _login(error: Exception, hop: fabric.Connection, place: Place) -> Judgement | None:
    if isinstance(error, paramiko.PasswordRequiredException):
        return place.key_encrypted()
    if isinstance(error, paramiko.AuthenticationException) or "No authentication methods" in str(error):
        files = hop.connect_kwargs.get("key_filename") or ["the agent and the default keys"]
        return place.login_refused([files] if isinstance(files, str) else files)
    return None


def _silence(error: Exception, hop: fabric.Connection, place: Place) -> Judgement | None:
    if isinstance(error, paramiko.AuthenticationException) and "timeout" in str(error).lower():
        return place.slow_login()
    return place.timed_out() if _is_timeout(error) else None


def _network(error: Exception, hop: fabric.Connection, place: Place) -> Judgement | None:
    if isinstance(error, NoValidConnectionsError):
        error = next(iter(error.errors.values()))
    if isinstance(error, socket.gaierror):
        return place.name_unknown()
    if isinstance(error, ConnectionRefusedError):
        return place.refused()
    if isinstance(error, paramiko.ChannelException):
        return place.no_way(error.text)
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return place.no_route()
    return None


def _is_timeout(error: Exception) -> bool:
    """Whether the other side was silent: paramiko tells a missing banner in three ways."""
    texts = ("timed out", "no existing session")
    return (
        isinstance(error, TimeoutError)
        or isinstance(error.__context__, TimeoutError)
        or any(text in str(error).lower() for text in texts)
    )
