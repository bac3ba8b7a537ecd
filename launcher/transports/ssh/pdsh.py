"""--transport pdsh: pdsh logs in to all hosts, and ssh carries what follows over its connections (decision 0033)."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from launcher.concurrency import start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError, UsageError
from launcher.hosts.host import SSH_PORT, Host
from launcher.transports.base import Channel, TransportError
from launcher.transports.settings import TransportSettings
from launcher.transports.ssh import openssh_failures
from launcher.transports.ssh.failures import is_passing, pass_on
from launcher.transports.ssh.logins import LoginError, LoginQueues, keep_trying
from launcher.transports.ssh.openssh import OpenSSHTransport
from launcher.transports.ssh.openssh_config import HostConfig, keep_known_keys, login_args
from launcher.transports.ssh.pdsh_command import Call, Pdsh, find_pdsh, own_options
from launcher.transports.ssh.pdsh_output import Login, PdshOutput, whole_lines
from launcher.transports.ssh.this_machine import ThisMachine, is_this_machine

_MARGIN_S = 2.0  # after ssh's own ConnectTimeout, so that ssh ends first and names the host that doesn't answer
_LOGIN_S = 0.25  # of CPU time for each host: all log in at once, and twice behind a jump host
_SOCKET_S = 0.01
_SETTLE_S = 0.5  # after the end of a connection: what pdsh prints about it may come later


class PdshTransport:
    """Logs in to all hosts by one `pdsh -R ssh`, and to each host that it can't reach or loses by another pdsh.

    Each ssh of pdsh is a ControlMaster, over which OpenSSHTransport starts processes. Hosts that are this machine are
    recognized in the constructor, and are not in pdsh's list.
    """

    name = "pdsh"

    def __init__(self, hosts: Sequence[Host], settings: TransportSettings) -> None:
        """Find pdsh and ssh; raise UsageError if one or a named file is missing, or pdsh can't do what is asked.

        PDSH_SSH_ARGS_APPEND of the environment is respected.
        """
        pdsh = find_pdsh()
        self._ssh = OpenSSHTransport(settings)
        self._answers = self._ssh.answers
        self._this_machine = ThisMachine(settings)
        self._here = {host.name for host in hosts if self._is_here(host, own_options(settings.variables))}
        self._hosts = {host.name: host for host in hosts if host.name not in self._here}
        self._pdsh = Pdsh(pdsh, list(self._hosts.values()), settings)
        self._answers.ask_first((host.name, self._pdsh.login_args(host)) for host in self._hosts.values())
        self._may_boot = settings.may_boot
        self._queues = LoginQueues()  # of later tries: at first pdsh logs in to all hosts at once
        self._masters: dict[str, Masters] = {}  # the last one of each host
        self._lock = threading.Lock()

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        if host.name in self._here:
            return self._this_machine.start(host, command)
        began_at = time.monotonic()
        try:
            return self._open_once(host, command, timeout_s)
        except LoginError as error:
            left_s = timeout_s - (time.monotonic() - began_at)
            if self._may_blame_other_logins(host, error.failure):
                self._masters[host.name].await_logins()
                left_s = timeout_s
            elif left_s <= 0 or not is_passing(error.failure, may_boot=self._may_boot):
                raise TransportError(pass_on(error.failure, host.name, error.jump_host)) from error
        queue = self._queues[self._answer(host).first_sshd]
        return keep_trying(
            host.name, queue, lambda try_s: self._open_once(host, command, try_s), left_s, may_boot=self._may_boot
        )

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()

    def _may_blame_other_logins(self, host: Host, failure: HostFailure) -> bool:
        """Tell whether logins to other hosts may be to blame: pdsh makes all at once, also through one jump host."""
        if failure.kind not in (HostFailureKind.DROPPED, HostFailureKind.SLOW_LOGIN):
            return False
        return not self._answer(host).is_direct

    def _answer(self, host: Host) -> HostConfig:
        """Return the options of ssh_config for a host; `ssh -G` has run for it when pdsh was started."""
        return self._answers.of(host.name, self._pdsh.login_args(host))

    def _open_once(self, host: Host, command: str, timeout_s: float) -> Channel:
        """Start a process; raise LoginError if the login fails, or TransportError if another try can't help."""
        try:
            masters = self._find_masters(host, timeout_s)
            socket = masters.await_login(host.name)
        except OSError as error:
            text = f"pdsh can't be started: {error.strerror}"
            failure = HostFailure(host.name, HostFailureKind.PDSH, text, "use --transport ssh")
            raise TransportError(failure) from None
        except NotLoggedInError as error:
            raise self._classify(host, error.login, is_late=error.is_late) from None
        args = self._pdsh.login_args(host)
        return PdshChannel(self._ssh.open_shared(self._answer(host), args, command, socket), host, masters, self)

    def _find_masters(self, host: Host, timeout_s: float) -> Masters:
        """Return those of all hosts, or others for this host alone after those have lost it."""
        with self._lock:
            masters = self._masters.get(host.name)
            if masters is None:
                hosts = list(self._hosts.values())
                self._masters.update(dict.fromkeys(self._hosts, self._start(hosts, timeout_s)))
            elif not masters.is_usable(host.name):
                self._masters[host.name] = self._start([host], timeout_s)
            return self._masters[host.name]

    def _start(self, hosts: Sequence[Host], timeout_s: float) -> Masters:
        self._keep_known_keys(hosts)
        limit_s = timeout_s + _MARGIN_S + _LOGIN_S * len(hosts)
        call = self._pdsh.log_in(hosts, timeout_s)
        weakref.finalize(self, call.end)  # a run opens a transport for each attempt
        return Masters(call, [host.name for host in hosts], limit_s)

    def _keep_known_keys(self, hosts: Sequence[Host]) -> None:
        """End the last lines of known_hosts files, to which ssh may append; each host may have a file of its own."""
        self._answers.ask_all([(host.name, self._pdsh.login_args(host)) for host in hosts])
        for host in hosts:
            with contextlib.suppress(UsageError):  # ssh itself reports it too
                answer = self._answer(host)
                keep_known_keys(answer, self._answers.of_jumps(answer))

    def _classify(self, host: Host, login: Login, *, is_late: bool) -> LoginError:
        try:
            answer = self._answer(host)
            jump_hosts = self._answers.of_jumps(answer)
        except UsageError as unknown:  # ssh can't interpret ssh_config
            return LoginError(HostFailure(host.name, HostFailureKind.SSH, unknown.message, unknown.fix))
        failure, jump_host = openssh_failures.classify(login.said, answer, jump_hosts, is_late=is_late)
        return LoginError(failure, jump_host)

    def _is_here(self, host: Host, options: Sequence[str]) -> bool:
        """Tell whether a host is this machine; `ssh -G` is run only for hosts whose names lead to this machine."""
        with contextlib.suppress(KeyError):  # a user id without a name
            if is_this_machine(host.name, host.port or SSH_PORT, host.user or getpass.getuser()):
                answer = self._answers.of(host.name, [*options, *login_args(host)])
                return self._this_machine.is_meant(answer.place, answer.settings, is_direct=answer.is_direct)
        return False


class NotLoggedInError(Exception):
    """pdsh has not logged in to a host."""

    def __init__(self, login: Login, *, is_late: bool) -> None:
        """is_late: nothing was known about it when the time was over."""
        super().__init__(login.said)
        self.login = login
        self.is_late = is_late


class Masters:
    """The ControlMasters of one pdsh, which end with it, and with this process at the latest.

    A thread reads what pdsh prints. `_changed` guards what is known of each host, and is notified of every change. A
    host that is lost stays lost.
    """

    def __init__(self, call: Call, hosts: Sequence[str], limit_s: float) -> None:
        """call: of Pdsh.log_in; limit_s: for all logins. Raise LauncherError if no thread can be started."""
        self._call = call
        self._limit_s = limit_s
        self._sockets = {host: f"{call.directory}/{index}" for index, host in enumerate(hosts)}
        self._output = PdshOutput(hosts)
        self._ready: set[str] = set()  # hosts that have logged in, as somebody has learned
        self._lost: set[str] = set()
        self._changed = threading.Condition()
        self._is_over = False  # nothing more comes from pdsh
        atexit.register(call.end_and_wait)
        try:
            start_thread(self._read, "read pdsh", self._break)
        except LauncherError:
            call.end()
            raise

    def await_login(self, host: str) -> str:
        """Return the socket of a host's ControlMaster once it has logged in; raise NotLoggedInError if it doesn't."""
        login = self._output.logins[host]
        deadline = time.monotonic() + self._limit_s
        with self._changed:
            while not self._is_ready(host):
                left_s = deadline - time.monotonic()
                if left_s <= 0 or login.has_ended or self._is_over:
                    self.give_up(host)
                    raise NotLoggedInError(login, is_late=left_s <= 0)
                # ssh makes its socket right after it has printed that it has logged in.
                self._changed.wait(min(left_s, _SOCKET_S) if login.has_logged_in else left_s)
            self._ready.add(host)
        return self._sockets[host]

    def _is_ready(self, host: str) -> bool:
        return self._output.logins[host].has_logged_in and Path(self._sockets[host]).exists()

    def await_logins(self) -> None:
        """Wait until every host has logged in or failed, and no login is in progress any more."""
        logins = self._output.logins.values()
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or all(login.has_logged_in or login.has_ended for login in logins), self._limit_s
            )

    def is_usable(self, host: str) -> bool:
        """Tell whether a process may be started on a host, or its failure isn't known to anybody yet."""
        return host not in self._lost and not (host in self._ready and self._has_ended(host))

    def _has_ended(self, host: str) -> bool:
        return self._output.logins[host].has_ended or not Path(self._sockets[host]).exists()

    def give_up(self, host: str) -> None:
        """Use the connection to a host for no other process; pdsh ends when none of its hosts is left."""
        self._lost.add(host)
        if self._lost.issuperset(self._sockets):
            self._call.end()

    def why_lost(self, host: str) -> HostFailure:
        """Wait a moment for what is printed about the end of a connection, and return it."""
        login = self._output.logins[host]
        with self._changed:
            self._changed.wait_for(lambda: login.has_ended or self._is_over, _SETTLE_S)
        return HostFailure(host, HostFailureKind.CONNECTION, login.lost)

    def _read(self) -> None:
        assert self._call.process.stdout is not None  # asked for
        with self._call.process.stdout as stdout:
            for line in whole_lines(stdout):
                with self._changed:
                    self._output.take(line)
                    self._changed.notify_all()
        self._end()
        self._call.process.wait()
        atexit.unregister(self._call.end_and_wait)

    def _break(self, error: Exception) -> None:
        """Let nobody wait for what nobody reads."""
        self._end()
        self._call.end()

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class PdshChannel:
    """A process's streams over a ControlMaster of pdsh; a Channel of launcher.transports.base."""

    def __init__(self, channel: Channel, host: Host, masters: Masters, transport: PdshTransport) -> None:
        self._channel = channel
        self._host = host.name
        self._masters = masters
        self._transport = transport  # its connections end when nobody uses it any more
        self._is_closed = False

    def read(self) -> tuple[int, bytes]:
        stream, data = self._channel.read()
        if not stream and not self._is_closed and self._channel.exit_code() is None:
            raise TransportError(self._masters.why_lost(self._host))
        return stream, data

    def write(self, data: bytes) -> None:
        self._channel.write(data)

    def close(self) -> None:
        self._is_closed = True
        if self._channel.exit_code() is None:  # its process may hang, and its host as well
            self._masters.give_up(self._host)
        self._channel.close()

    def exit_code(self) -> int | None:
        return self._channel.exit_code()
