"""What each of our ssh is told, whatever ssh_config says: what is there for one's own logins is not for a run."""

from __future__ import annotations

from collections.abc import Container

# A host could log in elsewhere with a forwarded agent's keys for as long as the run lasts, or watch the screen.
_FORWARDED = {"ForwardAgent": "no", "ForwardX11": "no", "ClearAllForwardings": "yes", "Tunnel": "no"}
OPTIONS = {
    "BatchMode": "yes",  # a question would wait for nobody
    **_FORWARDED,
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "UpdateHostKeys": "no",  # puts a new known_hosts in the old one's place: of many at once some lose others' keys
}
# An ssh before 8.7 takes neither of these for an option.
_LATER = {"StdinNull": "no", "SessionType": "default"}


def later_options(known: Container[str]) -> dict[str, str]:
    """Return those of the later options that this ssh knows; known: the names in what `ssh -G` prints."""
    return {name: value for name, value in _LATER.items() if name.lower() in known}
