"""SSH through the system's ssh program, one process for each host: what works with `ssh HOST` works here."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import re
import select
import socket
import subprocess
import termios
import time
import weakref
from array import array
from collections.abc import Sequence

from launcher.hosts.host import Host
from launcher.transports.base import KILLED, READ_BYTES, STDERR, Channel, TransportSettings, check_config_file
from launcher.transports.process_channel import ProcessChannel, end_process, start_process
from launcher.transports.ssh import openssh_failures
from launcher.transports.ssh.logins import LoginError, LoginQueue, keep_trying
from launcher.transports.ssh.openssh_config import OPTIONS, HostConfig, HostConfigs, find_ssh, login_args
from launcher.transports.ssh.this_machine import ThisMachine

# At VERBOSE ssh prints when it has logged in. All that follows on stderr is the host's, except _SUMMARY at the end.
_OPTIONS = {
    **OPTIONS,
    "LogLevel": "VERBOSE",
    # A running ControlMaster is used, but none is started: all sessions would depend on that one process.
    "ControlMaster": "no",
}
# Nobody is there to answer, and whoever's agent this process could reach has not agreed to that.
_UNATTENDED = {"StrictHostKeyChecking": "yes", "IdentityAgent": "none", "ControlPath": "none"}
_PROMPTS = ("SSH_AUTH_SOCK", "SSH_ASKPASS")  # also for the ssh to a jump host, which doesn't get these options
_SUMMARY = re.compile(rb"^(?:Transferred: sent|Bytes per second: sent) [^\n]*\n", re.MULTILINE)
# What ssh prints if the connection was lost. If a signal has killed the command, it prints nothing and exits with 255.
_LOST = re.compile(
    rb"^(?:Connection to \S+ closed|Connection (?:reset|closed) by|Read from remote host|client_loop: |Timeout, server|"
    rb"Received disconnect|Disconnected from|ssh_dispatch_run_fatal|mux_client_|packet_write)",
    re.MULTILINE,
)
_EXIT_OF_SSH = 255
_MARGIN_S = 2.0  # after ssh's own ConnectTimeout, so that ssh ends first and names the host that doesn't answer
_STDERR_KEPT = 64 << 10


class OpenSSHChannel:
    """An `ssh` process that has logged in."""

    def __init__(self, process: subprocess.Popen[bytes], said: bytes, *, master: str | None) -> None:
        """Take over a process; said: what it has printed on stderr.

        master: the socket of the ControlMaster whose connection it uses, "" if that isn't known; None: its own.
        """
        self._process = process
        self._master = master
        self._pipes = ProcessChannel(process)
        self._said = said
        self._stderr_tail = b""

    def read(self) -> tuple[int, bytes]:
        while True:
            stream, data = (STDERR, self._said) if self._said else self._pipes.read()
            self._said = b""
            if stream == STDERR:
                self._stderr_tail = (self._stderr_tail + data)[-_STDERR_KEPT:]
                data = _SUMMARY.sub(b"", data)
            if data or not stream:
                return stream, data

    def write(self, data: bytes) -> None:
        self._pipes.write(data)

    def close(self) -> None:
        self._pipes.close()
        end_process(self._process)  # after end of file alone it would wait for ever for a frozen host

    def exit_code(self) -> int | None:
        code = self._process.poll()
        if code is None or code < 0:
            return None
        if code == _EXIT_OF_SSH:
            # When a ControlMaster ends, ssh exits without any of these messages.
            is_lost = self._master is not None and not _is_served(self._master)
            return None if is_lost or _LOST.search(self._stderr_tail) else KILLED
        return code


class OpenSSHTransport:
    """Reaches each host by an `ssh` process, which reads ssh_config, keys and known_hosts by itself."""

    name = "ssh"

    def __init__(
        self, settings: TransportSettings, answers: HostConfigs | None = None, *, may_ask: bool = True
    ) -> None:
        """Find ssh; raise UsageError if it or a named file is missing.

        answers: of `ssh -G`, as far as it was asked; may_ask: the ssh to a jump host, which gets no option, may ask
        the user in a window.
        """
        check_config_file(settings.ssh_config)
        ssh = self._ssh = find_ssh()
        self._ssh_config = settings.ssh_config
        self._may_boot = settings.may_boot
        self._is_unattended = settings.is_unattended
        self._env: dict[str, str] | None = None
        if settings.variables and not may_ask:
            self._env = {**settings.variables, "SSH_ASKPASS_REQUIRE": "never"}
        if settings.is_unattended:
            self._env = {name: value for name, value in settings.variables.items() if name not in _PROMPTS}
        self._this_machine = ThisMachine(settings)
        self._queues: dict[str, LoginQueue] = {}  # by the first sshd: hosts behind one jump host share a queue
        self.answers = answers or HostConfigs(ssh, settings.ssh_config)
        self._connecting: set[subprocess.Popen[bytes]] = set()
        weakref.finalize(self, _end_connecting, self._connecting)  # when `launch` ends, at the latest

    def open(self, host: Host, command: str, timeout_s: float, args: Sequence[str] = ()) -> Channel:
        """args: for ssh, which name the host; those of login_args by default."""
        args = args or login_args(host)
        answer = self.answers.of(host.name, args)
        channel = self._this_machine.open(host, command, answer)
        if channel is not None:
            return channel
        self.answers.of_jumps(answer)  # raises for a ProxyJump loop, which ssh would follow for ever
        own_limit_s = None if self._may_boot else answer.connect_timeout_s
        return keep_trying(
            host.name,
            self._queues.setdefault(answer.first_sshd, LoginQueue()),
            lambda try_s: self.log_in(answer, args, command, try_s),
            own_limit_s or timeout_s,
            may_boot=self._may_boot,
        )

    def open_shared(self, answer: HostConfig, args: Sequence[str], command: str, socket_path: str) -> Channel:
        """Start `command` over the ControlMaster with this socket; if that refuses it, ssh logs in by itself.

        args: of ssh for this host; answer: what `ssh -G` prints for them.
        """
        ssh, *options = self._argv
        shared = ("-o", f"ControlPath={socket_path}", "-o", "LogLevel=INFO")
        process = start_process([ssh, *shared, *options, *args, command], self._env)
        return OpenSSHChannel(process, b"", master=socket_path)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()

    @property
    def _argv(self) -> list[str]:
        """Return ssh's command line up to the host."""
        options = {**_OPTIONS, **(_UNATTENDED if self._is_unattended else {})}
        settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return [self._ssh, *(["-F", str(self._ssh_config)] if self._ssh_config else []), *settings]

    def log_in(self, answer: HostConfig, args: Sequence[str], command: str, timeout_s: float) -> OpenSSHChannel:
        """Log in once and start `command`; raise LoginError. answer: what `ssh -G` prints for these arguments."""
        ssh, *options = self._argv
        limit = f"ConnectTimeout={max(1, int(timeout_s))}"
        process = start_process([ssh, "-o", limit, *options, *args, command], self._env)
        self._connecting.add(process)
        try:
            login, said = _await_login(process, answer, timeout_s + _MARGIN_S)
        finally:
            self._connecting.discard(process)
        if login is not None:
            return OpenSSHChannel(process, said, master="" if login is _Connection.MULTIPLEXED else None)
        is_late = process.poll() is None
        end_process(process)
        text = said.decode("utf-8", "replace")
        failure, jump_host = openssh_failures.classify(text, answer, self.answers.of_jumps(answer), is_late=is_late)
        raise LoginError(failure, jump_host)


def _end_connecting(processes: set[subprocess.Popen[bytes]]) -> None:
    """Stop each ssh that has not logged in: it doesn't read its stdin yet, so it would outlive `launch`."""
    for process in tuple(processes):
        end_process(process)


def _is_served(socket_path: str) -> bool:
    """Tell whether a process listens at a socket."""
    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
        sock.connect(socket_path)
        return True
    return False


class _Connection(enum.Enum):
    """Which connection a login got."""

    OWN = enum.auto()
    MULTIPLEXED = enum.auto()  # that of a running ControlMaster


def _count_readable(fd: int) -> int:
    """Return how many bytes wait in a pipe."""
    return array("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]


def _await_login(
    process: subprocess.Popen[bytes], answer: HostConfig, timeout_s: float
) -> tuple[_Connection | None, bytes]:
    """Wait for the login; return None instead if ssh has ended or the time is over, and always what came on stderr.

    Over a ControlMaster ssh doesn't print that it has logged in; the command's first output shows it.
    """
    assert process.stdout and process.stderr  # start_process asks for them
    done = re.compile(rb"^Authenticated to %s \([^\n]*\n" % re.escape(answer.place.host.encode()), re.MULTILINE)
    said = b""
    deadline = time.monotonic() + timeout_s
    output_fd = process.stdout.fileno()
    open_fds = {output_fd, process.stderr.fileno()}
    poll = select.poll()
    for fd in open_fds:
        poll.register(fd, select.POLLIN)
    while open_fds and (left_s := deadline - time.monotonic()) > 0:
        events = dict(poll.poll(left_s * 1000))
        # macOS sets POLLIN at the end of a pipe as well, where there is nothing to read.
        has_output = output_fd in events and _count_readable(output_fd) > 0
        for fd in events if not has_output else events.keys() - {output_fd}:
            data = os.read(fd, READ_BYTES)
            said = (said + data)[-_STDERR_KEPT:]
            if not data:
                poll.unregister(fd)
                open_fds.remove(fd)
        if done.search(said):
            return _Connection.OWN, done.sub(b"", said)
        if has_output:
            return _Connection.MULTIPLEXED, said
    if not open_fds:
        process.wait()
    return None, said
