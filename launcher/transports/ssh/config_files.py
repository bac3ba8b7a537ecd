"""The options that ssh_config sets for a host, for Fabric, and as OpenSSH itself would read them.

paramiko's parser ignores `Include` and applies some `Match` blocks to every host.
If the files have such lines, `ssh -G HOST` reads them instead; it costs 4 ms of CPU a host, so only then.
"""

from __future__ import annotations

import glob
import re
import shutil
from pathlib import Path

from paramiko import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from launcher.errors import UsageError
from launcher.transports.ssh.openssh_config import ask_ssh, split_jump
from launcher.transports.ssh.settings import check_config_file

_USER_FILE = Path("~/.ssh/config")
_SYSTEM_FILE = Path("/etc/ssh/ssh_config")
# What paramiko misreads: Match, canonical names, a comment behind a value; and fabric takes the "none" of
# `ProxyJump none` for the name of a host.
_MISREAD = re.compile(
    r"^\s*(match|canonicalizehostname|proxyjump[ \t=]+\"?none)\b|^[ \t]*[^#\s][^\n]*[ \t]#",
    re.IGNORECASE | re.MULTILINE,
)
_JUMP_CHAIN = re.compile(r"^\s*proxyjump\b.*,", re.IGNORECASE | re.MULTILINE)
_INCLUDE = re.compile(r"^\s*include[ \t=]+(.+)$", re.IGNORECASE | re.MULTILINE)


class ConfigFiles:
    """The user's and the system's ssh_config, or the file that --ssh-config names, read once for all hosts."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the files; raise UsageError if a named one is missing, or paramiko can't parse them."""
        check_config_file(path)
        self._named = path
        self._texts = {file: _read(file) for file in ([path] if path else [_USER_FILE, _SYSTEM_FILE])}
        needs_ssh = any(_is_misread(text, file) for file, text in self._texts.items())
        self._ssh = shutil.which("ssh") if needs_ssh else None
        self.has_jump_chains = bool(self._ssh) or any(map(_JUMP_CHAIN.search, self._texts.values()))
        # A Host block ends at the end of its file.
        self._parsed = None if self._ssh else _parse("\nHost *\n".join(self._texts.values()))
        self._answers: dict[str, SSHConfig] = {}

    def lookup(self, host: str) -> SSHConfig:
        """Return a configuration that is right for `host` and its jump hosts, the same object each time."""
        if self._parsed is not None:
            return self._parsed
        if host not in self._answers:
            self._answers[host] = self._ask_ssh(str(self._ssh), host)
        return self._answers[host]

    def _ask_ssh(self, ssh: str, host: str) -> SSHConfig:
        """Return what `ssh -G` prints for `host` and for each jump host on the way, as a configuration of their own."""
        blocks: list[str] = []
        pending, asked = [host], set()
        while pending:
            name = pending.pop()
            if name in asked:
                continue
            asked.add(name)
            lines = list(filter(_is_set, ask_ssh(ssh, self._named, ["--", name])))
            blocks.append("\n".join([f"Host {name}", *lines]))
            jumps = [line.partition(" ")[2] for line in lines if line.startswith("proxyjump ")]
            pending += [split_jump(jump)[0] for value in jumps for jump in value.split(",")]
        return _parse("\n".join(blocks))


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text("utf-8", "replace")
    except OSError:
        return ""


def _parse(text: str) -> SSHConfig:
    try:
        return SSHConfig.from_text(text)
    except ConfigParseError as error:
        raise UsageError(f"the ssh configuration: {error}", "`ssh -G HOST` says more") from None


def _is_misread(text: str, path: Path) -> bool:
    """Tell whether paramiko would misread this file; an Include that matches no file doesn't matter."""
    if _MISREAD.search(text):
        return True
    # ssh_config(5): a relative pattern is looked up in /etc/ssh for the system's file, else in ~/.ssh.
    folder = _SYSTEM_FILE.parent if path == _SYSTEM_FILE else _USER_FILE.parent.expanduser()
    patterns = [word.strip('"') for line in _INCLUDE.findall(text) for word in line.split()]
    return any(glob.glob(str(folder / Path(pattern).expanduser())) for pattern in patterns)  # noqa: PTH207 - absolute too


def _is_set(line: str) -> bool:
    """Tell whether a line of `ssh -G` is an option that is set, and not a default key that doesn't exist."""
    key, _, value = line.partition(" ")
    if key == "identityfile":
        return "%" in value or Path(value).expanduser().is_file()  # paramiko fills in the tokens
    return not (key in ("proxyjump", "proxycommand", "connecttimeout") and value == "none")
