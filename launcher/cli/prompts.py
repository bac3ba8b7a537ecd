"""Ask for the password and the passphrases that logins need, once for all hosts, before any is contacted."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from launcher.errors import UsageError
from launcher.hosts.host import Host
from launcher.transports.settings import TransportSettings

if TYPE_CHECKING:
    from launcher.transports.ssh.key_files import Secrets

_TRIES = 3  # as many as ssh allows


def ask_secrets(settings: TransportSettings, hosts: Sequence[Host]) -> Secrets:
    """Ask for the password of --ask-password, and for the passphrases of keys that no agent has.

    Without a terminal, --ask-password is an error, and encrypted keys are left to the login.
    """
    from launcher.transports.ssh.fabric import FabricTransport
    from launcher.transports.ssh.key_files import Secrets

    if not sys.stdin.isatty():
        if settings.ask_password:
            raise UsageError("--ask-password needs a terminal", "without a terminal, log in with a key")
        return Secrets()
    secrets = Secrets(_ask("password for all hosts") if settings.ask_password else None)
    for path in FabricTransport(replace(settings, secrets=secrets)).locked_keys(hosts):
        for _ in range(_TRIES):
            passphrase = _ask(f"passphrase of {path} (Enter to skip)")
            if not passphrase or secrets.unlock(path, passphrase):
                break
            click.echo("launch: wrong passphrase", err=True)
    return secrets


def _ask(what: str) -> str:
    try:
        return getpass.getpass(f"launch: {what}: ")
    except EOFError:
        return ""
