"""What `ssh -G` says of a host: ssh_config as OpenSSH itself reads it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.ssh.failures import Place
from launcher.transports.ssh.known_hosts_file import end_last_line
from launcher.transports.ssh.known_hosts_paths import first_path

_TIMEOUT_S = 10
_NO_ENTRY = "No user exists for uid"  # of passwd, which ssh needs even for -G
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(r"(\d+)([smhdw]?)", re.IGNORECASE)
_TIME = re.compile(rf"(?:{_PART.pattern})+", re.IGNORECASE)


_RECORDS_NO_KEY = ("yes", "true", "ask")  # of StrictHostKeyChecking: nobody is there whom ssh could ask


@dataclass(frozen=True, slots=True)
class Answer:
    """The options of one host, by their names in small letters; an option that may stand there twice has a list."""

    place: Place
    options: Mapping[str, Sequence[str]]

    def option(self, name: str) -> str | None:
        """Return an option's value, or None where it is not set."""
        values = self.options.get(name, ())
        return values[0] if values and values[0] != "none" else None

    @property
    def jumps(self) -> list[str]:
        """Return the hosts on the way to this one, the first one first, each as `[user@]name[:port]`."""
        return (self.option("proxyjump") or "").split(",") if self.option("proxyjump") else []

    @property
    def is_direct(self) -> bool:
        """Tell whether nothing stands between."""
        return not self.jumps and self.option("proxycommand") is None

    @property
    def gate_name(self) -> str:
        """Return a name for the sshd that lets us in first, which many hosts may have in common."""
        if self.jumps:
            return self.jumps[0]
        return self.option("proxycommand") or f"{self.place.host}:{self.place.port}"

    @property
    def settings(self) -> dict[str, str]:
        """Return each option's first value, as it stands."""
        return {name: values[0] for name, values in self.options.items()}

    @property
    def key_files(self) -> list[str]:
        """Return the keys that are there; ssh also names those of its own list that are not."""
        return [path for path in self.options.get("identityfile", ()) if Path(path).expanduser().is_file()]

    @property
    def is_agent_limited(self) -> bool:
        """Tell whether only keys that ssh_config names are tried."""
        return self.option("identitiesonly") == "yes"

    def may_record_key(self, *, accept_new: bool) -> bool:
        """Tell whether ssh may add a key to known_hosts; with CheckHostIP it adds that of an address at any time."""
        is_strict = (self.option("stricthostkeychecking") or "ask") in _RECORDS_NO_KEY
        return accept_new or not is_strict or self.option("checkhostip") == "yes"


def ask_ssh(ssh: str, named: Path | None, words: Sequence[str]) -> list[str]:
    """Return the lines of `ssh -G` for options and a host; named: --ssh-config; raise UsageError in ssh's words."""
    argv = [ssh, "-G", *(["-F", str(named)] if named else []), *words]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{shlex.join(argv)}: no answer in {_TIMEOUT_S} s", "a `Match exec` that waits?") from None
    if done.returncode != 0:
        is_unknown = done.stderr.startswith(_NO_ENTRY)
        hint = "--transport fabric works without an entry in passwd" if is_unknown else "`ssh -G HOST` says more"
        raise UsageError(_refusal(done.stderr) or f"{shlex.join(argv)}: failed", hint)
    return done.stdout.splitlines()


def _refusal(stderr: str) -> str:
    """Return the last of ssh's lines but for the one that counts what is wrong in a file."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and ": terminating, " not in line]
    return lines[-1] if lines else ""


def read_answer(name: str, lines: Sequence[str]) -> Answer:
    """Return what the lines of `ssh -G` say of the host `name`."""
    options: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    (host,), (port,), (user,) = options["hostname"], options["port"], options["user"]
    known = first_path(options.get("userknownhostsfile", [None])[0])
    alias = options.get("hostkeyalias", [None])[0]
    place = Place(name, host, int(port), user, alias, known)
    return Answer(place, options)


class Answers:
    """What ssh says of hosts and their gateways, asked once for each."""

    def __init__(self, ssh: str, named: Path | None) -> None:
        self._ssh = ssh
        self._named = named
        self._answers: dict[tuple[str, ...], Answer] = {}

    def of(self, name: str, words: Sequence[str]) -> Answer:
        """Return what it says of a login with these words; raise UsageError."""
        key = tuple(words)
        if key not in self._answers:
            self._answers[key] = read_answer(name, ask_ssh(self._ssh, self._named, words))
        return self._answers[key]

    def ask_first(self, logins: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Raise UsageError where ssh would refuse all; where it is well with one of two, each host has its own."""
        refusal = None
        for name, words in islice(logins, 2):
            refusal = self._find_refusal(name, words)
            if refusal is None:
                return
        if refusal is not None:
            raise refusal

    def _find_refusal(self, name: str, words: Sequence[str]) -> UsageError | None:
        try:
            self.of_jumps(self.of(name, words))
        except UsageError as error:
            return error
        return None

    def of_jumps(self, answer: Answer) -> list[Answer]:
        """Return what it says of each hop on the way, in the order of the logins; raise UsageError.

        ssh reaches the first hop as its ssh_config says, so by way of others, and each further one from that before it.
        Where that leads round in a circle it starts itself for ever: that is a UsageError as well.
        """
        hops: list[Answer] = []
        asked: set[str] = set()
        jumps = answer.jumps
        while jumps:
            if jumps[0] in asked:
                raise jump_circle(answer.place.name, jumps[0])
            asked.add(jumps[0])
            hops = [self.of(jump, _jump_words(jump)) for jump in jumps] + hops
            jumps = hops[0].jumps
        return hops


def keep_known_keys(answer: Answer, hops: Iterable[Answer], *, accept_new: bool) -> None:
    """End the last line of each known_hosts file to which a login may add a key.

    hops: those on the way, which ssh_config alone tells whether a new key is accepted.
    """
    recording = [answer] if answer.may_record_key(accept_new=accept_new) else []
    recording += [hop for hop in hops if hop.may_record_key(accept_new=False)]
    for known_file in {each.place.known_file for each in recording} - {None}:
        end_last_line(Path(str(known_file)))


def jump_circle(name: str, jump: str) -> UsageError:
    """Return what is wrong with a host's ProxyJump that leads to a hop which is reached by way of itself."""
    return UsageError(
        f"the way to {name} leads round in a circle: {jump} is reached by way of itself",
        f"does a `Host *` with ProxyJump mean {jump} too? `Host * !{jump}` leaves it out",
    )


def login_words(host: Host) -> list[str]:
    """Return the end of ssh's command line for a host."""
    port = ["-p", str(host.port)] if host.port is not None else []
    user = ["-l", host.user] if host.user is not None else []
    return [*port, *user, "--", host.name]


def _jump_words(jump: str) -> list[str]:
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
    """Return the seconds of a time as ssh_config has it (`90`, `1m30s`); None where there is none."""
    if text is None or _TIME.fullmatch(text) is None:
        return None
    return float(sum(int(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(text)))
