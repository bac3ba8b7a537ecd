"""The options that ssh_config sets for a host, for Fabric, and as OpenSSH itself would read them.

paramiko's parser ignores `Include`, takes comments for values and applies some `Match` blocks to every host, so it gets
what launcher.transports.ssh.config_blocks or `ssh -G` has read. `ssh -G` costs 4 ms of CPU: it is asked only about what
it alone can tell, and once for hosts of which it says the same.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paramiko import SSHConfig

from launcher.errors import UsageError
from launcher.transports.ssh.config_blocks import Blocks, Options
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
from launcher.transports.ssh.openssh_config import ask_ssh, jump_circle, split_jump
from launcher.transports.ssh.settings import check_config_file

_USER_FILE = Path("~/.ssh/config")
_SYSTEM_FILE = Path("/etc/ssh/ssh_config")
_MOST_JUMPS = 32


class ConfigFiles:
    """The user's and the system's ssh_config, or the file that --ssh-config names, read once for all hosts.

    Threads share it: what one of them has read of a host, or asked for a group of hosts, the others find.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read the files; raise UsageError if a named one is missing, or one is wrong and no ssh is there to say so."""
        check_config_file(path)
        self._named = path
        self._ssh = _find_ssh()
        self._found: dict[str, SSHConfig] = {}
        self._options: dict[str, Options] = {}
        self._asked: dict[Group, tuple[str, Options | UsageError]] = {}
        self._locks: dict[Group, threading.Lock] = {}
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

    def lookup(self, host: str) -> SSHConfig:
        """Return a configuration that is right for `host` and its jump hosts, the same object each time."""
        if host not in self._found:
            self._found[host] = self._describe(host)
        return self._found[host]

    def _read_files(self) -> Sequence[Sequence[Line]]:
        try:
            return self._read_all(is_checked=True)
        except SharedFile as shared:
            self._check_ssh(shared)
        ask_ssh(str(self._ssh), self._named, ["--", "localhost"])  # raises UsageError if ssh minds
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
        # ssh checks the user's own file as well; without ssh it may stay that of the machine around a container.
        own = replace(users, checked_from=0) if is_checked and self._ssh is not None else users
        system = Origin(_SYSTEM_FILE.parent, is_users=False, checked_from=included)
        return [_read(_USER_FILE.expanduser(), own), _read(_SYSTEM_FILE, system)]

    def _describe(self, host: str) -> SSHConfig:
        """Return the options of `host` and of each jump host on the way, as a configuration of their own.

        Raise UsageError if the way has no end: `Host *` with `ProxyJump gate-%h` leads on to gate-gate-%h.
        """
        blocks: list[str] = []
        pending, seen = [host], set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if len(seen) > _MOST_JUMPS:
                raise jump_circle(host, name)
            if name not in self._options:
                self._options[name] = self._read(name)
            block = _write_block(name, self._options[name])
            blocks.append(block)
            if "proxyjump" in self._options[name]:
                jumps = SSHConfig.from_text(block).lookup(name)["proxyjump"]  # it fills in the tokens
                pending += [split_jump(jump)[0] for jump in jumps.split(",")]
        return SSHConfig.from_text("\n".join(blocks))

    def _read(self, name: str) -> Options:
        if self._blocks is None:
            return self._ask(name)
        try:
            return self._blocks.read(name)
        except LeftToSsh as left:
            self._check_ssh(left)
        group = self._groups.find(name)
        if group is None:
            return self._ask(name)
        asked, answer = self._ask_for(group, name)
        if isinstance(answer, UsageError):  # asking again for each host could take the time-out of each
            raise UsageError(answer.message, answer.hint)
        hostname = self._groups.find_hostname(name, asked, str(answer["hostname"]))
        return self._ask(name) if hostname is None else {**answer, "hostname": hostname}

    def _ask_for(self, group: Group, name: str) -> tuple[str, Options | UsageError]:
        """Return which host of the group ssh was asked about, `name` if it is the first one, and the answer."""
        with self._locks.setdefault(group, threading.Lock()):
            if group not in self._asked:
                try:
                    self._asked[group] = name, self._ask(name)
                except UsageError as error:
                    self._asked[group] = name, error
            return self._asked[group]

    def _check_ssh(self, left: LeftToSsh) -> None:
        if self._ssh is None:
            raise UsageError(left.message, left.hint) from None

    def _ask(self, name: str) -> Options:
        """Return what `ssh -G` prints for a host; raise UsageError in its words."""
        options: Options = {}
        for line in ask_ssh(str(self._ssh), self._named, ["--", name]):
            key, _, value = line.partition(" ")
            if key == "identityfile":
                options[key] = [*options.get(key, ()), *([value] if _is_key(value) else [])]
            elif key in OPTIONS and not (key in ("proxyjump", "proxycommand", "connecttimeout") and value == "none"):
                options.setdefault(key, value)
        return options


def _find_ssh() -> str | None:
    """Return where ssh is; None also for a user id without an entry in passwd, for which it does nothing."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return None
    return shutil.which("ssh")


def _read(path: Path, origin: Origin) -> Sequence[Line]:
    """Return the lines of a file that need not be there; as ssh does, take one that can't be read for an empty one."""
    try:
        return read_lines(path, origin)
    except OSError:
        return ()


def _is_key(value: str) -> bool:
    """Tell whether a key that `ssh -G` prints may be there: it prints the default ones in any case."""
    return "%" in value or Path(value).expanduser().is_file()  # paramiko fills in the tokens


def _write_block(name: str, options: Options) -> str:
    lines = [f"Host {shlex.quote(name)}"]
    for key, value in options.items():
        # paramiko takes one pair of quotes away, whatever stands between them.
        lines += [f'  {key} "{each}"' for each in ([value] if isinstance(value, str) else value)]
    return "\n".join(lines)
