"""SSH through Fabric and paramiko, which handle the connections and the protocol.

The channel is read here: Fabric's own `Connection.run()` joins all output so far for every 1000 bytes and polls 100
times a second per host. Fabric also accepts any host key. So commands are started on the connection's paramiko
transport, which accepts only a key of known_hosts: paramiko's HostKeys compares each line that it loads with all before
it, gives up a whole file for one broken key, and ignores markers, so that a revoked key would count as a known one.

Each hop on the way to a host has one Fabric connection, whose `gateway` is that of the hop before it. What ssh_config
sets for a hop comes from `ssh -G`: paramiko's parser ignores `Include`, and applies some `Match` blocks to every host.

Fabric does the plain login only. What it can't do, or fails at for any reason but the network, is done by ssh, whose
words are then what is reported (decision 0041).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import fabric
import paramiko
from paramiko import SSHConfig
from paramiko.buffered_pipe import BufferedPipe
from paramiko.packet import Packetizer
from paramiko.ssh_exception import NoValidConnectionsError

from launcher.concurrency import start_thread
from launcher.errors import HostFailure, LauncherError
from launcher.hosts.host import Host
from launcher.transports.base import KILLED, READ_BYTES, STDERR, STDOUT, Channel, TransportSettings, check_config_file
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.identities import Login, PrivateKeys
from launcher.transports.ssh.known_hosts import KnownKey, find_known_keys
from launcher.transports.ssh.logins import LoginError, LoginQueue, TakesSsh, keep_trying
from launcher.transports.ssh.openssh import OpenSSHTransport
from launcher.transports.ssh.openssh_config import HostConfig, HostConfigs, find_ssh, login_args
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
_MAX_PACKET_BYTES = 256 << 10  # as in OpenSSH (PACKET_MAX_SIZE)
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")
# Encrypts and authenticates in one call, and OpenSSH prefers it too; paramiko's first choice, CTR with an HMAC, takes
# 1.4 times the CPU.
_CIPHER = "aes128-gcm@openssh.com"
# macOS reports EHOSTDOWN for a host in the same network that doesn't answer.
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
_DROPPED = ("Error reading SSH protocol banner", "Connection reset by peer", "EOF during negotiation")
_SILENT = ("timed out", "no existing session")


class _Packetizer(Packetizer):
    """A reader of packets of limited size; paramiko has no limit for what anybody may send before it is known."""

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > _MAX_PACKET_BYTES:
            raise paramiko.SSHException(f"a packet of {n} bytes")
        return super().read_all(n, check_rekey)


class _Pipe(BufferedPipe):  # type: ignore[type-arg] # generic in its stubs alone
    """The buffer for one stream of a channel."""

    def __init__(self, arrived: threading.Event) -> None:
        """arrived: set after each piece and at the end; the two streams of a channel share it."""
        super().__init__()
        self._arrived = arrived

    def feed(self, data: bytes) -> None:
        super().feed(data)
        self._arrived.set()

    def close(self) -> None:
        super().close()
        self._arrived.set()


class FabricChannel:
    """The streams of a process on an SSH channel; closing it closes the connections to all jump hosts as well."""

    def __init__(self, connection: fabric.Connection, channel: paramiko.Channel) -> None:
        self._connection = connection
        self._channel = channel
        # Not paramiko's own event: if one stream is read while the other receives, it stays unset with data waiting,
        # and data that comes later doesn't set it.
        self._arrived = threading.Event()
        channel.in_buffer, channel.in_stderr_buffer = (_Pipe(self._arrived) for _ in range(2))

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
        """Raise UsageError if ssh or a named file is missing."""
        check_config_file(settings.ssh_config)
        self._may_boot = settings.may_boot
        self._password = settings.password
        self._keys = PrivateKeys()
        self._say = settings.say
        self._this_machine = ThisMachine(settings)
        self._queues: dict[str, LoginQueue] = {}  # by the first sshd: hosts behind one jump host share a queue
        ssh = find_ssh()
        self._configs = HostConfigs(ssh, settings.ssh_config)
        # None where a password was typed: ssh can't be given it.
        self._openssh = OpenSSHTransport(settings, self._configs, may_ask=False) if self._password is None else None
        self._only_ssh: dict[Host, str] = {}  # what ssh is used for, of hosts that Fabric isn't tried with again
        self._told: set[str] = set()  # of these reasons
        self._lock = threading.Lock()

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        hops = self._configs.on_the_way(host)
        hop = hops[-1]
        channel = self._this_machine.open(host, command, hop)
        if channel is not None:
            return channel
        own_limit_s = None if self._may_boot else hop.connect_timeout_s
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
            keys = []
            for hop in hops:  # before a connection to any of them
                refuse_needs(hop)
                keys.append(_find_keys(hop))
            for hop, known in zip(hops, keys, strict=True):
                connection = self._prepare(hop, known, connection)
                connection.connect_timeout = max(1, int(timeout_s))
                connection.connect_kwargs.update(banner_timeout=timeout_s, auth_timeout=timeout_s)
                connection.open()
                _tune(connection.transport)
            assert connection is not None  # there is one hop at least
            return _start(connection, command, timeout_s)
        except Exception as error:
            if connection is not None:
                _close(connection)
            raise classify(error, hop.place, hop.place.name if hop is not hops[-1] else None) from error

    def _prepare(
        self, hop: HostConfig, known: Sequence[KnownKey], gateway: fabric.Connection | None
    ) -> fabric.Connection:
        """Return the connection of a hop, not opened yet, which only a host with one of these keys lets open."""
        place = hop.place
        config = fabric.Config(ssh_config=SSHConfig())  # an empty one: each option is given here
        kwargs = {
            "auth_strategy": Login(hop, self._keys, self._password),
            "transport_factory": partial(_make_transport, {each.kind for each in known}),
        }
        connection = fabric.Connection(
            place.host, place.user, place.port, config=config, gateway=gateway, connect_kwargs=kwargs
        )
        connection.client.set_missing_host_key_policy(_Policy({each.key for each in known}, place))
        return connection


def refuse_needs(hop: HostConfig) -> None:
    """Raise TakesSsh for what of a login Fabric can't do, and would ignore."""
    needs = [
        f"{name} in ssh_config" for name in _FOR_SSH if hop.options.get(name.lower(), ["none"])[0] not in _DEFAULTS
    ]
    if any("%" in path for path in hop.options.get("identityfile", ())):
        needs.append("a token in IdentityFile")
    if needs:
        raise TakesSsh(needs[0], hop.place.takes_ssh(needs[0]))


def _find_keys(hop: HostConfig) -> list[KnownKey]:
    """Return the keys that a host may have; raise TakesSsh if known_hosts has none, or more than keys about it."""
    known = find_known_keys(hop)
    if any(each.marker for each in known):
        need = "a line of known_hosts that begins with @"
        raise TakesSsh(need, hop.place.takes_ssh(need))
    if not known:
        raise TakesSsh("a host key that fabric doesn't find in known_hosts", hop.place.key_unknown())
    return known


class _Policy(paramiko.MissingHostKeyPolicy):
    """Compares one host's key; paramiko gets no known keys, so that it asks this policy about each."""

    def __init__(self, known: set[str], place: Destination) -> None:
        self._known = known
        self._place = place

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if key.get_base64() not in self._known:
            raise TakesSsh("a host key other than that in known_hosts", self._place.key_changed(key.fingerprint))


def _make_transport(kinds: set[str], sock: Any, **settings: Any) -> paramiko.Transport:
    """Ask the server for a key of a type that is known; and for the cipher that takes the least CPU."""
    transport = paramiko.Transport(sock, packetizer_class=_Packetizer, **settings)
    options = transport.get_security_options()
    options.ciphers = tuple(dict.fromkeys([_CIPHER, *options.ciphers]))
    kinds = {*kinds, *(_RSA_SIGNATURES if "ssh-rsa" in kinds else ())}
    options.key_types = [kind for kind in options.key_types if kind in kinds]
    return transport


def classify(error: Exception, place: Destination, jump_host: str | None) -> LoginError:
    """Return what an exception means that the login to `place` raised; jump_host: its name, if `place` is one."""
    if isinstance(error, TakesSsh):
        return TakesSsh(error.reason, error.failure, jump_host)
    failure = _find_network_failure(error, place)
    if failure is not None:
        return LoginError(failure, jump_host)
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):  # of this machine, such as too many open files
        return LoginError(place.other(said), jump_host)
    failure = place.lost() if isinstance(error, EOFError) else place.other(said)
    return TakesSsh(f"fabric fails ({said})", failure, jump_host)


def _find_network_failure(error: Exception, place: Destination) -> HostFailure | None:
    if isinstance(error, paramiko.AuthenticationException) and "timeout" in str(error).lower():
        return place.slow_login()
    # The other side was silent: paramiko reports a missing banner by three kinds of errors.
    is_timeout = isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError)
    if is_timeout or any(text in str(error).lower() for text in _SILENT):
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
