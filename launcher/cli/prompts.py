"""What somebody must type for logins: a password, passphrases; once for all hosts, before any is contacted."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from launcher.cli.option_groups import TransportOptions
from launcher.errors import UsageError
from launcher.hosts.host import Host

if TYPE_CHECKING:
    from launcher.transports.ssh.key_files import Secrets

_TRIES = 3  # as ssh has it


def ask_secrets(options: TransportOptions, hosts: Sequence[Host]) -> Secrets:
    """Ask for the password that --ask-password wants, and for the passphrases of keys that no agent has.

    On a terminal alone: elsewhere the one is an error, and the other left to the login.
    """
    from launcher.transports.ssh.fabric import FabricTransport
    from launcher.transports.ssh.key_files import Secrets
    from launcher.transports.ssh.settings import SshSettings

    if not sys.stdin.isatty():
        if options.ask_password:
            raise UsageError("--ask-password needs a terminal", "from a pipe or a job log in with a key")
        return Secrets()
    secrets = Secrets(_ask("password for all hosts") if options.ask_password else None)
    for path in FabricTransport(SshSettings(options.ssh_config, secrets=secrets)).locked_keys(hosts):
        for _ in range(_TRIES):
            passphrase = _ask(f"passphrase of {path} (Enter: do without)")
            if not passphrase or secrets.unlock(path, passphrase):
                break
            click.echo("launch: that is not its passphrase", err=True)
    return secrets


def _ask(what: str) -> str:
    try:
        return getpass.getpass(f"launch: {what}: ")
    except EOFError:
        return ""
