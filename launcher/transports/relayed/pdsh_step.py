"""One long pdsh, the relays that it runs on its hosts, and the channels through them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

from launcher.concurrency import start_thread, start_timer
from launcher.errors import HostFailure, HostFailureKind, LauncherError
from launcher.hosts.host import Host
from launcher.transports import bootstrap
from launcher.transports.base import STDERR
from launcher.transports.relayed.channel import RelayChannel
from launcher.transports.relayed.framing import Event, Exit, Here, LineDecoder, Output
from launcher.transports.relayed.pdsh_command import RANK, Pdsh, make_folder
from launcher.transports.relayed.pdsh_input import RelayInput, data_lines
from launcher.transports.relayed.pdsh_lines import whole_lines
from launcher.transports.relayed.pdsh_output import PdshWords
from launcher.transports.relayed.relays import Relay, Relays, as_noise

_SETTLE_S = 0.2  # after the end of an ssh: what the host has said before may lie in the other pipe
_MARGIN_S = 2.0  # ssh's own clock, which ends before ours, knows who does not answer
_LOGIN_S = 0.25  # all log in at once, and behind a gateway twice: a host that answers waits for our CPU
_WORD_CHARACTERS = 200
_WAITING_BYTES = 16 << 20  # of one host's output: while it is not read, all hosts are held back
_END_S = 2.0  # for pdsh and its ssh, once nobody is left to talk to


class NotStartedError(Exception):
    """A host's relay did not come; said: what its ssh and login shell have printed."""

    def __init__(self, said: str, exit_code: int | None, *, is_late: bool) -> None:
        super().__init__(said)
        self.said = said
        self.exit_code = exit_code  # of its ssh; None: pdsh has named none
        self.is_late = is_late


class Step:
    """One pdsh on some hosts."""

    def __init__(
        self, pdsh: Pdsh, hosts: Sequence[Host], pythons: Sequence[str], timeout_s: float, silence_s: float
    ) -> None:
        """Start it, or raise OSError; silence_s: after which a host takes us for dead."""
        self._hosts = list(hosts)
        self._relays = Relays(host.name for host in hosts)
        self._words = PdshWords([host.name for host in hosts])
        self._tasks = {host.name: task for task, host in enumerate(hosts)}
        self._nonce = secrets.token_hex(4)
        self._limit_s = timeout_s + _MARGIN_S + _LOGIN_S * len(hosts)
        self._is_ending = False
        folder = make_folder()
        command = bootstrap.relay_line(pythons, self._nonce, RANK, silence_s)
        self._call = pdsh.call(hosts, command, timeout_s, folder)
        try:
            self._input = RelayInput(pdsh, hosts, pythons, self._nonce, folder, timeout_s, self._lose_input)
            self._hearing = start_thread(self._hear, "hear pdsh", self._break)
            self._reading = start_thread(self._read, "read pdsh", self._break)
        except LauncherError:
            self._call.end()
            raise

    def open(self, host: str, command: str) -> RelayChannel:
        """Start a process on a host, once its relay is there; raise NotStartedError."""
        relay = self._relays[host]
        with self._relays.changed:
            is_known = self._relays.wait_for(relay, lambda: relay.here or relay.failure, self._limit_s)
            if relay.here is not None and relay.failure is None:
                return self._open(relay, command)
            relay.failure = relay.failure or self._lost(host)
            self._relays.changed.notify_all()
            self._end_if_unused()
        raise NotStartedError(self._words.said(host), self._words.exit_code(host), is_late=not is_known)

    def _open(self, relay: Relay, command: str) -> RelayChannel:
        channel, task = self._relays.add_channel(relay, self), self._tasks[relay.host]
        if said := self._words.said(relay.host):
            channel.deliver(STDERR, as_noise(said))
        words = b"open %d %d" % (channel.number, task)
        self._input.post(task, [(words, command.encode("utf-8", "surrogateescape"))])
        return channel

    def await_calm(self) -> None:
        """Wait until no host logs in any more."""
        with self._relays.changed:
            self._relays.changed.wait_for(self._relays.are_settled, self._limit_s)

    def is_usable(self, host: str) -> bool:
        """Whether a process, another one perhaps, may be started there through this step."""
        return self._relays.is_usable(host) and not (self._is_ending and self._relays[host].was_asked)

    def tell_taken(self, channel: RelayChannel, size_bytes: int) -> None:
        """Do nothing: while we read slowly, pdsh holds all hosts back."""

    def send_data(self, channel: RelayChannel, data: bytes) -> None:
        """Queue what goes to the process's stdin."""
        self._input.post(self._tasks[channel.host], data_lines(channel.number, data))

    def leave(self, channel: RelayChannel) -> None:
        """Close the process's pipes; when no host needs pdsh any more, wait a moment for its end."""
        with self._relays.changed:
            has_more = self._relays.leave(channel)
            self._end_if_unused()
            if has_more and not self._is_ending:
                self._input.post(self._tasks[channel.host], [(b"shut %d" % channel.number, None)])
        if self._is_ending:
            self._reading.join(_END_S)

    def _end_if_unused(self) -> None:
        """End pdsh, and with it every relay, once every host was asked and left."""
        if self._relays.are_unused() and not self._is_ending:
            self._is_ending = True
            self._input.close()
            self._call.end()

    # ---- the threads ----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        decoder = LineDecoder(self._nonce)
        assert self._call.process.stdout is not None  # asked for
        with self._call.process.stdout as stdout:
            for line in whole_lines(stdout):
                hosts, text = self._words.split(line)
                for event in decoder.feed(text + b"\n"):
                    self._take(hosts, event)
        self._hearing.join(_END_S)  # its last words say why
        self._words.end()
        self._lose([host.name for host in self._hosts])
        self._input.close()
        self._call.end()
        self._call.process.wait()

    def _take(self, hosts: Sequence[str], event: Event) -> None:
        """Believe a host what it says of itself; pdsh says who it is."""
        if isinstance(event, Output | Exit):
            self._relays.deliver(event, hosts, _WAITING_BYTES)
        elif isinstance(event, Here):
            with self._relays.changed:
                for host in hosts:
                    if self._tasks[host] == event.task:
                        self._relays[host].here = event
                self._relays.changed.notify_all()
        else:
            self._take_words(hosts, event.text)

    def _take_words(self, hosts: Sequence[str], text: bytes) -> None:
        line = text.decode("utf-8", "replace").rstrip("\r\n")
        with self._relays.changed:
            self._words.keep(hosts, line)
            if line.strip():
                self._relays.deliver_noise(line, hosts)

    def _hear(self) -> None:
        assert self._call.process.stderr is not None  # asked for
        with self._call.process.stderr as stderr:
            for line in whole_lines(stderr):
                gone = self._words.find_ended(line)
                if gone:
                    start_timer(_SETTLE_S, partial(self._lose, gone), self._break)
                else:
                    self._take_words(*self._words.split(line))

    def _break(self, error: Exception) -> None:
        """Nobody reads any more what the hosts say."""
        self._relays.lose(
            [
                HostFailure(host.name, HostFailureKind.CONNECTION, f"launch can't read pdsh any more: {error!r}")
                for host in self._hosts
            ]
        )
        self._call.end()

    def _lose(self, hosts: Sequence[str]) -> None:
        self._relays.lose(map(self._lost, hosts))

    def _lost(self, host: str) -> HostFailure:
        return HostFailure(host, HostFailureKind.CONNECTION, self._words.lost(host))

    def _lose_input(self, task: int, said: str) -> None:
        host = self._hosts[task].name
        text = f"our word did not reach it{said and f': {said[:_WORD_CHARACTERS]}'}"
        self._relays.lose([HostFailure(host, HostFailureKind.CONNECTION, text)])
