"""The user's settings for logins over SSH, the same for every transport that uses SSH."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.transports.ssh.identities import Secrets  # imports paramiko, which takes its time


@dataclass(frozen=True, slots=True)
class SshSettings:
    """The values of `--ssh-config` and the other SSH options, and callbacks for hosts that may need no login."""

    ssh_config: Path | None = None  # instead of the user's and the system's files
    accept_new_host_keys: bool = False  # record the key of a host that known_hosts doesn't have
    may_boot: bool = False  # wait for a host that isn't up yet, for as long as Transport.open may take
    secrets: Secrets | None = None  # typed once for all hosts; the ssh program asks for its own
    on_local: Callable[[str], None] | None = None  # gets each host that is this machine, which needs no SSH
    # Gets each host that has this machine's address but may be another machine: its name, why, and the fix.
    on_doubt: Callable[[str, str, str], None] | None = None


def check_config_file(path: Path | None) -> None:
    """Raise UsageError if `--ssh-config` names a file that isn't there."""
    if path is not None and not path.is_file():
        raise UsageError(f"{path}: no such file", "name an OpenSSH client configuration with --ssh-config")
