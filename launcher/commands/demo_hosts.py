"""Loopback SSH hosts for `launch demo`: a small SSH server on paramiko, without root and without sshd.

The keys exist for one `with` block in a private directory, and every socket is bound to 127/8 only. When the block
ends, everything that the hosts started is stopped.
A host supports only what `ssh host command` needs: one user, one key, `exec` requests.
"""

from __future__ import annotations

import io
import ipaddress
import locale
import logging
import os
import pwd
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from paramiko import common

from launcher.concurrency import start_thread
from launcher.private_files import lock_directory

CHUNK_BYTES = 65536
LOGIN_TIMEOUT_S = 15.0
END_TIMEOUT_S = 3.0
# paramiko wakes ten times a second to check for a close; drop() shuts the socket down, which wakes it at once.
IDLE_WAKE_S = 30.0
# What sending, receiving and closing raise when the other side is gone.
_GONE = (OSError, EOFError, paramiko.SSHException)

_HOST_CONFIG = """\
Host {0}
    HostName {1}
    Port {2}
    User {3}
    IdentityFile "{4}/id_ed25519"
    IdentitiesOnly yes
    UserKnownHostsFile "{4}/known_hosts"
    StrictHostKeyChecking yes
"""

# paramiko logs a traceback for each client that vanishes, and Python prints records without a handler.
_LOGGER = logging.getLogger(__name__)
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False


@dataclass(frozen=True, slots=True)
class DemoHosts:
    """What a client needs to reach the hosts: their names, and the ssh_config that defines them."""

    names: tuple[str, ...]
    ssh_config: Path
    folder: Path


@contextmanager
def demo_hosts(count: int, names: str = "node", *, account: pwd.struct_passwd | None = None) -> Iterator[DemoHosts]:
    """Run `count` hosts, `names`1 to `names`N, until the block ends; OSError if none can be bound.

    account: name, home directory and shell of the sessions, which still run as this process's user; None: that
    user's own.
    """
    account = account or _find_account()
    with tempfile.TemporaryDirectory(prefix="launch-demo-") as path, lock_directory(path):  # made with mode 0700
        folder = Path(path)
        key_text, client_key = _new_key()
        (folder / "id_ed25519").touch(mode=0o600)
        (folder / "id_ed25519").write_text(key_text)
        server = _Server(account, client_key)
        try:
            all_names = tuple(f"{names}{index}" for index in range(1, count + 1))
            for index, name in enumerate(all_names):
                address, port, host_key = server.listen(str(ipaddress.IPv4Address("127.0.0.1") + index))
                with (folder / "known_hosts").open("a") as known_hosts:
                    # Both clients look an address with a port up as [address]:port.
                    known_hosts.write(f"[{address}]:{port},[{name}]:{port} ssh-ed25519 {host_key}\n")
                with (folder / "ssh_config").open("a") as config:
                    config.write(_HOST_CONFIG.format(name, address, port, account.pw_name, folder))
            server.start()
            yield DemoHosts(all_names, folder / "ssh_config", folder)
        finally:
            server.stop()


def _find_account() -> pwd.struct_passwd:
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid)
    except KeyError:  # docker run --user 1234
        return pwd.struct_passwd((f"uid{uid}", "x", uid, os.getgid(), "", "/", "/bin/sh"))


def _new_key() -> tuple[str, paramiko.PKey]:
    """Make an ed25519 key; return it as OpenSSH's private text and as paramiko's object."""
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    return text, paramiko.Ed25519Key(file_obj=io.StringIO(text))


class _Server:
    """The listeners, connections and sessions of all hosts, and the order in which they are closed."""

    def __init__(self, account: pwd.struct_passwd, client_key: paramiko.PKey) -> None:
        self.account = account
        self.client_key = client_key
        self._selector = selectors.DefaultSelector()
        # Closing the writing end tells every thread that watches the reading end.
        self._accept_until, self._end_accepting = os.pipe()
        self.read_until, self._end_reading = os.pipe()
        self._selector.register(self._accept_until, selectors.EVENT_READ)
        self._acceptor: threading.Thread | None = None
        self._failures: list[Exception] = []
        self._logins: list[_ClientConnection] = []
        self.sessions: list[_Session] = []

    def listen(self, address: str) -> tuple[str, int, str]:
        """Open a host; return address, port and its public key in base64."""
        listener = socket.socket()
        try:
            listener.bind((address, 0))
        except OSError:  # only Linux owns all of 127/8 without configuration
            listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        _, host_key = _new_key()
        self._selector.register(listener, selectors.EVENT_READ, host_key)
        return (*listener.getsockname(), host_key.get_base64())

    def start(self) -> None:
        """Accept clients."""
        self._acceptor = start_thread(self._accept, "demo-accept", self._failures.append)

    def stop(self) -> None:
        """Refuse new clients, drop the others, let their commands clean up, and kill what is left."""
        os.close(self._end_accepting)
        if self._acceptor is not None:
            self._acceptor.join()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.fileobj.close()  # type: ignore[union-attr]  # those with a host key are sockets
        self._selector.close()
        try:
            for login in self._logins:
                login.drop()
            deadline = time.monotonic() + END_TIMEOUT_S
            for session in self.sessions:
                session.join(deadline)
        finally:  # a second Ctrl-C ends the waiting, never the ending
            for session in self.sessions:
                session.kill()
        os.close(self._end_reading)
        for session in self.sessions:
            session.join(time.monotonic() + 1.0)
        os.close(self._accept_until)
        os.close(self.read_until)
        if self._failures:  # no further client was accepted
            raise self._failures[0]

    def _accept(self) -> None:
        while True:
            for key, _ in self._selector.select(self._drop_strangers()):
                if key.data is None:
                    return
                try:
                    client, _address = key.fileobj.accept()  # type: ignore[union-attr]  # a listener
                    self._logins.append(_ClientConnection(self, client, key.data))
                except _GONE:
                    time.sleep(0.1)  # out of descriptors, or a client that left: never spin on it

    def _drop_strangers(self) -> float | None:
        """Drop clients that didn't log in in time, as paramiko never does; return the seconds until the next is due."""
        self._logins = [login for login in self._logins if login.transport.is_alive()]
        strangers = [login for login in self._logins if not login.transport.is_authenticated()]
        left_s = {login: login.deadline - time.monotonic() for login in strangers}
        for login in strangers:
            if left_s[login] <= 0:
                login.drop()
        return max(0.0, min(left_s.values())) if left_s else None


class _ClientConnection(paramiko.ServerInterface):
    """One client's connection: who may log in, and which requests are allowed."""

    def __init__(self, server: _Server, client: socket.socket, host_key: paramiko.PKey) -> None:
        self._server = server
        self._waiting: dict[paramiko.Channel, _Session] = {}
        self._asked: set[int] = set()
        self._client = client
        self.deadline = time.monotonic() + LOGIN_TIMEOUT_S
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ends = (*client.getpeername(), *client.getsockname())
        self.transport = paramiko.Transport(client)
        client.settimeout(IDLE_WAKE_S)
        self.transport.set_log_channel(_LOGGER.name)
        self.transport.add_server_key(host_key)
        # A command that ends at once could close its channel before paramiko has answered the request, and
        # the server interface hears nothing of the answer: sessions begin behind paramiko's own handler.
        transport = cast(Any, self.transport)
        handlers = transport._channel_handler_table
        self._handle_request = handlers[common.MSG_CHANNEL_REQUEST]
        transport._channel_handler_table = {**handlers, common.MSG_CHANNEL_REQUEST: self._answer_request}
        self.transport.start_server(event=threading.Event(), server=self)

    def drop(self) -> None:
        """Close the connection with its channels and threads, so that commands see the end of stdin."""
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)  # close() alone does not wake a thread in recv()
        self.transport.close()
        self.transport.join(END_TIMEOUT_S)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if username == self._server.account.pw_name and key == self._server.client_key:
            return common.AUTH_SUCCESSFUL
        return common.AUTH_FAILED

    # The names below are paramiko's, which refuses what isn't defined here: passwords, shells, ptys, forwarding.

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return common.OPEN_SUCCEEDED
        return common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if channel.get_id() in self._asked:
            return False
        self._asked.add(channel.get_id())
        try:
            process = _start_command(command, self._server.account, self._ends)
        except (OSError, ValueError):  # no such shell, no memory; a command with a null byte
            return False
        self._waiting[channel] = _Session(channel, process, self._server.read_until)
        self._server.sessions.append(self._waiting[channel])
        return True

    def _answer_request(self, channel: paramiko.Channel, message: paramiko.Message) -> None:
        try:
            self._handle_request(channel, message)
        finally:
            if channel in self._waiting:
                self._waiting.pop(channel).start()


def _start_command(
    command: bytes, account: pwd.struct_passwd, ends: tuple[str, int, str, int]
) -> subprocess.Popen[bytes]:
    """Start a command as sshd does: the user's shell, a session of its own, home, a clean environment."""
    shell = account.pw_shell or "/bin/sh"
    from_host, from_port, to_host, to_port = ends
    environment = {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": shell,
        "PATH": os.pathsep.join(os.get_exec_path()),
        "LANG": locale.setlocale(locale.LC_CTYPE),
        "TMPDIR": tempfile.gettempdir(),
        "SSH_CONNECTION": f"{from_host} {from_port} {to_host} {to_port}",
        "SSH_CLIENT": f"{from_host} {from_port} {to_port}",
    }
    return subprocess.Popen(
        [shell, "-c", command],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=account.pw_dir if Path(account.pw_dir).is_dir() else "/",
        env=environment,
        start_new_session=True,
    )


@dataclass(frozen=True, slots=True)
class _Session:
    """One command, its channel, and a thread for each direction."""

    channel: paramiko.Channel
    process: subprocess.Popen[bytes]
    read_until: int
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for target in (self._feed_input, self._send_output):
            self.threads.append(start_thread(target, "demo-session", self._break))

    def _break(self, error: Exception) -> None:
        """Close the channel, so that the client sees that its command isn't served any more."""
        self.channel.close()

    def join(self, deadline: float) -> None:
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """Send SIGKILL to the command's process group and to descendants with sessions of their own."""
        if self.process.returncode is not None:
            return
        descendants = list(_find_descendants(self.process.pid))
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in descendants:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _feed_input(self) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        with suppress(*_GONE), stdin:
            while data := self.channel.recv(CHUNK_BYTES):
                # A command that has closed its stdin must not stall the client: the rest is discarded.
                with suppress(BrokenPipeError):
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(stdin.fileno(), rest) :]

    def _send_output(self) -> None:
        stdout, stderr = self.process.stdout, self.process.stderr
        assert stdout is not None
        assert stderr is not None
        # Once the client is gone, the closed pipes tell a command that still writes, as with sshd.
        with suppress(*_GONE), stdout, stderr, selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ, self.channel.sendall)
            selector.register(stderr, selectors.EVENT_READ, self.channel.sendall_stderr)
            selector.register(self.read_until, selectors.EVENT_READ)
            while len(selector.get_map()) > 1:
                for key, _ in selector.select():
                    if key.data is None:
                        raise EOFError
                    if data := os.read(key.fd, CHUNK_BYTES):
                        key.data(data)
                    else:
                        selector.unregister(key.fileobj)
        exit_code = self.process.wait()
        with suppress(*_GONE):
            if not self.channel.closed:  # a request on a closed channel is a protocol error to OpenSSH
                self.channel.send_exit_status(exit_code if exit_code >= 0 else 128 - exit_code)
            self.channel.close()


def _find_descendants(pid: int) -> Iterator[int]:
    """Walk /proc downwards from `pid`; nothing where there is no /proc."""
    with suppress(OSError):  # it has ended, and so may each thread
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                for child in map(int, (thread / "children").read_text().split()):
                    yield child
                    yield from _find_descendants(child)
