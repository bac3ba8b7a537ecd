"""SSH through Fabric and paramiko, which handle the connections and the protocol.

The channel is read here: Fabric's own `Connection.run()` joins all output so far for every 1000 bytes and polls 100
times a second per host. Fabric also accepts any host key. So commands are started on the connection's paramiko
transport, and host keys are checked by launcher.transports.ssh.host_keys.

Each hop on the way to a host has one Fabric connection, whose `gateway` is that of the hop before it. What ssh_config
sets for a hop comes from `ssh -G`: paramiko's parser ignores `Include`, and applies some `Match` blocks to every host.
A host whose login needs something that only ssh can do (`openssh_needs`) is reached by ssh.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko import SSHConfig

from launcher.concurrency import start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.transports.base import KILLED, READ_BYTES, STDERR, STDOUT, Channel, TransportError
from launcher.transports.process_channel import end_process
from launcher.transports.settings import TransportSettings, check_config_file
from launcher.transports.ssh import fabric_failures
from launcher.transports.ssh.host_keys import KnownHosts
from launcher.transports.ssh.identities import Login, Secrets, locked_keys
from launcher.transports.ssh.logins import LoginError, LoginQueues, keep_trying
from launcher.transports.ssh.mute_agents import is_mute
from launcher.transports.ssh.openssh import OpenSSHTransport
from launcher.transports.ssh.openssh_config import HostConfig, HostConfigs, find_ssh, login_args, read_seconds
from launcher.transports.ssh.openssh_needs import find_need
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
_WORDS_BYTES = 4096  # of what a ProxyCommand has printed


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
    """Reaches each host over an SSH connection of its own, with one channel in it; or by ssh, where that is needed."""

    name = "fabric"

    def __init__(self, settings: TransportSettings) -> None:
        """Raise UsageError if a named file is missing."""
        check_config_file(settings.ssh_config)
        self._settings = settings
        self._may_boot = settings.may_boot
        self._secrets = settings.secrets or Secrets()
        self._on_mute = settings.on_mute
        self._this_machine = ThisMachine(settings)
        self._queues = LoginQueues()
        ssh = find_ssh()
        self._has_ssh = ssh is not None
        self._configs = HostConfigs(ssh, settings.ssh_config)
        self._known_hosts = KnownHosts()
        self._openssh: OpenSSHTransport | None = None
        self._told: set[str] = set()  # what only ssh can do
        self._lock = threading.Lock()

    def ask_first(self, hosts: Sequence[Host]) -> None:
        """Raise UsageError for an ssh_config that ssh would refuse for every host."""
        self._configs.ask_first((host.name, login_args(host)) for host in hosts)

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        hops = self._configs.on_the_way(host)
        hop = hops[-1]
        channel = self._this_machine.open(host, command, hop.place, hop.settings, is_direct=hop.is_direct)
        if channel is not None:
            return channel
        if need := self._find_need(hops):
            return self._reach_by_ssh(host.name, need).open(host, command, timeout_s)
        own_limit_s = None if self._may_boot else read_seconds(hop.option("connecttimeout"))
        queue = self._queues[hop.first_sshd]

        def log_in(try_s: float) -> Channel:
            return self._log_in(hops, command, try_s)

        return keep_trying(host.name, queue, log_in, own_limit_s or timeout_s, may_boot=self._may_boot)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()

    def _find_need(self, hops: Sequence[HostConfig]) -> str:
        """Return what of a login only ssh can do, if anything."""
        with_keys = self._secrets.password is None and self._has_ssh
        needs = (find_need(hop, self._usable(hop), self._known_hosts, with_keys=with_keys) for hop in hops)
        return next(filter(None, needs), "")

    def _reach_by_ssh(self, name: str, need: str) -> OpenSSHTransport:
        if self._secrets.password is not None:
            text = f"--ask-password can't be used with {need}: that takes ssh, which asks for itself"
            fix = f"log in with a key, or without {need}"
            raise TransportError(HostFailure(name, HostFailureKind.SSH, text, fix))
        if not self._has_ssh:
            fix = "install openssh-client, and give this user an entry in passwd"
            raise UsageError(f"{need} takes ssh, which can't be run here", fix)
        with self._lock:
            if self._openssh is None:
                settings = replace(self._settings, on_doubt=None)  # which was told
                self._openssh = OpenSSHTransport(settings, self._configs, self._queues, may_ask=False)
            is_new = need not in self._told
            self._told.add(need)
        if is_new and self._settings.on_openssh is not None:
            self._settings.on_openssh(need)
        return self._openssh

    def _log_in(self, hops: Sequence[HostConfig], command: str, timeout_s: float) -> Channel:
        connection: fabric.Connection | None = None
        hop = hops[0]
        proxy = None
        try:
            for hop in hops:
                gateway = connection
                connection = self._prepare(hop, gateway)
                if gateway is None and hop.proxy_command is not None:
                    proxy = connection.connect_kwargs["sock"] = Proxy(hop.proxy_command)
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
            failure = fabric_failures.classify(error, hop, proxy.last_stderr_line() if proxy else None, non_ssh_reply)
            raise LoginError(failure, jump_host) from error

    def _prepare(self, hop: HostConfig, gateway: fabric.Connection | None) -> fabric.Connection:
        """Return the connection of a hop, not opened yet."""
        place, settings = hop.place, self._usable(hop)
        config = fabric.Config(ssh_config=SSHConfig())  # an empty one: each option is given here
        login = Login(place.user, settings, self._secrets)
        connection = fabric.Connection(
            place.host, place.user, place.port, config=config, gateway=gateway, connect_kwargs={"auth_strategy": login}
        )
        self._known_hosts.guard(connection, place, settings, on_untrusted=login.keep_password)
        return connection

    def _usable(self, hop: HostConfig) -> dict[str, Any]:
        """Return the options of a hop, without an agent that would not answer."""
        settings = hop.settings
        return (
            {**settings, "identityagent": "none"} if is_mute(settings.get("identityagent"), self._on_mute) else settings
        )

    def locked_keys(self, hosts: Sequence[Host]) -> list[Path]:
        """Return the keys for these hosts and their jump hosts that need a passphrase; no host is contacted."""
        self._configs.ask_all([(host.name, login_args(host)) for host in hosts])
        found: dict[Path, None] = {}
        asked: set[str] = set()  # most hosts have the same keys
        for hops in map(self._configs.on_the_way, hosts):
            for settings in map(self._usable, hops):
                keys = f"{settings.get('identityfile')} {settings.get('identityagent')}"
                locked = locked_keys(settings, self._secrets) if keys not in asked else []
                if not locked or not self._find_need(hops):  # to ssh no passphrase can be given
                    asked.add(keys)
                    found.update(dict.fromkeys(locked))
        return list(found)


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
    if isinstance(sock, Proxy):
        sock.settimeout(_IDLE_WAKE_S)
    if not isinstance(sock, socket.socket):
        return  # the channel of a jump host
    sock.settimeout(_IDLE_WAKE_S)
    with contextlib.suppress(OSError):  # EINVAL on macOS, if the peer has gone meanwhile: what follows reports it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _LOSS.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Proxy:
    """A ProxyCommand, run as ssh runs it: a shell command line whose stdin and stdout are the connection.

    It is as much of a socket as paramiko uses; `close` also ends a process that ignores it. paramiko's own class runs
    the command without a shell, polls, and keeps it in the terminal's session, where Ctrl-C would end it.
    """

    def __init__(self, command: str) -> None:
        """Start `command`, in which all tokens like %h are already replaced."""
        self._closed = False  # paramiko looks at this, as a socket has it
        self._sock, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def send(self, data: bytes) -> int:
        return self._sock.send(data)

    def recv(self, size: int) -> bytes:
        return self._sock.recv(size)

    def settimeout(self, timeout_s: float) -> None:
        self._sock.settimeout(timeout_s)

    def close(self) -> None:
        self._closed = True
        self._sock.close()
        end_process(self._process)

    def last_stderr_line(self) -> str:
        """Return the last line that the process has printed on stderr."""
        size = self._stderr.seek(0, 2)
        self._stderr.seek(max(0, size - _WORDS_BYTES))
        return self._stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2].strip()
