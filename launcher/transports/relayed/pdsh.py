"""--transport pdsh: SSH through pdsh, one process for all hosts, as large clusters use it (docs/decisions/0013)."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.errors import HostFailure, HostFailureKind, UsageError
from launcher.hosts.host import Host
from launcher.transports import bootstrap
from launcher.transports.base import Channel, TransportError
from launcher.transports.relayed.pdsh_command import Pdsh, own_options
from launcher.transports.relayed.pdsh_step import NotStartedError, PdshStep
from launcher.transports.settings import TransportSettings
from launcher.transports.ssh import openssh_failures
from launcher.transports.ssh.failures import is_passing, pass_on
from launcher.transports.ssh.logins import LoginError, LoginQueues, keep_trying
from launcher.transports.ssh.openssh_config import Answer, Answers, keep_known_keys, login_args
from launcher.transports.ssh.this_machine import SSH_PORT, ThisMachine, is_this_machine

_EXIT_OF_SSH = 255
_ASKED_AT_ONCE = 16


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
        self._answers = Answers(shutil.which("ssh") or "ssh", settings.ssh_config)
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

    def _answer(self, host: Host) -> Answer:
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
        try:
            with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(hosts))) as pool:
                list(pool.map(self._keep_known_keys_of, hosts))
        except RuntimeError:  # this machine has no thread left
            for host in hosts:
                self._keep_known_keys_of(host)

    def _keep_known_keys_of(self, host: Host) -> None:
        with contextlib.suppress(OSError, UsageError):  # ssh itself reports it too
            answer = self._answer(host)
            keep_known_keys(answer, self._answers.of_jumps(answer), accept_new=False)  # the option is in the answer

    def _classify(self, host: Host, error: NotStartedError) -> LoginError | TransportError:
        if error.exit_code == bootstrap.NO_PYTHON_EXIT_CODE:
            return TransportError(bootstrap.no_python(host.name, self._pythons))
        if error.exit_code == bootstrap.NOT_LINUX_EXIT_CODE:
            return TransportError(bootstrap.not_linux(host.name))
        if error.exit_code not in (None, _EXIT_OF_SSH):
            line = error.said.strip().rpartition("\n")[2]
            text = f"its login shell ended (exit code {error.exit_code}){line and f': {line[:200]}'}"
            return TransportError(HostFailure(host.name, HostFailureKind.SHELL, text))
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
