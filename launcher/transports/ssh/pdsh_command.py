"""How pdsh is called: its options, those of its ssh processes, and a shell that stops them all when `launch` ends."""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.base import TransportSettings, check_config_file
from launcher.transports.ssh.openssh_config import OPTIONS

_ARGS, _APPEND = "PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND"  # of the environment: what pdsh's ssh gets
_UNUSED = "true"  # the command, which pdsh wants, and which -N keeps ssh from starting: nothing runs on a host

_PATH_BYTES = 103  # of a socket, on macOS; Linux has 107
_PREFIX, _RANDOM_BYTES = "launch-pdsh-", 8
_NAME_BYTES = 6 + 17  # a slash and the host's index, and what ssh adds while it makes the socket
_ALIVE_COUNT = 3
_LEAST_ALIVE_S = 5
_END_S = 4.0  # for pdsh and its ssh to end
_TO_SSH = "use --transport ssh, which has no such limit"
# sh waits for the end of its stdin, which comes when `launch` ends: neither pdsh nor its ssh would notice that. Each
# ssh is found by its socket's path, since it outlives a pdsh that was killed; it leads a session, in which its
# ProxyCommand is. bash may have reaped pdsh, so that another process has its id.
_WRAPPER = """
"$@" </dev/null & exec >/dev/null 2>&1
read -r _
pkill -P $$
wait $!
for try in 1 2 3 4 5 6 7 8 9; do
    found=$(pgrep -f "/${0##*/}/") || break
    for pid in $found; do kill -- "-$pid" || kill "$pid"; done
    sleep 0.2
done
rm -rf -- "$0"
"""
_OPTIONS = {
    **OPTIONS,
    "LogLevel": "VERBOSE",  # a quieter ssh would print neither that it has logged in nor why it fails
    "ServerAliveCountMax": str(_ALIVE_COUNT),  # of a dead host, nothing else would end an idle connection
    "ControlMaster": "yes",
    "ControlPersist": "no",
}


class Call:
    """A pdsh that was started; its stdout has all that it and its ssh processes print."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], directory: str) -> None:
        """Start pdsh; `directory`: of the sockets, removed when pdsh ends."""
        pipe = subprocess.PIPE
        # systemd-tmpfiles, which removes old files in /tmp, leaves sockets that live, and their directory.
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", _WRAPPER, directory, *argv], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT,
            start_new_session=True, env=env,
        )  # fmt: skip
        self.directory = directory

    def end(self) -> None:
        """Stop pdsh and each ssh, whether its host answers or not."""
        assert self.process.stdin is not None  # asked for
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def end_and_wait(self) -> None:
        """Stop pdsh and each ssh, and wait a moment for their end."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)


class Pdsh:
    """How every pdsh of a transport is called: its program, environment, and the options of ssh."""

    def __init__(self, pdsh: str, hosts: Sequence[Host], settings: TransportSettings) -> None:
        """pdsh: its path, from find_pdsh. Raise UsageError if it can't do what is asked."""
        ssh_config = settings.ssh_config
        check_config_file(ssh_config)
        if ssh_config is not None and not _is_plain(str(ssh_config)):
            raise UsageError(f"--transport pdsh: no path may have spaces or %: {str(ssh_config)!r}", _TO_SSH)
        _check_users(hosts)
        self._pdsh = pdsh
        self._environ = {name: value for name, value in settings.variables.items() if name != _ARGS}
        self._file = ["-F", str(ssh_config)] if ssh_config else []
        # Later than the lease of a run, which says more of a host that is silent.
        interval_s = _LEAST_ALIVE_S + math.ceil(settings.silence_s / _ALIVE_COUNT)
        self._options = [
            *(["-p", str(port)] if (port := _port(hosts)) is not None else []),
            *(f"-o{name}={value}" for name, value in {**_OPTIONS, "ServerAliveInterval": interval_s}.items()),
        ]

    def log_in(self, hosts: Sequence[Host], timeout_s: float) -> Call:
        """Start a pdsh that logs in to these hosts and keeps their connections open; raise OSError.

        The socket of a host's ControlMaster is named by the host's index, by which pdsh replaces %n.
        """
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=find_place())
        names = ",".join(f"{host.user}@{host.name}" if host.user is not None else host.name for host in hosts)
        options = ["-N", *self._file, f"-oControlPath={directory}/%n", *self._options]
        env = {**self._environ, _APPEND: " ".join([*options, *_login_as(hosts)])}
        limits = ["-f", str(len(hosts)), "-t", str(max(1, int(timeout_s))), "-u", "0"]
        return Call([self._pdsh, "-R", "ssh", *limits, "-w", names, _UNUSED], env, directory)

    def login_args(self, host: Host) -> list[str]:
        """Return the arguments with which ssh logs in to a host; the caller adds -F."""
        user = ["-l", host.user] if host.user is not None else []
        return [*self._options, *user, "--", host.name]


def find_pdsh() -> str:
    """Return the path of pdsh; raise UsageError if there is none."""
    pdsh = shutil.which("pdsh")
    if pdsh is None:
        raise UsageError("--transport pdsh: no pdsh on this machine", "install pdsh, or use --transport ssh")
    if shutil.which("pkill") is None:
        raise UsageError("--transport pdsh: no pkill on this machine", "install procps, or use --transport ssh")
    return pdsh


def find_place() -> str:
    """Return where the directory for sockets goes; the path of each must be short, and pass through pdsh unchanged."""
    place = tempfile.gettempdir()
    socket_bytes = len(f"{place}/{_PREFIX}".encode()) + _RANDOM_BYTES + _NAME_BYTES
    return place if _is_plain(place) and socket_bytes <= _PATH_BYTES else "/tmp"  # that of macOS is long


def _is_plain(path: str) -> bool:
    """Tell whether pdsh passes a path on unchanged: it splits at white space, and replaces what begins with %."""
    return len(path.split()) == 1 and "%" not in path


def _login_as(hosts: Sequence[Host]) -> list[str]:
    """Return the option that names the user to ssh; pdsh omits its own user, though ssh_config may set another one."""
    return ["-l%u"] if all(host.user is not None for host in hosts) else []


def _check_users(hosts: Sequence[Host]) -> None:
    """Raise UsageError if pdsh might not pass a user that is named to ssh: it omits its own one."""
    if len({host.user is None for host in hosts}) > 1:
        fix = f"name a user for all hosts or for none, or {_TO_SSH}"
        raise UsageError("--transport pdsh: some hosts are named with a user, and others without", fix)


def _port(hosts: Sequence[Host]) -> int | None:
    """Return the port of all hosts; raise UsageError if they have several, or pdsh would misread a host's name."""
    for host in hosts:
        if ":" in host.name:
            raise UsageError(
                f"--transport pdsh: it takes no IPv6 address: {host.name}", f"name it in ssh_config, or {_TO_SSH}"
            )
    ports = {host.port for host in hosts}
    if len(ports) > 1:
        named = " and ".join(str(port or "the default one") for port in sorted(ports, key=lambda port: port or 0)[:2])
        raise UsageError(
            f"--transport pdsh: it takes one port for all hosts, not {named}",
            f"set different ones as Port in ssh_config, or {_TO_SSH}",
        )
    return ports.pop() if ports else None
