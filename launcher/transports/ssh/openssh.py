"""SSH through the system's own client, one process for each host: what works with `ssh NODE` works here."""

from __future__ import annotations

import atexit
import enum
import os
import re
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.base import KILLED, READ_BYTES, STDERR, Channel
from launcher.transports.process_channel import ProcessChannel, end_process, start_process
from launcher.transports.ssh import openssh_failures
from launcher.transports.ssh.logins import Gates, LoginError, keep_trying
from launcher.transports.ssh.openssh_config import Answer, Answers, keep_known_keys, login_words, read_seconds
from launcher.transports.ssh.openssh_options import OPTIONS, later_options
from launcher.transports.ssh.this_machine import ThisMachine

# At VERBOSE ssh says when the login is through; what follows on stderr is the host's, but for these at the end.
_OPTIONS = {
    **OPTIONS,
    "LogLevel": "VERBOSE",
    "ControlMaster": "no",  # the user's is used; one of ours would hold all sessions by one process
}
_SUMMARY = re.compile(rb"^(?:Transferred: sent|Bytes per second: sent) [^\n]*\n", re.MULTILINE)
# How ssh says on stderr that the connection was lost; a command that a signal has ended gives 255 without a word.
_LOST = re.compile(
    rb"^(?:Connection to \S+ closed|Connection (?:reset|closed) by|Read from remote host|client_loop: |Timeout, server|"
    rb"Received disconnect|Disconnected from|ssh_dispatch_run_fatal|mux_client_|packet_write)",
    re.MULTILINE,
)
_EXIT_OF_SSH = 255
_MARGIN_S = 2.0  # our own clock ends a login that is slow; ssh's, which ends before, knows who does not answer
_STDERR_KEPT = 64 << 10


class OpenSSHChannel:
    """An `ssh` process that has logged in."""

    def __init__(self, process: subprocess.Popen[bytes], said: bytes, *, is_guest: bool) -> None:
        """Take a process over; said: what came on its stderr already; is_guest: on a connection of the user's."""
        self._process = process
        self._is_guest = is_guest
        self._pipes = ProcessChannel(process)
        self._said = said
        self._last_words = b""

    def read(self) -> tuple[int, bytes]:
        while True:
            stream, data = (STDERR, self._said) if self._said else self._pipes.read()
            self._said = b""
            if stream == STDERR:
                self._last_words = (self._last_words + data)[-_STDERR_KEPT:]
                data = _SUMMARY.sub(b"", data)
            if data or not stream:
                return stream, data

    def write(self, data: bytes) -> None:
        self._pipes.write(data)

    def close(self) -> None:
        self._pipes.close()
        end_process(self._process)  # with a frozen peer end of file alone would keep it waiting

    def exit_code(self) -> int | None:
        code = self._process.poll()
        if code is None or code < 0:
            return None
        if code == _EXIT_OF_SSH:
            # A guest has no words for it that its host has ended.
            return None if self._is_guest or _LOST.search(self._last_words) else KILLED
        return code


class OpenSSHTransport:
    """Reaches hosts by `ssh`, as ssh_config describes them to it."""

    name = "ssh"
    is_terse = False

    def __init__(
        self,
        ssh_config: Path | None = None,
        *,
        accept_new_host_keys: bool = False,
        may_boot: bool = False,
        on_local: Callable[[str], None] | None = None,
        on_doubt: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """Find ssh; raise UsageError where it or a named file is missing.

        may_boot: wait for a host that is not there yet, for as long as `open` may take.
        on_local: told of each host that turns out to be this machine, which then needs no SSH.
        on_doubt: told of each host that has this machine's address, why it may not be this machine, and what helps.
        """
        if ssh_config is not None and not ssh_config.is_file():
            raise UsageError(f"{ssh_config}: no such file", "--ssh-config names an OpenSSH client configuration")
        ssh = shutil.which("ssh")
        if ssh is None:
            raise UsageError("no ssh on this machine", "install openssh-client, or take --transport fabric")
        self._ssh = ssh
        self._ssh_config = ssh_config
        self._accept_new = accept_new_host_keys
        self._may_boot = may_boot
        self._this_machine = ThisMachine(on_local, on_doubt)
        self._gates = Gates()
        self._answers = Answers(ssh, ssh_config)
        self._connecting: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        atexit.register(self._end_connecting)

    def ask_first(self, hosts: Sequence[Host]) -> None:
        """Raise UsageError for an ssh_config that ssh would refuse for every host."""
        self._answers.ask_first((host.name, login_words(host)) for host in hosts)

    def open(self, host: Host, command: str, timeout_s: float) -> Channel:
        words = login_words(host)
        answer = self._answers.of(host.name, words)
        if answer.is_direct and self._this_machine.is_meant(answer.place, answer.settings):
            return self._this_machine.open(host, command, timeout_s)
        hops = self._answers.of_jumps(answer)  # ssh itself would go round in a circle
        keep_known_keys(answer, hops, accept_new=self._accept_new)
        own_limit_s = None if self._may_boot else read_seconds(answer.option("connecttimeout"))
        limit_s = own_limit_s or timeout_s
        gate = self._gates[answer.gate_name]
        argv = [*self._argv(answer), *words, command]
        return keep_trying(
            host.name, gate, lambda try_s: self._log_in(argv, answer, try_s), limit_s, may_boot=self._may_boot
        )

    def last_words(self, host: Host) -> Sequence[str]:
        return ()

    def _argv(self, answer: Answer) -> list[str]:
        """Return the start of the command line: what is the same for every host but for its host key."""
        options = {**_OPTIONS, **later_options(answer.options)}
        if self._accept_new and answer.option("stricthostkeychecking") not in ("no", "false", "off"):
            options["StrictHostKeyChecking"] = "accept-new"
        settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return [self._ssh, *(["-F", str(self._ssh_config)] if self._ssh_config else []), *settings]

    def _log_in(self, argv: list[str], answer: Answer, timeout_s: float) -> OpenSSHChannel:
        limit = f"ConnectTimeout={max(1, int(timeout_s))}"
        process = start_process([argv[0], "-o", limit, *argv[1:]])
        with self._lock:
            self._connecting.add(process)
        try:
            login, said = _await_login(process, answer, timeout_s + _MARGIN_S)
        finally:
            with self._lock:
                self._connecting.discard(process)
        if login is not None:
            return OpenSSHChannel(process, said, is_guest=login is _Login.GUEST)
        is_late = process.poll() is None
        end_process(process)
        text = said.decode("utf-8", "replace")
        failure, gateway = openssh_failures.judge(text, answer, self._answers.of_jumps(answer), is_late=is_late)
        raise LoginError(failure, gateway)

    def _end_connecting(self) -> None:
        """An ssh that has not logged in does not look at its stdin, and would stay after us."""
        with self._lock:
            for process in self._connecting:
                end_process(process)


class _Login(enum.Enum):
    """Whose connection it is."""

    OWN = enum.auto()
    GUEST = enum.auto()  # a ControlMaster's


def _await_login(process: subprocess.Popen[bytes], answer: Answer, timeout_s: float) -> tuple[_Login | None, bytes]:
    """Wait until the login is through, or the process or the time at its end; return what came on stderr so far.

    Over a ControlMaster nothing tells of a login; then the command's first output does.
    """
    assert process.stdout and process.stderr  # start_process asks for them
    done = re.compile(rb"^Authenticated to %s \([^\n]*\n" % re.escape(answer.place.host.encode()), re.MULTILINE)
    said = b""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    for stream in (process.stdout, process.stderr):
        poll.register(stream, select.POLLIN)
    open_fds = {process.stdout.fileno(), process.stderr.fileno()}
    while open_fds and (left_s := deadline - time.monotonic()) > 0:
        events = dict(poll.poll(left_s * 1000))
        has_output = bool(events.get(process.stdout.fileno(), 0) & select.POLLIN)
        for fd in events if not has_output else events.keys() - {process.stdout.fileno()}:
            data = os.read(fd, READ_BYTES)
            said = (said + data)[-_STDERR_KEPT:]
            if not data:
                poll.unregister(fd)
                open_fds.remove(fd)
        if done.search(said):
            return _Login.OWN, done.sub(b"", said)
        if has_output:
            return _Login.GUEST, said
    if not open_fds:
        process.wait()
    return None, said
