"""The options that ssh_config sets for a host, for Fabric, read as OpenSSH itself reads them.

paramiko's parser ignores `Include`, takes comments for values and applies some `Match` blocks to every host, so it gets
options that launcher.transports.ssh.config_blocks or `ssh -G` has read. `ssh -G` costs 4 ms of CPU: it is run only for
what only ssh can tell, and once for all hosts for which it gives the same answer.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paramiko import SSHConfig

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.settings import check_config_file
from launcher.transports.ssh.config_blocks import COLLECTED, Blocks, Options
from launcher.transports.ssh.config_groups import Group, Groups
from launcher.transports.ssh.config_lines import (
    MAX_DEPTH,
    OPTIONS,
    LeftToSsh,
    Line,
    Origin,
    SharedFile,
    every_line,
    read_lines,
)
from launcher.transports.ssh.openssh_config import ask_ssh, jump_circle, login_args, split_jump

_USER_FILE = Path("~/.ssh/config")
_SYSTEM_FILE = Path("/etc/ssh/ssh_config")
_MOST_JUMPS = 32

_Question = tuple[Group, "str | None", "int | None"]  # a group, and the user and the port that are named with its hosts


class ConfigFiles:
    """The user's and the system's ssh_config, or the file that --ssh-config names, read once for all hosts.

    Threads share it: what one of them has read for a host, or asked for a group of hosts, the others reuse.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read the files; raise UsageError if a named one is missing, or only ssh can read one and there is no ssh."""
        check_config_file(path)
        self._named = path
        self._ssh = _find_ssh()
        self._found: dict[Host, SSHConfig] = {}
        self._options: dict[Host, Options] = {}
        self._asked: dict[_Question, tuple[str, Options | UsageError]] = {}
        self._locks: dict[_Question, threading.Lock] = {}
        self._blocks: Blocks | None = None  # None: the files are left to ssh
        self.has_jump_chains = True
        try:
            files = self._read_files()
            self._groups = Groups(files)
        except LeftToSsh as left:
            self._check_ssh(left)
            return
        self._blocks = Blocks(files)
        self.has_jump_chains = any(line.keyword == "proxyjump" and "," in line.value for line in every_line(files))

    def lookup(self, name: str, user: str | None = None, port: int | None = None) -> SSHConfig:
        """Return a configuration that is right for a host and its jump hosts, the same object each time.

        user, port: those given with the host, or None.
        """
        host = Host(name, user, port)
        if host not in self._found:
            self._found[host] = self._describe(host)
        return self._found[host]

    def _read_files(self) -> Sequence[Sequence[Line]]:
        try:
            return self._read_all(is_checked=True)
        except SharedFile as shared:
            self._check_ssh(shared)
            if self._named is None and not _is_home_of_passwd():
                # ssh doesn't look at HOME: it would judge another file.
                raise UsageError(shared.message, f"{shared.fix}, or name a file with --ssh-config") from None
        ask_ssh(str(self._ssh), self._named, ["--", "localhost"])  # raises UsageError if ssh refuses the file
        return self._read_all(is_checked=False)

    def _read_all(self, *, is_checked: bool) -> Sequence[Sequence[Line]]:
        """Read the files; is_checked: raise SharedFile for one that ssh would check, if others may write it."""
        included = 1 if is_checked else MAX_DEPTH + 1
        users = Origin(_USER_FILE.parent, is_users=True, checked_from=included)
        if self._named is not None:
            try:
                return [read_lines(self._named, users)]
            except OSError as error:
                raise LeftToSsh(f"{self._named}: {error.strerror}", "make it readable") from None
        # ssh checks the user's own file as well. Without ssh it is not checked: in a container it may belong to a user
        # of the machine around it.
        own = replace(users, checked_from=0) if is_checked and self._ssh is not None else users
        system = Origin(_SYSTEM_FILE.parent, is_users=False, checked_from=included)
        return [_read(_USER_FILE.expanduser(), own), _read(_SYSTEM_FILE, system)]

    def _describe(self, host: Host) -> SSHConfig:
        """Return the options of `host` and of each jump host on the way, as a configuration of their own.

        Raise UsageError if there is no end of jump hosts: `Host *` with `ProxyJump gate-%h` leads to gate-gate-%h.
        """
        found: dict[str, Options] = {}
        pending = [host]
        while pending:
            hop = pending.pop()
            if hop.name in found:
                continue
            if len(found) == _MOST_JUMPS:
                raise jump_circle(host.name, hop.name)
            if hop not in self._options:
                self._options[hop] = self._read(hop)
            options = found[hop.name] = self._options[hop]
            if "proxyjump" in options:
                jumps = _make_config({hop.name: options}).lookup(hop.name)["proxyjump"]  # it fills in the tokens
                pending += map(_jump_host, jumps.split(","))
        return _make_config(found)

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


def _read(path: Path, origin: Origin) -> Sequence[Line]:
    """Return the lines of a file that need not exist; like ssh, treat one that can't be read as empty."""
    try:
        return read_lines(path, origin)
    except OSError:
        return ()


def _is_key(value: str) -> bool:
    """Tell whether a key that `ssh -G` prints may exist: it prints the default ones in any case."""
    return "%" in value or Path(value).expanduser().is_file()  # paramiko fills in the tokens


def _is_home_of_passwd() -> bool:
    """Tell whether ~/.ssh is the same by HOME and by passwd, where ssh looks."""
    by_passwd = Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh")
    return by_passwd.resolve() == Path("~/.ssh").expanduser().resolve()


def _jump_host(jump: str) -> Host:
    name, user, port = split_jump(jump)
    return Host(name, user, int(port) if port is not None and port.isdecimal() else None)


def _make_config(hosts: Mapping[str, Options]) -> SSHConfig:
    config: Any = SSHConfig.from_text("\n".join(_write_block(name, options) for name, options in hosts.items()))
    for block in config._config:
        for name in block["host"]:
            # Of several lines paramiko keeps the first one, except for IdentityFile; it passes on a list unchanged.
            if certificates := hosts.get(name, {}).get("certificatefile"):
                block["config"]["certificatefile"] = certificates
    made: SSHConfig = config
    return made


def _write_block(name: str, options: Options) -> str:
    lines = [f"Host {shlex.quote(name)}"]
    for key, value in options.items():
        # paramiko strips one pair of quotes, whatever is between them.
        lines += [f'  {key} "{each}"' for each in ([value] if isinstance(value, str) else value)]
    return "\n".join(lines)
