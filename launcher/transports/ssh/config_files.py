"""The way to a host, for Fabric: its jump hosts, and what ssh_config sets for each, read as OpenSSH itself reads it.

paramiko's parser ignores `Include`, takes comments for values and applies some `Match` blocks to every host, so Fabric
gets no ssh_config, but what launcher.transports.ssh.config_blocks or `ssh -G` has read. `ssh -G` costs 6 ms of CPU: it
is run only for what only ssh can tell, and once for all hosts for which it gives the same answer.
"""

from __future__ import annotations

import os
import pwd
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.settings import check_config_file
from launcher.transports.ssh.config_blocks import COLLECTED, Blocks, Groups, HostGroup, Options
from launcher.transports.ssh.config_lines import (
    MAX_DEPTH,
    OPTIONS,
    SYSTEM_FILE,
    USER_FILE,
    ConfigLine,
    LeftToSsh,
    Origin,
    SharedFile,
    read_lines,
)
from launcher.transports.ssh.failures import SSH_PORT, Destination
from launcher.transports.ssh.known_hosts_paths import expand_tokens, find_files
from launcher.transports.ssh.openssh_config import ask_ssh, jump_circle, login_args, split_jump
from launcher.transports.ssh.this_machine import own_user

_MOST_JUMPS = 32

_WITH_TOKENS = {"proxycommand", "proxyjump"}

_Question = tuple[HostGroup, "str | None", "int | None"]  # with the user and the port that are named


@dataclass(frozen=True, slots=True)
class Hop:
    """One login on the way to a host: to one of its jump hosts, or to the host itself."""

    place: Destination
    settings: Mapping[str, Any]  # what ssh_config sets; tokens are left only in the paths of known_hosts files

    @property
    def jumps(self) -> list[str]:
        """Return the jump hosts that it names; none if one of them is itself, as with ProxyJump under `Host *`."""
        jumps = self.settings["proxyjump"].split(",") if "proxyjump" in self.settings else []
        return [] if any(split_jump(jump)[0] == self.place.host for jump in jumps) else jumps


class ConfigFiles:
    """The user's and the system's ssh_config, or the file that --ssh-config names, read once for all hosts.

    Threads share it: what one of them has read for a host, or asked for a group of hosts, the others reuse.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read the files; raise UsageError if a named one is missing, or only ssh can read one and there is no ssh."""
        check_config_file(path)
        self._named = path
        self._ssh = _find_ssh()
        self._hops_of: dict[Host, tuple[Hop, ...]] = {}
        self._hops: dict[Host, Hop] = {}
        self._asked: dict[_Question, tuple[str, Options | UsageError]] = {}
        self._locks: dict[_Question, threading.Lock] = {}
        self._blocks: Blocks | None = None  # None: the files are left to ssh
        try:
            files = self._read_files()
            self._groups = Groups(files)
        except LeftToSsh as left:
            self._check_ssh(left)
            return
        self._blocks = Blocks(files)

    def find_hops(self, host: Host) -> tuple[Hop, ...]:
        """Return the logins on the way to a host, the one to the host itself last; the same object each time.

        Raise UsageError if there is no end of jump hosts: `Host *` with `ProxyJump gate-%h` leads to gate-gate-%h.
        """
        if host not in self._hops_of:
            self._hops_of[host] = self._find_hops(host)
        return self._hops_of[host]

    def _read_files(self) -> Sequence[Sequence[ConfigLine]]:
        try:
            return self._read_all(is_checked=True)
        except SharedFile as shared:
            self._check_ssh(shared)
            if self._named is None and not _is_home_of_passwd():
                # ssh doesn't look at HOME: it would judge another file.
                raise UsageError(shared.message, f"{shared.fix}, or name a file with --ssh-config") from None
        ask_ssh(str(self._ssh), self._named, ["--", "localhost"])  # raises UsageError if ssh refuses the file
        return self._read_all(is_checked=False)

    def _read_all(self, *, is_checked: bool) -> Sequence[Sequence[ConfigLine]]:
        """Read the files; is_checked: raise SharedFile for one that ssh would check, if others may write it."""
        included = 1 if is_checked else MAX_DEPTH + 1
        users = Origin(USER_FILE.parent, is_users=True, checked_from=included)
        if self._named is not None:
            try:
                return [read_lines(self._named, users)]
            except OSError as error:
                raise LeftToSsh(f"{self._named}: {error.strerror}", "make it readable") from None
        # ssh checks the user's own file as well. Without ssh it is not checked: in a container it may belong to a user
        # of the machine around it.
        own = replace(users, checked_from=0) if is_checked and self._ssh is not None else users
        system = Origin(SYSTEM_FILE.parent, is_users=False, checked_from=included)
        return [_read(USER_FILE.expanduser(), own), _read(SYSTEM_FILE, system)]

    def _find_hops(self, host: Host) -> tuple[Hop, ...]:
        """Find the jump hosts as ssh does: the first one by its own ProxyJump, each further one from the one before."""
        hops: tuple[Hop, ...] = (self._find_hop(host),)
        seen: set[str] = set()
        while jumps := hops[0].jumps:
            if jumps[0] in seen or len(seen) == _MOST_JUMPS:
                raise jump_circle(host.name, jumps[0])
            seen.add(jumps[0])
            hops = (*(self._find_hop(_jump_host(jump)) for jump in jumps), *hops)
        return hops

    def _find_hop(self, host: Host) -> Hop:
        if host not in self._hops:
            self._hops[host] = _make_hop(host, self._read(host))
        return self._hops[host]

    def _read(self, host: Host) -> Options:
        if self._blocks is None:
            return self._ask(host)
        try:
            return self._blocks.read(host)
        except LeftToSsh as left:
            self._check_ssh(left)
        group = self._groups.find(host.name)
        if group is None:
            return self._ask(host)
        asked, answer = self._ask_for((group, host.user, host.port), host)
        if isinstance(answer, UsageError):  # asking again could take one time-out for each host
            raise UsageError(answer.message, answer.fix)
        hostname = self._groups.find_hostname(host.name, asked, str(answer["hostname"]))
        return self._ask(host) if hostname is None else {**answer, "hostname": hostname}

    def _ask_for(self, question: _Question, host: Host) -> tuple[str, Options | UsageError]:
        """Return the name of the host that ssh was asked about, `host` if it is the first one, and the answer."""
        with self._locks.setdefault(question, threading.Lock()):
            if question not in self._asked:
                try:
                    self._asked[question] = host.name, self._ask(host)
                except UsageError as error:
                    self._asked[question] = host.name, error
            return self._asked[question]

    def _check_ssh(self, left: LeftToSsh) -> None:
        if self._ssh is None:
            raise UsageError(left.message, left.fix) from None

    def _ask(self, host: Host) -> Options:
        """Return what `ssh -G` prints for a host; raise UsageError with its error message."""
        options: Options = {}
        for line in ask_ssh(str(self._ssh), self._named, login_args(host)):
            key, _, value = line.partition(" ")
            if key in COLLECTED:
                is_meant = key != "identityfile" or _is_key(value)
                options[key] = [*options.get(key, ()), *([value] if is_meant else [])]
            elif key in OPTIONS and not (key in ("proxyjump", "proxycommand", "connecttimeout") and value == "none"):
                options.setdefault(key, value)
        return options


def _find_ssh() -> str | None:
    """Return the path of ssh; None if there is no ssh, or no entry in passwd for the user, without which ssh exits."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return None
    return shutil.which("ssh")


def _read(path: Path, origin: Origin) -> Sequence[ConfigLine]:
    """Return the lines of a file that need not exist; like ssh, treat one that can't be read as empty."""
    try:
        return read_lines(path, origin)
    except OSError:
        return ()


def _is_key(value: str) -> bool:
    """Tell whether a key that `ssh -G` prints may exist: it prints the default ones in any case."""
    return "%" in value or Path(value).expanduser().is_file()


def _is_home_of_passwd() -> bool:
    """Tell whether ~/.ssh is the same by HOME and by passwd, where ssh looks."""
    by_passwd = Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh")
    return by_passwd.resolve() == Path("~/.ssh").expanduser().resolve()


def _jump_host(jump: str) -> Host:
    name, user, port = split_jump(jump)
    return Host(name, user, int(port) if port is not None and port.isdecimal() else None)


def _make_hop(host: Host, options: Options) -> Hop:
    """Replace the tokens in what ssh_config sets for a host."""
    found: dict[str, Any] = {key: value for key, value in options.items() if value != []}
    user = found.get("user") or own_user() or ""
    port = int(found.get("port", SSH_PORT))
    place = Destination(host.name, found["hostname"], port, user, found.get("hostkeyalias"))
    for key in COLLECTED & found.keys():
        found[key] = [expand_tokens(path, place) for path in found[key]]
    for key in _WITH_TOKENS & found.keys():
        found[key] = expand_tokens(found[key], place)
    if "userknownhostsfile" in found:
        own, _ = find_files(found, place)
        place = replace(place, known_file=str(own[0]) if own else None)
    return Hop(place, found)
