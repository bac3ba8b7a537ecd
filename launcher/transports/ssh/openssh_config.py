"""The options that ssh_config sets for a host, as `ssh -G` prints them, that is, as OpenSSH itself reads its files."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.ssh.failures import Destination
from launcher.transports.ssh.known_hosts import end_last_line
from launcher.transports.ssh.known_hosts_paths import first_path

_TIMEOUT_S = 10
_NO_ENTRY = "No user exists for uid"  # of passwd, which ssh needs even for -G
_APPLE_OPTION = "Bad configuration option: usekeychain"  # not in another OpenSSH on a Mac, either
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(r"(\d+)([smhdw]?)", re.IGNORECASE)
_TIME = re.compile(rf"(?:{_PART.pattern})+", re.IGNORECASE)


# Values of StrictHostKeyChecking with which ssh adds no new key; "ask" too, since in batch mode it can't ask anybody.
_RECORDS_NO_KEY = ("yes", "true", "ask")
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
# OpenSSH before 8.7 refuses these as unknown options.
_LATER = {"StdinNull": "no", "SessionType": "default"}


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
    def settings(self) -> dict[str, str]:
        """Return each option's first value, `none` included."""
        return {name: values[0] for name, values in self.options.items()}

    @property
    def key_files(self) -> list[str]:
        """Return the private keys that exist; `ssh -G` also prints default ones that don't."""
        return [path for path in self.options.get("identityfile", ()) if Path(path).expanduser().is_file()]

    @property
    def is_agent_limited(self) -> bool:
        """Tell whether ssh tries only the keys that ssh_config names, and no other key of the agent."""
        return self.option("identitiesonly") == "yes"

    def may_record_key(self, *, accept_new: bool) -> bool:
        """Tell whether ssh may add a key to known_hosts; with CheckHostIP it also adds a known host's new address."""
        is_strict = (self.option("stricthostkeychecking") or "ask") in _RECORDS_NO_KEY
        return accept_new or not is_strict or self.option("checkhostip") == "yes"


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
        raise UsageError(_refusal(done.stderr) or f"{shlex.join(argv)}: failed", _find_hint(done.stderr))
    return done.stdout.splitlines()


def _find_hint(stderr: str) -> str:
    if stderr.startswith(_NO_ENTRY):
        return "use --transport fabric, which works without an entry in passwd"
    if _APPLE_OPTION in stderr:
        return "only macOS's own ssh knows it: add `IgnoreUnknown UseKeychain` as the first line"
    return "run `ssh -G HOST` for details"


def _refusal(stderr: str) -> str:
    """Return the last line on ssh's stderr that names an error, not the one that counts the bad options of a file."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and ": terminating, " not in line]
    return lines[-1] if lines else ""


def read_answer(name: str, lines: Sequence[str]) -> HostConfig:
    """Return the answer for the host `name` from the lines that `ssh -G` printed."""
    options: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    (host,), (port,), (user,) = options["hostname"], options["port"], options["user"]
    known = first_path(options.get("userknownhostsfile", [None])[0])
    alias = options.get("hostkeyalias", [None])[0]
    place = Destination(name, host, int(port), user, alias, known)
    return HostConfig(place, options)


class HostConfigs:
    """The answers of `ssh -G` for hosts and their jump hosts; ssh is run once for each."""

    def __init__(self, ssh: str, named: Path | None) -> None:
        self._ssh = ssh
        self._named = named
        self._answers: dict[tuple[str, ...], HostConfig] = {}

    def of(self, name: str, args: Sequence[str]) -> HostConfig:
        """Return the options for the host `name` and these arguments of ssh; raise UsageError if ssh refuses them."""
        key = tuple(args)
        if key not in self._answers:
            self._answers[key] = read_answer(name, ask_ssh(self._ssh, self._named, args))
        return self._answers[key]

    def ask_first(self, logins: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Raise UsageError if ssh would refuse every one of these logins, each a host's name and arguments of ssh.

        Two are tried. If ssh accepts one of them, an error concerns single hosts, which report it themselves.
        """
        refusal = None
        for name, args in islice(logins, 2):
            refusal = self._find_refusal(name, args)
            if refusal is None:
                return
        if refusal is not None:
            raise refusal

    def _find_refusal(self, name: str, args: Sequence[str]) -> UsageError | None:
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


def keep_known_keys(answer: HostConfig, jump_hosts: Iterable[HostConfig], *, accept_new: bool) -> None:
    """End the last line of each known_hosts file to which a login may add a key: ssh would append to that line.

    jump_hosts: for them ssh_config alone decides whether a new key is accepted, not `accept_new`.
    """
    recording = [answer] if answer.may_record_key(accept_new=accept_new) else []
    recording += [jump_host for jump_host in jump_hosts if jump_host.may_record_key(accept_new=False)]
    for known_file in {each.place.known_file for each in recording} - {None}:
        end_last_line(Path(str(known_file)))


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


def read_seconds(text: str | None) -> float | None:
    """Return the seconds of a time in ssh_config's format (`90`, `1m30s`); None if it is not set, or not a time."""
    if text is None or _TIME.fullmatch(text) is None:
        return None
    return float(sum(int(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(text)))


def later_options(known: Container[str]) -> dict[str, str]:
    """Return those options of OpenSSH 8.7 that this ssh knows; known: the lower-case names that `ssh -G` prints."""
    return {name: value for name, value in _LATER.items() if name.lower() in known}
