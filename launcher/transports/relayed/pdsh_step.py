"""One long pdsh, the relays that it runs on its hosts, and the channels through them.

Output of the relays comes on pdsh's stdout; their input goes by short calls of pdsh (RelayInput).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from launcher.errors import HostFailure, HostFailureKind
from launcher.hosts.host import Host
from launcher.transports import bootstrap
from launcher.transports.relayed.channel import RelayChannel
from launcher.transports.relayed.framing import Event, Exit, LineDecoder, Output, RelayStarted
from launcher.transports.relayed.pdsh_command import RANK, Pdsh, make_folder
from launcher.transports.relayed.pdsh_input import RelayInput, data_lines
from launcher.transports.relayed.pdsh_lines import whole_lines
from launcher.transports.relayed.pdsh_output import PdshOutput
from launcher.transports.relayed.relays import Relay
from launcher.transports.relayed.step_lifecycle import StepLifecycle

_MARGIN_S = 2.0  # after ssh's own ConnectTimeout, so that ssh ends first and names the host that doesn't answer
_LOGIN_S = 0.25  # of CPU time for each host: all log in at once, and twice behind a jump host
_WORD_CHARACTERS = 200
_WAITING_BYTES = 16 << 20  # of a channel's output; while so much waits to be read, nothing is read for any host
_END_S = 2.0  # for pdsh and its ssh to end


class NotStartedError(Exception):
    """A host's relay has not started; `said` is what its ssh and login shell have printed."""

    def __init__(self, said: str, exit_code: int | None, *, is_late: bool) -> None:
        super().__init__(said)
        self.said = said
        self.exit_code = exit_code  # of its ssh; None: pdsh has reported none
        self.is_late = is_late  # nothing was known about it when the time was over


class PdshStep:
    """One pdsh on some hosts: what StepLifecycle needs of it, and how relays get their orders."""

    def __init__(
        self, pdsh: Pdsh, hosts: Sequence[Host], pythons: Sequence[str], timeout_s: float, silence_s: float
    ) -> None:
        """Start pdsh, or raise OSError; silence_s: after this much silence relays consider the launch host dead."""
        self._hosts = list(hosts)
        self._lifecycle = StepLifecycle([host.name for host in hosts], self, "read pdsh")
        self._relays = self._lifecycle.relays
        self._output = PdshOutput([host.name for host in hosts])
        self._tasks = {host.name: task for task, host in enumerate(hosts)}
        self._nonce = secrets.token_hex(4)
        self._limit_s = timeout_s + _MARGIN_S + _LOGIN_S * len(hosts)
        folder = make_folder(hosts)
        command = bootstrap.relay_line(pythons, self._nonce, RANK, silence_s)
        self._call = pdsh.call(hosts, command, timeout_s, folder)
        with self._lifecycle.starting():
            self._input = RelayInput(pdsh, hosts, pythons, self._nonce, folder, timeout_s, self._lose_input)
            self._stderr_reader = self._lifecycle.start_thread(self._read_stderr, "hear pdsh")
            self._stdout_reader = self._lifecycle.start_thread(self._read_stdout, "read pdsh")

    def open(self, host: str, command: str) -> RelayChannel:
        """Start a process on a host when its relay has started; raise NotStartedError if it has not in time."""
        relay = self._relays[host]
        with self._relays.changed:
            is_known = self._relays.wait_for(relay, lambda: relay.started or relay.failure, self._limit_s)
            if relay.started is not None and relay.failure is None:
                return self._open(relay, command)
            self._lifecycle.give_up(relay, self.why_lost(host))
        raise NotStartedError(self._output.said(host), self._output.exit_code(host), is_late=not is_known)

    def _open(self, relay: Relay, command: str) -> RelayChannel:
        channel = self._lifecycle.open_channel(relay, self, filter(None, [self._output.said(relay.host)]))
        task = self._tasks[relay.host]
        words = b"open %d %d" % (channel.number, task)
        self._input.post(task, [(words, command.encode("utf-8", "surrogateescape"))])
        return channel

    def await_logins(self) -> None:
        """Wait until every host has logged in or failed, and no login is in progress any more."""
        with self._relays.changed:
            self._relays.changed.wait_for(self._relays.are_settled, self._limit_s)

    def is_usable(self, host: str) -> bool:
        """Tell whether a process, another one perhaps, may be started on a host through this step."""
        return self._lifecycle.is_usable(host)

    def acknowledge(self, channel: RelayChannel, size_bytes: int) -> None:
        """Do nothing: relays under pdsh have no window; if output isn't read, pdsh itself holds all hosts back."""

    def send_data(self, channel: RelayChannel, data: bytes) -> None:
        """Queue data for the process's stdin."""
        self._input.post(self._tasks[channel.host], data_lines(channel.number, data))

    def leave(self, channel: RelayChannel) -> None:
        """Close the process's pipes; if no host needs pdsh any more, wait a moment for its end."""
        self._lifecycle.leave(channel)

    # ---- what the lifecycle asks for ------------------------------------------------------------------------------

    def send_shut(self, channel: RelayChannel) -> None:
        """Queue the order that closes the process's pipes, unless the relay is about to end anyway."""
        if not self._relays.are_unused():
            self._input.post(self._tasks[channel.host], [(b"shut %d" % channel.number, None)])

    def begin_end(self) -> None:
        """Send nothing more, and end pdsh."""
        self._input.close()
        self._call.end()

    def await_end(self) -> None:
        """Wait until pdsh has closed its stdout, for a moment at most."""
        self._stdout_reader.join(_END_S)

    def terminate(self) -> None:
        """End pdsh."""
        self._call.end()

    def why_lost(self, host: str) -> HostFailure:
        """Return what pdsh has printed about the end of a host's ssh."""
        return HostFailure(host, HostFailureKind.CONNECTION, self._output.lost(host))

    # ---- the threads ----------------------------------------------------------------------------------------------

    def _read_stdout(self) -> None:
        decoder = LineDecoder(self._nonce)
        assert self._call.process.stdout is not None  # asked for
        with self._call.process.stdout as stdout:
            for line in whole_lines(stdout):
                hosts, text = self._output.split(line)
                for event in decoder.feed(text + b"\n"):
                    self._take(hosts, event)
        self._stderr_reader.join(_END_S)  # the last lines of stderr say why
        self._output.end()
        self._lifecycle.lose([host.name for host in self._hosts])
        self._input.close()
        self._call.end()
        self._call.process.wait()

    def _take(self, hosts: Sequence[str], event: Event) -> None:
        """Take an event from one of these hosts, as pdsh labels its line; it may be about that host alone."""
        if isinstance(event, Output | Exit):
            self._relays.deliver(event, hosts, _WAITING_BYTES)
        elif isinstance(event, RelayStarted):
            for host in hosts:
                if self._tasks[host] == event.task:
                    self._relays.mark_started(host, event)
        else:
            self._take_line(hosts, event.text)

    def _take_line(self, hosts: Sequence[str], text: bytes) -> None:
        line = text.decode("utf-8", "replace").rstrip("\r\n")
        with self._relays.changed:
            self._output.keep(hosts, line)
            if line.strip():
                self._relays.deliver_noise(line, hosts)

    def _read_stderr(self) -> None:
        assert self._call.process.stderr is not None  # asked for
        with self._call.process.stderr as stderr:
            for line in whole_lines(stderr):
                gone = self._output.find_ended(line)
                if gone:
                    self._lifecycle.lose_soon(gone)
                else:
                    self._take_line(*self._output.split(line))

    def _lose_input(self, task: int, said: str) -> None:
        host = self._hosts[task].name
        text = f"a message did not reach it{said and f': {said[:_WORD_CHARACTERS]}'}"
        self._relays.lose([HostFailure(host, HostFailureKind.CONNECTION, text)])
