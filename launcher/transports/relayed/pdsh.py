"""--transport pdsh: SSH through pdsh, one process for all hosts, as large clusters use it (docs/decisions/0013)."""

from __future__ import annotations

import contextlib
import getpass
import secrets
import shutil
import threading
import time
from collections.abc import Sequence

from launcher.errors import HostFailure, HostFailureKind, UsageError
from launcher.hosts.host import Host
from launcher.transports import bootstrap
from launcher.transports.base import Channel, TransportError
from launcher.transports.relayed.channel import RelayChannel
from launcher.transports.relayed.framing import Event, Exit, LineDecoder, ProcessOutput, RelayStarted
from launcher.transports.relayed.pdsh_command import RANK, Pdsh, make_folder, own_options
from launcher.transports.relayed.pdsh_input import RelayInput, data_lines
from launcher.transports.relayed.pdsh_output import PdshOutput, whole_lines
from launcher.transports.relayed.step_lifecycle import HostRelay, StepLifecycle
from launcher.transports.settings import TransportSettings
from launcher.transports.ssh import openssh_failures
from launcher.transports.ssh.failures import SSH_PORT, is_passing, pass_on
from launcher.transports.ssh.logins import LoginError, LoginQueues, keep_trying
from launcher.transports.ssh.openssh_config import HostConfig, HostConfigs, keep_known_keys, login_args
from launcher.transports.ssh.this_machine import ThisMachine, is_this_machine

_EXIT_OF_SSH = 255
_MARGIN_S = 2.0  # after ssh's own ConnectTimeout, so that ssh ends first and names the host that doesn't answer
_LOGIN_S = 0.25  # of CPU time for each host: all log in at once, and twice behind a jump host
_WORD_CHARACTERS = 200
_WAITING_BYTES = 16 << 20  # of a channel's output; while so much waits to be read, nothing is read for any host
_END_S = 2.0  # for pdsh and its ssh to end


class PdshTransport:
    """Reaches all hosts through one `pdsh -R ssh`, and each host that it can't reach or loses through another pdsh.

    Hosts that are this machine are recognized in the constructor, and are not in pdsh's list.
    """

    name = "pdsh"
    is_terse = True

    def __init__(self, hosts: Sequence[Host], settings: TransportSettings) -> None:
        """Find pdsh; raise UsageError if it or a named file is missing, or pdsh can't do what is asked.

        PDSH_SSH_ARGS_APPEND of the environment is respected.
        """
        self._answers = HostConfigs(shutil.which("ssh") or "ssh", settings.ssh_config)
        self._this_machine = ThisMachine(settings)
        self._here = {host.name for host in hosts if self._is_here(host, own_options(settings.variables))}
        self._hosts = {host.name: host for host in hosts if host.name not in self._here}
        self._pdsh = Pdsh(list(self._hosts.values()), settings)
        self._ask_first()
        self._pythons = settings.pythons
        self._silence_s = settings.silence_s
        self._may_boot = settings.may_boot
        self._queues = LoginQueues()  # of later tries: at first pdsh logs in to all hosts at once
        self._steps: dict[str, PdshStep] = {}  # the last one of each host
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
                self._steps[host.name].await_logins()
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
            return self._find_step(host, timeout_s).open(host.name, command)
        except OSError as error:
            text = f"pdsh can't be started: {error.strerror}"
            failure = HostFailure(host.name, HostFailureKind.PDSH, text, "use --transport ssh")
            raise TransportError(failure) from None
        except NotStartedError as error:
            raise self._classify(host, error) from None

    def _find_step(self, host: Host, timeout_s: float) -> PdshStep:
        """Return a usable step: the one for all hosts, or another for this host alone after that one has lost it."""
        with self._lock:
            step = self._steps.get(host.name)
            if step is None:
                hosts = list(self._hosts.values())
                self._steps.update(dict.fromkeys(self._hosts, self._start(hosts, timeout_s)))
            elif not step.is_usable(host.name):
                self._steps[host.name] = self._start([host], timeout_s)
            return self._steps[host.name]

    def _start(self, hosts: Sequence[Host], timeout_s: float) -> PdshStep:
        self._keep_known_keys(hosts)
        return PdshStep(
            self._pdsh, hosts, [python.replace("%", "%%") for python in self._pythons], timeout_s, self._silence_s
        )

    def _keep_known_keys(self, hosts: Sequence[Host]) -> None:
        """End the last lines of known_hosts files, to which ssh may append; each host may have a file of its own."""
        with contextlib.suppress(OSError):  # no ssh
            self._answers.ask_all([(host.name, self._pdsh.login_args(host)) for host in hosts])
        for host in hosts:
            with contextlib.suppress(OSError, UsageError):  # ssh itself reports it too
                answer = self._answer(host)
                keep_known_keys(answer, self._answers.of_jumps(answer))

    def _classify(self, host: Host, error: NotStartedError) -> LoginError | TransportError:
        if error.exit_code not in (None, _EXIT_OF_SSH):
            line = bootstrap.last_line(error.said.encode())
            return TransportError(bootstrap.describe_end(host.name, error.exit_code, self._pythons, line))
        try:
            answer = self._answer(host)
            failure, jump_host = openssh_failures.classify(
                error.said, answer, self._answers.of_jumps(answer), is_late=error.is_late
            )
        except UsageError as unknown:  # ssh can't interpret ssh_config
            return LoginError(HostFailure(host.name, HostFailureKind.SSH, unknown.message, unknown.fix))
        return LoginError(failure, jump_host)

    def _ask_first(self) -> None:
        """Raise UsageError if ssh would refuse every host, for its options or those of ssh_config."""
        with contextlib.suppress(OSError):  # no ssh
            self._answers.ask_first((host.name, self._pdsh.login_args(host)) for host in self._hosts.values())

    def _is_here(self, host: Host, options: Sequence[str]) -> bool:
        """Tell whether a host is this machine; `ssh -G` is run only for hosts whose names lead to this machine."""
        try:
            if is_this_machine(host.name, host.port or SSH_PORT, host.user or getpass.getuser()):
                answer = self._answers.of(host.name, [*options, *login_args(host)])
                return self._this_machine.is_meant(answer.place, answer.settings, is_direct=answer.is_direct)
        except (OSError, KeyError):  # no ssh, or a user id without a name
            pass
        return False


class NotStartedError(Exception):
    """A host's relay has not started; `said` is what its ssh and login shell have printed."""

    def __init__(self, said: str, exit_code: int | None, *, is_late: bool) -> None:
        super().__init__(said)
        self.said = said
        self.exit_code = exit_code  # of its ssh; None: pdsh has reported none
        self.is_late = is_late  # nothing was known about it when the time was over


class PdshStep:
    """One long pdsh on some hosts: what StepLifecycle needs of it, and how relays get their orders.

    Output of the relays comes on pdsh's stdout; their input goes by short calls of pdsh (RelayInput).
    """

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

    def _open(self, relay: HostRelay, command: str) -> RelayChannel:
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
        if isinstance(event, ProcessOutput | Exit):
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
