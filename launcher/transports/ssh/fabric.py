"""SSH through Fabric and paramiko, which handle the connections and the protocol.

The channel is read here: Fabric's own `Connection.run()` joins all output so far for every 1000 bytes and polls 100
times a second per host. Fabric also accepts any host key. So commands are started on the connection's paramiko
transport, and host keys are checked by launcher.transports.ssh.host_keys.

Each hop on the way to a host has one Fabric connection, whose `gateway` is that of the hop before it. What ssh_config
sets for a hop comes from `ssh -G`: paramiko's parser ignores `Include`, and applies some `Match` blocks to every host.

Fabric does the plain login only. What it can't do, or fails at for any reason but the network, is done by ssh, whose
words are then what is reported (decision 0041).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko import SSHConfig

from launcher.concurrency import start_thread
from launcher.errors import LauncherError
from launcher.hosts.host import Host
from launcher.transports.base import KILLED, READ_BYTES, STDERR, STDOUT, Channel
from launcher.transports.settings import TransportSettings, check_config_file
from launcher.transports.ssh.fabric_failures import TakesSsh, classify
from launcher.transports.ssh.host_keys import KnownHosts, NeedsSsh, UnknownHostKey
from launcher.transports.ssh.identities import Login, Secrets, locked_keys
from launcher.transports.ssh.known_hosts import find_unclear
from launcher.transports.ssh.logins import LoginQueue, keep_trying
from launcher.transports.ssh.openssh import OpenSSHTransport
from launcher.transports.ssh.openssh_config import HostConfig, HostConfigs, find_ssh, login_args, read_seconds
from launcher.transports.ssh.packet_limits import BoundedPipe
from launcher.transports.ssh.this_machine import ThisMachine

# paramiko logs a traceback when a connection breaks; the TransportError reports it in one line.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_IDLE_WAKE_S = 30  # paramiko's transport thread would wake up ten times a second otherwise
_EXIT_STATUS_WAIT_S = 2.0
_CLOSE_S = 2.0
# After 30 s a host counts as lost; the probes (s) are for a connection on which nothing waits to be acknowledged.
_LOSS = {"TCP_USER_TIMEOUT": 30_000, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10}
_WINDOW_BYTES = 1 << 20  # of each host's output that may wait here to be read
# What Fabric would ignore, and connect all the same. Of all other options it can't follow, its login would fail.
_FOR_SSH = ("AddressFamily", "BindAddress", "BindInterface", "KnownHostsCommand", "ProxyCommand", "RevokedHostKeys")
_DEFAULTS = ("none", "any")  # of these options


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
    """Reaches each host over an SSH connection of its own, with one channel in it; or by ssh, where Fabric can't."""

    name = "fabric"

    def __init__(self, settings: TransportSettings) -> None:
        """Raise UsageError if a named file is missing."""
        check_config_file(settings.ssh_config)
        self._may_boot = settings.may_boot
        self._secrets = settings.secrets or Secrets()
        self._say = settings.say
        self._this_machine = ThisMachine(settings)
        self._queues: dict[str, LoginQueue] = {}  # by the first sshd: hosts behind one jump host share a queue
        ssh = find_ssh()
        self._configs = HostConfigs(ssh, settings.ssh_config)
        self._known_hosts = KnownHosts()
        # None where ssh can't be used: it isn't there, or a password was typed, which it can't be given.
        can_use_ssh = ssh is not None and self._secrets.password is None
        self._openssh = OpenSSHTransport(settings, self._configs, may_ask=False) if can_use_ssh else None
        self._only_ssh: dict[Host, str] = {}  # what ssh is used for, of hosts that Fabric isn't tried with again
        self._told: set[str] = set()  # of these reasons
        self._lock = threading.Lock()

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        hops = self._configs.on_the_way(host)
        hop = hops[-1]
        channel = self._this_machine.open(host, command, hop.place, hop.settings, is_direct=hop.is_direct)
        if channel is not None:
            return channel
        own_limit_s = None if self._may_boot else read_seconds(hop.option("connecttimeout"))
        queue = self._queues.setdefault(hop.first_sshd, LoginQueue())

        def log_in(try_s: float) -> Channel:
            return self._log_in_by_either(host, hops, command, try_s)

        return keep_trying(host.name, queue, log_in, own_limit_s or timeout_s, may_boot=self._may_boot)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()

    def _log_in_by_either(self, host: Host, hops: Sequence[HostConfig], command: str, timeout_s: float) -> Channel:
        """Log in by Fabric, or else by ssh, each once; raise LoginError.

        A host that Fabric was refused by is never asked by it again, however often it is tried: it may count refusals.
        """
        if host not in self._only_ssh:
            try:
                return self._log_in(hops, command, timeout_s)
            except TakesSsh as error:
                if self._openssh is None:
                    raise
                self._only_ssh[host] = error.reason
        assert self._openssh is not None  # or no host were in _only_ssh
        channel = self._openssh.log_in(hops[-1], login_args(host), command, timeout_s)
        self._tell(self._only_ssh[host])
        return channel

    def _tell(self, reason: str) -> None:
        with self._lock:
            is_new = reason not in self._told
            self._told.add(reason)
        if is_new:
            self._say(f"using ssh instead of fabric: {reason}")

    def _log_in(self, hops: Sequence[HostConfig], command: str, timeout_s: float) -> Channel:
        connection: fabric.Connection | None = None
        hop = hops[0]
        try:
            for hop in hops:  # before a connection to any of them
                self._refuse_needs(hop)
            for hop in hops:
                connection = self._prepare(hop, connection)
                connection.connect_timeout = max(1, int(timeout_s))
                connection.connect_kwargs.update(banner_timeout=timeout_s, auth_timeout=timeout_s)
                connection.open()
                _tune(connection.transport)
            assert connection is not None  # there is one hop at least
            return _start(connection, command, timeout_s)
        except Exception as error:
            non_ssh_reply = None
            if connection is not None:
                non_ssh_reply = _non_ssh_reply(connection)
                _close(connection)
            jump_host = hop.place.name if hop is not hops[-1] else None
            raise classify(error, hop.place, non_ssh_reply, jump_host) from error

    def _refuse_needs(self, hop: HostConfig) -> None:
        """Raise NeedsSsh for what of a login Fabric can't do, and would ignore; or UnknownHostKey."""
        for option in _FOR_SSH:
            if (hop.option(option.lower()) or "none") not in _DEFAULTS:
                raise NeedsSsh(f"{option} in ssh_config")
        if any("%" in path for path in hop.options.get("identityfile", ())):
            raise NeedsSsh("a token in IdentityFile")
        if unclear := find_unclear(hop.settings):
            raise NeedsSsh(f"the known_hosts file {unclear}")
        self._known_hosts.keys_of(hop.place, hop.settings)

    def _prepare(self, hop: HostConfig, gateway: fabric.Connection | None) -> fabric.Connection:
        """Return the connection of a hop, not opened yet."""
        place, settings = hop.place, hop.settings
        config = fabric.Config(ssh_config=SSHConfig())  # an empty one: each option is given here
        login = Login(place.user, settings, self._secrets)
        connection = fabric.Connection(
            place.host, place.user, place.port, config=config, gateway=gateway, connect_kwargs={"auth_strategy": login}
        )
        self._known_hosts.guard(connection, place, settings)
        return connection

    def locked_keys(self, hosts: Sequence[Host]) -> list[Path]:
        """Return the keys for these hosts and their jump hosts that need a passphrase; no host is contacted."""
        self._configs.ask_all([(host.name, login_args(host)) for host in hosts])
        found: dict[Path, None] = {}
        asked: set[str] = set()  # most hosts have the same keys
        for hops in map(self._configs.on_the_way, hosts):
            for settings in (hop.settings for hop in hops):
                keys = f"{settings.get('identityfile')} {settings.get('identityagent')}"
                locked = locked_keys(settings, self._secrets) if keys not in asked else []
                if not locked or not self._takes_ssh(hops):  # to ssh no passphrase can be given
                    asked.add(keys)
                    found.update(dict.fromkeys(locked))
        return list(found)

    def _takes_ssh(self, hops: Sequence[HostConfig]) -> bool:
        """Tell whether it is known before a login that only ssh can do it."""
        try:
            for hop in hops:
                self._refuse_needs(hop)
        except (NeedsSsh, UnknownHostKey):
            return True
        return False


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


def _close(connection: fabric.Connection) -> None:
    for hop in _hops(connection):
        if hop.transport is not None:
            _hang_up(hop.transport)
        else:
            hop.client.close()


def _hang_up(transport: paramiko.Transport) -> None:
    """Close the TCP connection without SSH's own disconnect message, which could block on a frozen peer.

    The transport's thread still reads the socket, so closing it alone would send nothing; shutdown does. A Ctrl-C in
    the middle of a read may have left a lock of paramiko's taken for ever, so nothing waits long for the rest.
    """
    if isinstance(transport.sock, socket.socket):
        with contextlib.suppress(OSError):
            transport.sock.shutdown(socket.SHUT_RDWR)
    try:
        start_thread(transport.close, "hang up", lambda error: None).join(_CLOSE_S)
    except LauncherError:  # no thread is left
        transport.close()


def _tune(transport: paramiko.Transport) -> None:
    sock = transport.sock
    if not isinstance(sock, socket.socket):
        return  # the channel of a jump host
    sock.settimeout(_IDLE_WAKE_S)
    with contextlib.suppress(OSError):  # EINVAL on macOS, if the peer has gone meanwhile: what follows reports it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _LOSS.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
