"""Every way in which an SSH connection fails, as one line and a remedy."""

from __future__ import annotations

import errno
import shlex
import socket
from collections.abc import Iterator

import fabric
import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from launcher.errors import HostFailure
from launcher.hosts import Host
from launcher.transports.host_keys import UnknownHostKey

_DROPPED = ("Error reading SSH protocol banner", "Connection reset by peer", "EOF during negotiation")


def is_passing(error: Exception) -> bool:
    """Tell whether another try may help: sshd drops connections at random beyond its MaxStartups (10:30:100).

    A refused login never passes: current sshd locks out an address that tries again and again.
    """
    if isinstance(error, paramiko.AuthenticationException | UnknownHostKey | paramiko.BadHostKeyException):
        return False
    if _is_timeout(error):
        return False
    return any(text in str(error) for text in _DROPPED)


def describe(error: Exception, host: Host, hop: fabric.Connection) -> HostFailure:
    """Return the failure of one host for an exception that `hop` raised: its own connection, or a gateway's."""
    kind, text, hint = _judge(error, hop)
    if hop.original_host != host.name:
        text = f"on the way to it, {hop.original_host}: {text}"
    return HostFailure(host.name, kind, text, hint)


def _judge(error: Exception, connection: fabric.Connection) -> tuple[str, str, str]:
    for judge in (_host_key, _silence, _login, _network):
        for judgement in judge(error, connection):
            return judgement
    by_hand = f"try by hand: {_by_hand(connection)}"
    if is_passing(error):
        hint = "too many connections at once? raise MaxStartups in its sshd_config"
        return "dropped", "sshd dropped the connection before its banner", hint
    if isinstance(error, EOFError):
        return "lost", "the connection was lost while connecting", by_hand
    return "ssh", f"{type(error).__name__}: {error}", by_hand


_Judgement = Iterator[tuple[str, str, str]]


def _host_key(error: Exception, connection: fabric.Connection) -> _Judgement:
    if isinstance(error, paramiko.BadHostKeyException):
        yield (
            "host key changed",
            f"its host key has changed: {error.key.fingerprint}, known is {error.expected_key.fingerprint}",
            f"if the machine was reinstalled: ssh-keygen {_known_file(connection)}-R {_known_name(connection)}; "
            "if not, someone listens in",
        )
    if isinstance(error, UnknownHostKey):
        port = f"-p {connection.port} " if connection.port != 22 else ""
        yield (
            "host key unknown",
            f"its host key is not known: {error.fingerprint}",
            "check it and add it: "
            f"ssh-keyscan {port}{connection.host} >> {error.file}; or trust it now: --accept-new-host-keys",
        )


def _login(error: Exception, connection: fabric.Connection) -> _Judgement:
    if isinstance(error, paramiko.PasswordRequiredException):
        yield "key encrypted", "its key has a passphrase", "ssh-add it to an agent first"
    elif isinstance(error, paramiko.AuthenticationException) or "No authentication methods" in str(error):
        files = connection.connect_kwargs.get("key_filename") or []
        tried = ", ".join([files] if isinstance(files, str) else files) or "the agent and the default keys"
        yield (
            "login refused",
            f"login refused for user {connection.user} (tried {tried})",
            f"copy a key there: ssh-copy-id {_target(connection)}",
        )


def _silence(error: Exception, connection: fabric.Connection) -> _Judgement:
    if isinstance(error, paramiko.AuthenticationException) and "timeout" in str(error).lower():
        yield "timed out", "it did not finish the login in time", "is it overloaded, or its directory service slow?"
    elif _is_timeout(error):
        where = f"{connection.host} port {connection.port}"
        yield "timed out", f"{where} does not answer", "is it on, and does a firewall let SSH through?"


def _network(error: Exception, connection: fabric.Connection) -> _Judgement:
    where = f"{connection.host} port {connection.port}"
    if isinstance(error, NoValidConnectionsError):
        error = next(iter(error.errors.values()))
    if isinstance(error, socket.gaierror):
        yield "name unknown", f"the name {connection.host} is not known", "check the spelling, DNS or ssh_config"
    elif isinstance(error, ConnectionRefusedError):
        yield "refused", f"{where} refuses the connection", "is sshd running there, and on that port?"
    elif isinstance(error, paramiko.ChannelException):
        yield "no way", f"the gateway can't reach {where} ({error.text})", "is it on, and its sshd running?"
    elif isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        yield "no route", f"no route to {where}", "is it on, and is the network up?"


def _is_timeout(error: Exception) -> bool:
    """Whether the other side was silent: paramiko tells a missing banner in three ways."""
    texts = ("timed out", "no existing session")
    return (
        isinstance(error, TimeoutError)
        or isinstance(error.__context__, TimeoutError)
        or any(text in str(error).lower() for text in texts)
    )


def _target(connection: fabric.Connection) -> str:
    port = f"-p {connection.port} " if connection.port != 22 else ""
    return f"{port}{connection.user}@{connection.host}"


def _by_hand(connection: fabric.Connection) -> str:
    return f"ssh {_target(connection)} true"


def _known_name(connection: fabric.Connection) -> str:
    return connection.host if connection.port == 22 else f"'[{connection.host}]:{connection.port}'"


def _known_file(connection: fabric.Connection) -> str:
    named = connection.ssh_config.get("userknownhostsfile")
    return f"-f {shlex.split(named)[0]} " if named else ""
