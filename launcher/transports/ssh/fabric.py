"""SSH through Fabric: ssh_config, keys, agent, gateways and login are Fabric's; the channel is driven by us.

`Connection.run()` joins all output so far for every 1000 bytes and polls 100 times a second per host, and Fabric
accepts any host key; so the connection's transport is taken and both are done here.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fabric
import paramiko

from launcher.hosts.host import Host
from launcher.transports.base import KILLED, READ_BYTES, STDERR, STDOUT, Channel
from launcher.transports.ssh import fabric_failures
from launcher.transports.ssh.config_files import ConfigFiles
from launcher.transports.ssh.host_keys import KnownHosts
from launcher.transports.ssh.identities import Login, locked_keys
from launcher.transports.ssh.key_files import Secrets
from launcher.transports.ssh.logins import Gates, LoginError, keep_trying
from launcher.transports.ssh.openssh_config import jump_circle, read_seconds, split_jump
from launcher.transports.ssh.packets import BoundedPipe
from launcher.transports.ssh.proxy_command import Proxy
from launcher.transports.ssh.this_machine import ThisMachine

# What paramiko logs of a broken connection is a traceback; what we raise says it in one line.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_IDLE_WAKE_S = 30  # paramiko's transport thread looks ten times a second otherwise
_EXIT_STATUS_WAIT_S = 2.0
_TCP_USER_TIMEOUT_MS = 30_000
_WINDOW_BYTES = 1 << 20  # so much of each host may wait here while nobody reads


class FabricChannel:
    """An SSH channel of a Fabric connection."""

    def __init__(self, connection: fabric.Connection, channel: paramiko.Channel) -> None:
        self._connection = connection
        self._channel = channel
        # Not paramiko's descriptor: read in one stream while the other receives, it stays unset with data waiting,
        # and nothing that comes later sets it.
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
            self._arrived.clear()  # before the next look, so that what comes after it is not slept through

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
    """Reaches hosts by SSH, one connection and one channel each."""

    name = "fabric"
    is_terse = False

    def __init__(
        self,
        ssh_config: Path | None = None,
        *,
        accept_new_host_keys: bool = False,
        may_boot: bool = False,
        secrets: Secrets | None = None,
        on_local: Callable[[str], None] | None = None,
        on_doubt: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """Read the configuration once; raise UsageError where a named file is missing.

        may_boot: wait for a host that is not there yet, for as long as `open` may take.
        secrets: what was typed for logins, once for all hosts.
        on_local: told of each host that turns out to be this machine, which then needs no SSH.
        on_doubt: told of each host that has this machine's address, why it may not be this machine, and what helps.
        """
        self._may_boot = may_boot
        self._secrets = secrets or Secrets()
        self._this_machine = ThisMachine(on_local, on_doubt)
        self._gates = Gates()
        self._files = ConfigFiles(ssh_config)
        self._known_hosts = KnownHosts(accept_new=accept_new_host_keys)

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        connection = self.prepare(host)
        place = fabric_failures.place_of(connection)
        if connection.gateway is None and self._this_machine.is_meant(place, connection.ssh_config):
            return self._this_machine.open(host, command, timeout_s)
        own_limit_s = None if self._may_boot else read_seconds(connection.ssh_config.get("connecttimeout"))
        gate = self._gates[_gate_name(connection)]
        prepared = [connection]  # for the first try; one that failed is of no more use

        def log_in(try_s: float) -> Channel:
            return self._log_in(prepared.pop() if prepared else self.prepare(host), command, try_s)

        return keep_trying(host.name, gate, log_in, own_limit_s or timeout_s, may_boot=self._may_boot)

    def last_words(self, host: Host) -> Sequence[str]:
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
            stray_words = _stray_words(hop)
            _close(connection)
            gateway = hop.original_host if hop is not connection else None
            failure = fabric_failures.judge(error, hop, proxy.last_words() if proxy else None, stray_words)
            raise LoginError(failure, gateway) from error

    def prepare(self, host: Host) -> fabric.Connection:
        """Return the connection to `host`, with its gateways, not opened yet; raise UsageError."""
        # A configuration each: making a connection writes to its own, and hosts connect in threads.
        config = fabric.Config(ssh_config=self._files.lookup(host.name))
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
        """Return the keys on the way to these hosts for which a passphrase is wanted; nobody is contacted."""
        found: dict[Path, None] = {}
        asked: set[str] = set()  # most hosts have the same keys
        for host in hosts:
            for settings in self._settings_on_the_way(host.name):
                keys = f"{settings.get('identityfile')} {settings.get('identityagent')}"
                if keys not in asked:
                    asked.add(keys)
                    found.update(dict.fromkeys(locked_keys(settings, self._secrets)))
        return list(found)

    def _settings_on_the_way(self, name: str) -> Iterator[Mapping[str, Any]]:
        config = self._files.lookup(name)
        seen: set[str] = set()
        pending = [name]
        while pending:
            hop = pending.pop()
            if hop not in seen:  # `Host *` may send a bastion by way of itself
                seen.add(hop)
                yield (settings := config.lookup(hop))
                jumps = settings.get("proxyjump")
                pending += [split_jump(jump)[0] for jump in jumps.split(",")] if jumps else []

    def _jump_chain(self, host: Host, config: fabric.Config) -> fabric.Connection | None:
        """Return the gateways of `ProxyJump a,b` in OpenSSH's order, a first; fabric goes the other way round.

        None leaves a single jump, or none at all, to fabric.
        """
        if not self._files.has_jump_chains:
            return None
        gateway = None
        jumps = config.base_ssh_config.lookup(host.name).get("proxyjump", "").split(",")
        for jump in jumps if len(jumps) > 1 else ():
            gateway = fabric.Connection(jump, config=config.clone(), gateway=gateway)
        return gateway


class _BoundedEvent(threading.Event):
    """paramiko waits for the answer to exec without end, on the channel's event: this one ends."""

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
    ours = FabricChannel(connection, channel)  # before anything can come
    channel.exec_command(command)
    return ours


def _hops(connection: fabric.Connection) -> Iterator[fabric.Connection]:
    """The connection itself, and each gateway on the way to it."""
    hop: Any = connection
    while isinstance(hop, fabric.Connection):
        yield hop
        hop = hop.gateway


def _stray_words(hop: fabric.Connection) -> str | None:
    """Return what was said by who answered and does not speak SSH."""
    transport = hop.client.get_transport()
    words: str | None = transport.packetizer.stray_words if transport is not None else None
    return words


def _gate_name(connection: fabric.Connection) -> str:
    """Return what the hosts behind one gateway have in common: the first hop, or their ProxyCommand."""
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
    """Close without a word: a polite end could block on a frozen peer.

    The transport's thread still waits on the socket, so closing alone would send nothing; shutdown does.
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
        return  # a gateway's channel
    sock.settimeout(_IDLE_WAKE_S)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
