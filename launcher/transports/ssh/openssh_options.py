"""Options that every ssh of a run gets, whatever ssh_config sets: some settings suit only logins by hand."""

from __future__ import annotations

from collections.abc import Container

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


def later_options(known: Container[str]) -> dict[str, str]:
    """Return those options of OpenSSH 8.7 that this ssh knows; known: the lower-case names that `ssh -G` prints."""
    return {name: value for name, value in _LATER.items() if name.lower() in known}
