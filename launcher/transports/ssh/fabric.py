"""SSH through Fabric and paramiko, which handle ssh_config, keys, agent, jump hosts and login.

The channel is read here: Fabric's own `Connection.run()` joins all output so far for every 1000 bytes and polls 100
times a second per host. Fabric also accepts any host key. So commands are started on the connection's paramiko
transport, and host keys are checked by launcher.transports.ssh.host_keys.

A hop is one Fabric connection on the way to a host: to a jump host (Fabric's `gateway`) or to the host itself.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fabric
import paramiko

from launcher.hosts.host import Host
from launcher.transports.base import KILLED, READ_BYTES, STDERR, STDOUT, Channel
from launcher.transports.settings import TransportSettings
from launcher.transports.ssh import fabric_failures
from launcher.transports.ssh.config_files import ConfigFiles
from launcher.transports.ssh.host_keys import KnownHosts
from launcher.transports.ssh.identities import Login, locked_keys
from launcher.transports.ssh.key_files import Secrets
from launcher.transports.ssh.logins import LoginError, LoginQueues, keep_trying
from launcher.transports.ssh.openssh_config import jump_circle, read_seconds, split_jump
from launcher.transports.ssh.packet_limits import BoundedPipe
from launcher.transports.ssh.proxy_command import Proxy
from launcher.transports.ssh.this_machine import ThisMachine

# paramiko logs a traceback when a connection breaks; the TransportError reports it in one line.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_IDLE_WAKE_S = 30  # paramiko's transport thread would wake up ten times a second otherwise
_EXIT_STATUS_WAIT_S = 2.0
_TCP_USER_TIMEOUT_MS = 30_000
_WINDOW_BYTES = 1 << 20  # of each host's output that may wait here to be read


class FabricChannel:
    """The streams of a process on an SSH channel; closing it closes the connections to all jump hosts as well."""

    def __init__(self, connection: fabric.Connection, channel: paramiko.Channel) -> None:
        self._connection = connection
        self._channel = channel
        # Not paramiko's own event: if one stream is read while the other receives, it stays unset with data waiting,
        # and data that comes later doesn't set it.
        self._arrived = threading.Event()
        channel.in_buffer, channel.in_stderr_buffer = (BoundedPipe(_WINDOW_BYTES, self._arrived) for _ in range(2))

    def read(self) -> tuple[int, bytes]:
        channel = self._channel
        while True:
            is_over = channel.eof_received or channel.closed  # asked first: data may come just before the end
            if channel.recv_ready():
                return STDOUT, channel.recv(READ_BYTES)
            if channel.recv_stderr_ready():
                return STDERR, channel.recv_stderr(READ_BYTES)
            if is_over:
                return 0, b""
            self._arrived.wait()
            self._arrived.clear()  # before the next look: data that comes after that look must end the next wait

    def write(self, data: bytes) -> None:
        self._channel.sendall(data)

    def close(self) -> None:
        _close(self._connection)

    def exit_code(self) -> int | None:
        # sshd sends the status after the end of the streams; the event also comes when the channel closes.
        self._channel.status_event.wait(_EXIT_STATUS_WAIT_S)
        if self._channel.exit_status >= 0:
            return self._channel.exit_status
        transport = self._channel.get_transport()
        # paramiko does not read exit-signal: a channel that ends on a good connection was killed.
        return KILLED if transport is not None and transport.is_active() else None


class FabricTransport:
    """Reaches each host over an SSH connection of its own, with one channel in it."""

    name = "fabric"
    is_terse = False

    def __init__(self, settings: TransportSettings) -> None:
        """Read ssh_config once for all hosts; raise UsageError if a named file is missing."""
        self._may_boot = settings.may_boot
        self._secrets = settings.secrets or Secrets()
        self._this_machine = ThisMachine(settings)
        self._queues = LoginQueues()
        self._files = ConfigFiles(settings.ssh_config)
        self._known_hosts = KnownHosts(accept_new=settings.accept_new_host_keys)

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        connection = self.prepare(host)
        place = fabric_failures.place_of(connection)
        is_direct = connection.gateway is None
        channel = self._this_machine.open(host, command, place, connection.ssh_config, is_direct=is_direct)
        if channel is not None:
            return channel
        own_limit_s = None if self._may_boot else read_seconds(connection.ssh_config.get("connecttimeout"))
        queue = self._queues[_first_sshd(connection)]
        prepared = [connection]  # for the first try; a Fabric connection that has failed can't be opened again

        def log_in(try_s: float) -> Channel:
            return self._log_in(prepared.pop() if prepared else self.prepare(host), command, try_s)

        return keep_trying(host.name, queue, log_in, own_limit_s or timeout_s, may_boot=self._may_boot)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()

    def _log_in(self, connection: fabric.Connection, command: str, timeout_s: float) -> Channel:
        hop = connection
        proxy = None
        try:
            for hop in reversed(list(_hops(connection))):
                if isinstance(hop.gateway, str):
                    proxy = hop.connect_kwargs["sock"] = Proxy(hop.gateway)
                    hop.gateway = None
                hop.connect_timeout = max(1, int(timeout_s))
                hop.connect_kwargs.update(banner_timeout=timeout_s, auth_timeout=timeout_s)
                hop.open()
                _tune(hop.transport)
            return _start(connection, command, timeout_s)
        except Exception as error:
            non_ssh_reply = _non_ssh_reply(hop)
            _close(connection)
            jump_host = hop.original_host if hop is not connection else None
            failure = fabric_failures.classify(error, hop, proxy.last_stderr_line() if proxy else None, non_ssh_reply)
            raise LoginError(failure, jump_host) from error

    def prepare(self, host: Host) -> fabric.Connection:
        """Return the connection to `host` through its jump hosts, none of them opened yet; raise UsageError."""
        # One configuration for each host: making a connection changes it, and hosts connect in threads.
        config = fabric.Config(ssh_config=self._files.lookup(host.name, host.user, host.port))
        try:
            connection = fabric.Connection(
                host.name,
                user=host.user,
                port=host.port,
                config=config,
                gateway=self._jump_chain(host, config),
            )
        except RecursionError:
            jump, *_ = config.base_ssh_config.lookup(host.name)["proxyjump"].split(",")
            raise jump_circle(host.name, jump) from None
        for hop in _hops(connection):
            login = hop.connect_kwargs["auth_strategy"] = Login(hop.user, hop.ssh_config, self._secrets)
            self._known_hosts.guard(hop, fabric_failures.place_of(hop), on_untrusted=login.keep_password)
        return connection

    def locked_keys(self, hosts: Iterable[Host]) -> list[Path]:
        """Return the keys for these hosts and their jump hosts that need a passphrase; no host is contacted."""
        found: dict[Path, None] = {}
        asked: set[str] = set()  # most hosts have the same keys
        for host in hosts:
            for settings in self._settings_on_the_way(host):
                keys = f"{settings.get('identityfile')} {settings.get('identityagent')}"
                if keys not in asked:
                    asked.add(keys)
                    found.update(dict.fromkeys(locked_keys(settings, self._secrets)))
        return list(found)

    def _settings_on_the_way(self, host: Host) -> Iterator[Mapping[str, Any]]:
        config = self._files.lookup(host.name, host.user, host.port)
        seen: set[str] = set()
        pending = [host.name]
        while pending:
            name = pending.pop()
            if name not in seen:  # with ProxyJump under `Host *` a jump host may be reached through itself
                seen.add(name)
                yield (settings := config.lookup(name))
                jumps = settings.get("proxyjump")
                pending += [split_jump(jump)[0] for jump in jumps.split(",")] if jumps else []

    def _jump_chain(self, host: Host, config: fabric.Config) -> fabric.Connection | None:
        """Return the connection to the last jump host of `ProxyJump a,b`, through the others, a first as in OpenSSH.

        Fabric would take b first. Return None if there is at most one jump host, which Fabric handles itself.
        """
        if not self._files.has_jump_chains:
            return None
        gateway = None
        jumps = config.base_ssh_config.lookup(host.name).get("proxyjump", "").split(",")
        for jump in jumps if len(jumps) > 1 else ():
            gateway = fabric.Connection(jump, config=config.clone(), gateway=gateway)
        return gateway


class _BoundedEvent(threading.Event):
    """An event with a time limit, for paramiko's channel: paramiko waits for the answer to exec without a limit."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self._limit_s = limit_s

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(self._limit_s if timeout is None else timeout) and timeout is None:
            raise TimeoutError(f"no answer in {self._limit_s:g} s")
        return self.is_set()


def _start(connection: fabric.Connection, command: str, timeout_s: float) -> FabricChannel:
    channel = connection.transport.open_session(window_size=_WINDOW_BYTES, timeout=timeout_s)
    channel.event = _BoundedEvent(timeout_s)
    ours = FabricChannel(connection, channel)  # replaces the channel's buffers, so before any output can come
    channel.exec_command(command)
    return ours


def _hops(connection: fabric.Connection) -> Iterator[fabric.Connection]:
    """Yield the connection itself, then the jump host that it goes through, and so on to the first one."""
    hop: Any = connection
    while isinstance(hop, fabric.Connection):
        yield hop
        hop = hop.gateway


def _non_ssh_reply(hop: fabric.Connection) -> str | None:
    """Return the first line of a server that doesn't speak SSH; None for one that does."""
    transport = hop.client.get_transport()
    reply: str | None = transport.packetizer.non_ssh_reply if transport is not None else None
    return reply


def _first_sshd(connection: fabric.Connection) -> str:
    """Return a name for the first sshd on the way, the same for all hosts behind one jump host or ProxyCommand."""
    *_, first = _hops(connection)
    if isinstance(first.gateway, str):
        return first.gateway.replace(first.host, "%h").replace(str(first.port), "%p")
    return f"{first.user}@{first.host}:{first.port}"


def _close(connection: fabric.Connection) -> None:
    for hop in _hops(connection):
        if hop.transport is not None:
            _hang_up(hop.transport)
        else:
            hop.client.close()


def _hang_up(transport: paramiko.Transport) -> None:
    """Close the TCP connection without SSH's own disconnect message, which could block on a frozen peer.

    The transport's thread still reads the socket, so closing it alone would send nothing; shutdown does.
    """
    if isinstance(transport.sock, socket.socket):
        with contextlib.suppress(OSError):
            transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()


def _tune(transport: paramiko.Transport) -> None:
    sock = transport.sock
    if isinstance(sock, Proxy):
        sock.settimeout(_IDLE_WAKE_S)
    if not isinstance(sock, socket.socket):
        return  # the channel of a jump host
    sock.settimeout(_IDLE_WAKE_S)
    with contextlib.suppress(OSError):  # EINVAL on macOS, if the peer has gone meanwhile: what follows reports it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)
