"""The options that ssh_config sets for a host, as `ssh -G` prints them, that is, as OpenSSH itself reads its files.

All clients use them: what works with `ssh HOST` works over every transport.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.ssh.failures import Destination

_TIMEOUT_S = 10
_AT_ONCE = 8  # processes of ssh: more take no less time
_NO_ENTRY = "No user exists for uid"  # of passwd, which ssh needs even for -G

# Options that every ssh of a run gets, whatever ssh_config sets: some settings suit only logins by hand.
# A host could log in elsewhere with a forwarded agent's keys for as long as the run lasts, or watch the screen.
_FORWARDED = {"ForwardAgent": "no", "ForwardX11": "no", "ClearAllForwardings": "yes", "Tunnel": "no"}
OPTIONS = {
    "BatchMode": "yes",  # there is no terminal on which a question could be answered
    **_FORWARDED,
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "UpdateHostKeys": "no",  # replaces known_hosts: of many ssh at once, some would lose the others' keys
}


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What `ssh -G` prints for one host: every option by its name in lower case, with all its values in order."""

    place: Destination
    options: Mapping[str, Sequence[str]]

    def option(self, name: str) -> str | None:
        """Return an option's first value, or None if it is not set or `none`."""
        values = self.options.get(name, ())
        return values[0] if values and values[0] != "none" else None

    @property
    def jumps(self) -> list[str]:
        """Return the jump hosts of ProxyJump, the first one first, each as `[user@]name[:port]`."""
        return (self.option("proxyjump") or "").split(",") if self.option("proxyjump") else []

    @property
    def is_direct(self) -> bool:
        """Tell whether ssh connects to the host itself, without a jump host or a ProxyCommand."""
        return not self.jumps and self.option("proxycommand") is None

    @property
    def first_sshd(self) -> str:
        """Return a name for the first sshd that a login passes, which all hosts behind one jump host have in common."""
        if self.jumps:
            return self.jumps[0]
        return self.option("proxycommand") or f"{self.place.host}:{self.place.port}"

    @property
    def key_paths(self) -> list[Path]:
        """Return the keys that ssh_config names, or else the default ones, whether they exist or not."""
        names = (name for name in self.options.get("identityfile", ()) if name != "none")
        return list(dict.fromkeys(Path(os.path.expandvars(name)).expanduser() for name in names))

    @property
    def key_files(self) -> list[str]:
        """Return those keys that exist."""
        return [str(path) for path in self.key_paths if is_file(path)]

    @property
    def known_hosts_files(self) -> list[Path]:
        """Return the files of host keys, of which ssh writes the first; `ssh -G` prints no quotes around a name."""
        names = ("userknownhostsfile", "globalknownhostsfile")
        words = " ".join(self.options.get(name, [""])[0] for name in names).split()
        return [Path(word).expanduser() for word in words if word.startswith(("/", "~/"))]

    @property
    def connect_timeout_s(self) -> float | None:
        """Return ConnectTimeout, or None if it is not set."""
        seconds = self.option("connecttimeout")
        return float(seconds) if seconds is not None else None

    @property
    def is_agent_limited(self) -> bool:
        """Tell whether ssh tries only the keys that ssh_config names, and no other key of the agent."""
        return self.option("identitiesonly") == "yes"


def ask_ssh(ssh: str, named: Path | None, args: Sequence[str]) -> list[str]:
    """Return what `ssh -G` prints; named: --ssh-config; args: options, host. Raise UsageError with ssh's message."""
    argv = [ssh, "-G", *(["-F", str(named)] if named else []), *args]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{shlex.join(argv)}: no answer in {_TIMEOUT_S} s", "look for a slow `Match exec`") from None
    if done.returncode != 0:
        raise UsageError(_refusal(done.stderr) or f"{shlex.join(argv)}: failed", _find_hint(done.stderr, named))
    return done.stdout.splitlines()


def _find_hint(stderr: str, named: Path | None) -> str:
    if stderr.startswith(_NO_ENTRY):
        return "give this user id an entry in /etc/passwd; ssh needs one"
    return f"run `ssh {f'-F {shlex.quote(str(named))} ' if named else ''}-G HOST` for details"


def _refusal(stderr: str) -> str:
    """Return what ssh says on stderr, without what counts the bad options of a file."""
    return "; ".join(line.strip() for line in stderr.splitlines() if line.strip() and ": terminating, " not in line)


def read_answer(name: str, lines: Iterable[str]) -> HostConfig:
    """Return the answer for the host `name` from the lines that `ssh -G` printed."""
    options: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    (host,), (port,), (user,) = options["hostname"], options["port"], options["user"]
    place = Destination(name, host, int(port), user)
    named = HostConfig(place, options)
    known_hosts = named.known_hosts_files if named.option("userknownhostsfile") else []
    place = replace(place, alias=named.option("hostkeyalias"), known_file=str(known_hosts[0]) if known_hosts else None)
    return HostConfig(place, options)


def find_ssh() -> str:
    """Return the path of ssh; raise UsageError if there is none."""
    ssh = shutil.which("ssh")
    if ssh is None:
        raise UsageError("no ssh on this machine", "install openssh-client")
    return ssh


def is_file(path: Path) -> bool:
    """Tell whether there is a file; not in a directory that may not be searched."""
    try:
        return path.is_file()
    except OSError:
        return False


class HostConfigs:
    """The options for hosts and their jump hosts; ssh is run once for each, and for a few at the same time."""

    def __init__(self, ssh: str, named: Path | None) -> None:
        """ssh: its path; named: --ssh-config."""
        self._ssh = ssh
        self._named = named
        self._answers: dict[tuple[str, ...], HostConfig | UsageError] = {}
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._running = threading.BoundedSemaphore(_AT_ONCE)

    def of(self, name: str, args: Sequence[str]) -> HostConfig:
        """Return the options for the host `name` and these arguments of ssh; raise UsageError if ssh refuses them."""
        key = tuple(args)
        with self._locks.setdefault(key, threading.Lock()):  # many hosts have one jump host
            if key not in self._answers:
                try:
                    self._answers[key] = self._ask(name, args)
                except UsageError as error:
                    self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, UsageError):
            raise UsageError(answer.message, answer.fix)
        return answer

    def _ask(self, name: str, args: Sequence[str]) -> HostConfig:
        with self._running:
            return read_answer(name, ask_ssh(self._ssh, self._named, args))

    def on_the_way(self, host: Host) -> list[HostConfig]:
        """Return the options for each login on the way to a host, that to the host itself last; raise UsageError."""
        answer = self.of(host.name, login_args(host))
        return [*self.of_jumps(answer), answer]

    def ask_all(self, logins: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Run ssh for all of these logins at the same time; `of` and `of_jumps` then have their answers."""
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(lambda login: self.find_refusal(*login), logins))
        except RuntimeError:  # this machine has no thread left: each is asked when its answer is wanted
            pass

    def find_refusal(self, name: str, args: Sequence[str]) -> UsageError | None:
        """Return why ssh would refuse a login."""
        try:
            self.of_jumps(self.of(name, args))
        except UsageError as error:
            return error
        return None

    def of_jumps(self, answer: HostConfig) -> list[HostConfig]:
        """Return the options for each jump host on the way, in the order of the logins; raise UsageError.

        ssh reaches the first jump host of ProxyJump as ssh_config describes it, perhaps through jump hosts of its own,
        and each further one from the one before it. If a jump host is reached through itself, ssh would start itself
        for ever: that raises UsageError as well.
        """
        jump_hosts: list[HostConfig] = []
        asked: set[str] = set()
        jumps = answer.jumps
        while jumps:
            if jumps[0] in asked:
                raise jump_circle(answer.place.name, jumps[0])
            asked.add(jumps[0])
            jump_hosts = [self.of(jump, _jump_args(jump)) for jump in jumps] + jump_hosts
            jumps = jump_hosts[0].jumps
        return jump_hosts


def jump_circle(name: str, jump: str) -> UsageError:
    """Return the error for a host whose jump host `jump` is reached through itself."""
    return UsageError(
        f"ProxyJump loop on the way to {name}: {jump} is reached through itself",
        f"if `Host *` sets ProxyJump for {jump} too, exclude it: `Host * !{jump}`",
    )


def login_args(host: Host) -> list[str]:
    """Return the arguments that end ssh's command line for a host: port, user and name."""
    port = ["-p", str(host.port)] if host.port is not None else []
    user = ["-l", host.user] if host.user is not None else []
    return [*port, *user, "--", host.name]


def _jump_args(jump: str) -> list[str]:
    name, user, port = split_jump(jump)
    return [*(["-p", port] if port else []), *(["-l", user] if user else []), "--", name]


def split_jump(jump: str) -> tuple[str, str | None, str | None]:
    """Return name, user and port of `[user@]name[:port]`, `[user@][v6 address]:port` or an ssh:// URI of them."""
    user, _, rest = jump.removeprefix("ssh://").rpartition("@")
    name, port = rest, ""
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        name, _, port = rest.partition(":")
    return name, user or None, port or None
