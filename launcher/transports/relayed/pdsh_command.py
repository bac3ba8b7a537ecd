"""How pdsh is called: its options, those of its ssh processes, and a shell that stops them all when `launch` ends."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.private_files import lock_directory
from launcher.transports.settings import TransportSettings, check_config_file
from launcher.transports.ssh.openssh_config import OPTIONS

RANK = "%n"  # pdsh replaces it by the host's index in -w
_ARGS = "PDSH_SSH_ARGS"  # replaces pdsh's own -a and -x
_APPEND = "PDSH_SSH_ARGS_APPEND"

_PATH_BYTES = 103  # of a socket, on macOS; Linux has 107
_ADDED_BYTES = 17  # by ssh while it makes one
_PREFIX, _RANDOM_BYTES = "launch-pdsh-", 8
_SHORT_S = 30  # for what takes less than one
_TO_SSH = "use --transport ssh, which has no such limit"
# sh waits for the end of its stdin, which comes when `launch` ends: neither pdsh nor its ssh would notice that.
_WRAPPER = (
    '"$@" </dev/null & exec >/dev/null 2>&1; read -r _; kill $! $(pgrep -P $!); wait $!; [ -z "$0" ] || rm -rf -- "$0"'
)
_LETTERS = re.compile(r"-[46AaCGgKkMNnqsTtVvXxYy]+")  # options of ssh that take no value
_UNWANTED = re.compile("[qAXY]")  # quiet, and forwarding: as letters they would win over the options below
_OPTIONS = {
    **OPTIONS,
    "LogLevel": "INFO",  # a quieter ssh would not print why it fails
    "ServerAliveInterval": "5",  # pdsh has no time-out for an established connection
    "ServerAliveCountMax": "3",
}


class Call:
    """A pdsh that was started, with pipes to its streams."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: str, stderr: int) -> None:
        """Start pdsh; `folder`: a directory to remove when it ends, or ""; stderr: as for Popen."""
        pipe = subprocess.PIPE
        with lock_directory(folder) as lock_fds:  # the shell keeps the lock until it has removed the directory
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", _WRAPPER, folder, *argv], stdin=pipe, stdout=pipe, stderr=stderr, bufsize=0,
                start_new_session=True, env=env, pass_fds=lock_fds,
            )  # fmt: skip

    def end(self) -> None:
        """Stop pdsh; each ssh then sees end of file, and ends whether its host answers or not."""
        assert self.process.stdin is not None  # asked for
        with contextlib.suppress(OSError):
            self.process.stdin.close()


class Pdsh:
    """How every pdsh of a transport is called: its program, environment, and the options of ssh."""

    def __init__(self, hosts: Sequence[Host], settings: TransportSettings) -> None:
        """Find pdsh; raise UsageError if there is none, or if it can't do what is asked."""
        pdsh = shutil.which("pdsh")
        if pdsh is None:
            raise UsageError("--transport pdsh: no pdsh on this machine", "install pdsh, or use --transport ssh")
        ssh_config, environ = settings.ssh_config, settings.variables
        check_config_file(ssh_config)
        if ssh_config is not None and not _is_plain(str(ssh_config)):
            raise UsageError(f"--transport pdsh: no path may have spaces or %: {str(ssh_config)!r}", _TO_SSH)
        _check_users(hosts)
        self._pdsh = pdsh
        self._environ = {**environ, _ARGS: " ".join(_keep_options(environ[_ARGS]))} if _ARGS in environ else environ
        self._own_options = own_options(environ)  # after those of `launch`, since ssh takes the first of two
        self._file = ["-F", str(ssh_config)] if ssh_config else []
        self._options = [
            *(["-p", str(port)] if (port := _port(hosts)) is not None else []),
            *(f"-o{name}={value}" for name, value in _OPTIONS.items()),
        ]

    def call(
        self, hosts: Sequence[Host], command: str, timeout_s: float, folder: str, *, is_short: bool = False
    ) -> Call:
        """Start pdsh on these hosts; raise OSError.

        `folder`: the directory for the sockets of ssh connections. A short call uses connections of a long one, and
        prints everything on stdout.
        """
        argv = [self._pdsh, "-R", "ssh", "-f", str(len(hosts)), "-t", str(max(1, int(timeout_s)))]
        limit = ["-u", str(_SHORT_S)] if is_short else []
        names = ",".join(f"{host.user}@{host.name}" if host.user is not None else host.name for host in hosts)
        options = [*self._file, *self._options, *_share(folder), *self._own_options]
        env = {**self._environ, _APPEND: " ".join([*options, *_login_as(hosts)])}
        stderr = subprocess.STDOUT if is_short else subprocess.PIPE
        return Call([*argv, *limit, "-w", names, command], env, "" if is_short else folder, stderr)

    def login_args(self, host: Host) -> list[str]:
        """Return the arguments with which ssh logs in to a host, for `ssh -G`; the caller adds -F."""
        user = ["-l", host.user] if host.user is not None else []
        return [*self._options, *self._own_options, *user, "--", host.name]


def own_options(environ: Mapping[str, str]) -> list[str]:
    """Return the user's own options for pdsh's ssh, without those that make it quiet or forward something."""
    return _keep_options(environ.get(_APPEND, ""))


def _keep_options(text: str) -> list[str]:
    said = (_UNWANTED.sub("", word) if _LETTERS.fullmatch(word) else word for word in text.split())
    return [word for word in said if word != "-"]


def make_folder(hosts: Sequence[Host]) -> str:
    """Return a new directory for the sockets of connections to these hosts.

    Return "" if every path would be too long, or can't be passed to ssh through pdsh.
    """
    longest = max(len(host.name.encode()) for host in hosts)
    for place in (tempfile.gettempdir(), "/tmp"):  # that of macOS is long: /var/folders/...
        socket_bytes = len(f"{place}/{_PREFIX}/".encode()) + _RANDOM_BYTES + longest + _ADDED_BYTES
        if _is_plain(place) and socket_bytes <= _PATH_BYTES:
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(prefix=_PREFIX, dir=place)
    return ""


def _is_plain(path: str) -> bool:
    """Tell whether pdsh passes a path on unchanged: it splits at white space, and replaces what begins with %."""
    return len(path.split()) == 1 and "%" not in path


def _share(folder: str) -> list[str]:
    """Return the options by which all calls share a connection to each host, with its socket in that directory."""
    if not folder:
        return ["-oControlMaster=no", "-oControlPath=none"]
    # Not ssh's own %C, which is equal for two names of one host. The user's ControlPersist would keep connections open.
    return ["-oControlMaster=auto", f"-oControlPath={folder}/%h", "-oControlPersist=no"]


def _login_as(hosts: Sequence[Host]) -> list[str]:
    """Return the option that names the user to ssh; pdsh omits its own user, though ssh_config may set another one."""
    return ["-l%u"] if all(host.user is not None for host in hosts) else []


def _check_users(hosts: Sequence[Host]) -> None:
    """Raise UsageError if pdsh would not pass a user that is named to ssh."""
    named = [host for host in hosts if host.user is not None]
    if len(named) in (0, len(hosts)):
        return
    try:
        own = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # ssh will say so
        return
    for host in named:
        if host.user == own:
            raise UsageError(
                f"--transport pdsh: it takes {own}@{host.name} only if every host is named with a user",
                f"name a user for all hosts or for none, or {_TO_SSH}",
            )


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
