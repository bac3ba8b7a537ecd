"""--transport pdsh: pdsh logs in to all hosts, and ssh carries what follows over its connections (decision 0033)."""

from __future__ import annotations

import atexit
import re
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from launcher.concurrency import start_thread
from launcher.errors import HostFailure, HostFailureKind, LauncherError, UsageError
from launcher.hosts.host import Host
from launcher.transports.base import Channel, TransportError, TransportSettings
from launcher.transports.ssh.openssh import OpenSSHTransport
from launcher.transports.ssh.pdsh_command import Call, Pdsh, find_pdsh
from launcher.transports.ssh.this_machine import ThisMachine

_MARGIN_S = 2.0  # after ssh's own ConnectTimeout, so that ssh ends first and names the host that doesn't answer
_LOGIN_S = 0.25  # of CPU time for each host: all log in at once, and twice behind a jump host
_SOCKET_S = 0.01
_LEAST_S = 2.0  # for an ssh that says why pdsh can't log in
_LOGGED_IN = re.compile(rb"Authenticated to \S+ \(")  # also an ssh to a jump host prints it, if it is as verbose
_ENDED = re.compile(rb"pdsh@\S+: (?P<label>\S+): ssh (?:exited with exit code|killed by signal) \d+")
MAX_LINE_BYTES = 256 << 10  # pdsh prints no more than 128 KiB of one


class PdshTransport:
    """Logs in to all hosts by one `pdsh -R ssh`, and by OpenSSHTransport to those that it can't reach, or loses.

    Each ssh of pdsh is a ControlMaster, over which OpenSSHTransport starts processes. Hosts that are this machine are
    recognized in the constructor, and are not in pdsh's list.
    """

    name = "pdsh"

    def __init__(self, hosts: Sequence[Host], settings: TransportSettings) -> None:
        """Find pdsh and ssh; raise UsageError if one or a named file is missing, or pdsh can't do what is asked."""
        pdsh = find_pdsh()
        self._ssh = OpenSSHTransport(settings)
        self._answers = self._ssh.answers
        self._this_machine = ThisMachine(settings)
        self._pdsh = Pdsh(pdsh, hosts, settings)
        # An ssh whose way leads round in a circle would start another one for ever.
        self._answers.ask_all([(host.name, self._pdsh.login_args(host)) for host in hosts])
        self._here = {host.name for host in hosts if self._is_here(host)}
        self._hosts = {host.name: host for host in hosts if host.name not in self._here}
        self._masters: Masters | None = None
        self._lock = threading.Lock()

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        if host.name in self._here:
            return self._this_machine.start(host, command)
        began_at = time.monotonic()
        args = self._pdsh.login_args(host)
        if refusal := self._find_refusal(host):
            raise refusal
        answer = self._answers.of(host.name, args)
        masters = self._find_masters(host, timeout_s)
        socket = masters.await_login(host.name)
        if socket is not None:
            return PdshChannel(self._ssh.open_shared(answer, args, command, socket), host, masters, self)
        # Of hosts behind a jump host, the others' logins may be to blame: pdsh makes all at once.
        left_s = timeout_s - (time.monotonic() - began_at) if answer.is_direct else timeout_s
        return self._ssh.open(host, command, max(left_s, _LEAST_S), args)

    def own_messages(self, host: Host) -> Sequence[str]:
        return ()

    def _find_masters(self, host: Host, timeout_s: float) -> Masters:
        """Return those of all hosts; raise TransportError if pdsh can't be started."""
        with self._lock:
            if self._masters is None:
                hosts = [host for host in self._hosts.values() if self._find_refusal(host) is None]
                try:
                    call = self._pdsh.log_in(hosts, timeout_s)
                except OSError as error:
                    text = f"pdsh can't be started: {error.strerror}"
                    failure = HostFailure(host.name, HostFailureKind.PDSH, text, "use --transport ssh")
                    raise TransportError(failure) from None
                weakref.finalize(self, call.end)  # a run opens a transport for each attempt
                self._masters = Masters(
                    call, [host.name for host in hosts], timeout_s + _MARGIN_S + _LOGIN_S * len(hosts)
                )
            return self._masters

    def _find_refusal(self, host: Host) -> UsageError | None:
        """Return why ssh would refuse to log in to a host."""
        return self._answers.find_refusal(host.name, self._pdsh.login_args(host))

    def _is_here(self, host: Host) -> bool:
        args = self._pdsh.login_args(host)
        return self._find_refusal(host) is None and self._this_machine.is_meant(self._answers.of(host.name, args))


class PdshOutput:
    """What one pdsh has printed on stdout and stderr; of two hosts with one label it may be about either."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.logged_in: set[str] = set()  # or a jump host on the way has
        self.ended: set[str] = set()  # whose ssh has; pdsh doesn't report an exit code of 0
        self._names: dict[bytes, list[str]] = {}  # by label: pdsh cuts a name at its first dot, but no address
        for name in hosts:
            for label in {name, name.partition(".")[0]}:
                self._names.setdefault(label.encode(), []).append(name)

    def take(self, line: bytes) -> None:
        """Take a line without its newline."""
        if ended := _ENDED.match(line):
            self.ended.update(self._names.get(ended["label"], ()))
        label, _, rest = line.partition(b": ")
        if _LOGGED_IN.match(rest):
            self.logged_in.update(self._names.get(label, ()))


def whole_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield lines as they come, without their newlines.

    A line that is too long is dropped as a whole: if it were cut, its rest could pass for a line of another host.
    """
    is_rest = False
    for line in iter(partial(stream.readline, MAX_LINE_BYTES), b""):
        is_whole = line.endswith(b"\n")
        if is_whole and not is_rest:
            yield line[:-1]
        is_rest = not is_whole


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
        self._lost: set[str] = set()
        self._changed = threading.Condition()
        self._is_over = False  # nothing more comes from pdsh
        atexit.register(call.end_and_wait)
        try:
            start_thread(self._read, "read pdsh", self._break)
        except LauncherError:
            call.end()
            raise

    def await_login(self, host: str) -> str | None:
        """Return the socket of a host's ControlMaster once it has logged in; None if it doesn't, or is lost."""
        deadline = time.monotonic() + self._limit_s
        with self._changed:
            while not self._is_usable(host):
                left_s = deadline - time.monotonic()
                if left_s <= 0 or host in self._output.ended or self._is_over or host in self._lost:
                    self.give_up(host)
                    return None
                # ssh makes its socket right after it has printed that it has logged in.
                self._changed.wait(min(left_s, _SOCKET_S) if host in self._output.logged_in else left_s)
        return self._sockets[host]

    def _is_usable(self, host: str) -> bool:
        is_lost = host in self._lost or host in self._output.ended
        return not is_lost and host in self._output.logged_in and Path(self._sockets[host]).exists()

    def give_up(self, host: str) -> None:
        """Use the connection to a host for no other process; pdsh ends when none of its hosts is left."""
        self._lost.add(host)
        if self._lost.issuperset(self._sockets):
            self._call.end()

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

    def read(self) -> tuple[int, bytes]:
        return self._channel.read()

    def write(self, data: bytes) -> None:
        self._channel.write(data)

    def close(self) -> None:
        if self._channel.exit_code() is None:  # its process may hang, and its host as well
            self._masters.give_up(self._host)
        self._channel.close()

    def exit_code(self) -> int | None:
        return self._channel.exit_code()
