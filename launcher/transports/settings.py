"""Everything that a transport may need when it is opened, the same value for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import UsageError
from launcher.job.job import Timeouts
from launcher.job.slurm_allocation import Allocation

if TYPE_CHECKING:
    from launcher.transports.ssh.identities import Secrets  # imports paramiko, which takes its time


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """The options by which the hosts are reached, and what `launch` has found out for them.

    Each transport uses what applies to it. The first values are those of the options of the same names; the others are
    known once the transport is chosen.
    """

    transport: str | None = None  # the one that the user wants; None: srun in a Slurm job, else fabric
    ssh_config: Path | None = None  # instead of the user's and the system's files
    ask_password: bool = False  # one for all hosts, see `secrets`
    is_unattended: bool = False  # only to hosts that are known, with keys that need no passphrase or agent
    may_boot: bool = False  # wait for a host that isn't up yet, for as long as Transport.open may take
    secrets: Secrets | None = None  # typed once for all hosts; the ssh program asks for its own
    say: Callable[[str], object] = lambda text: None  # gets what users must know of how a host is reached
    pythons: Sequence[str] = ()  # names or paths of Python on the hosts, in the order of trying
    variables: Mapping[str, str] = field(default_factory=dict)  # the environment of srun, pdsh and an unattended ssh
    silence_s: float = Timeouts().silence_s  # a host ends its ranks when it has not heard from `launch` for this long
    allocation: Allocation | None = None  # the Slurm job that `launch` runs in


def check_config_file(path: Path | None) -> None:
    """Raise UsageError if `--ssh-config` names a file that isn't there."""
    if path is not None and not path.is_file():
        raise UsageError(f"{path}: no such file", "name an OpenSSH client configuration with --ssh-config")
