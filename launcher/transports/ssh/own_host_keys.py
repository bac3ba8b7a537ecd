"""This machine's own host keys, compared with those that known_hosts has for a name with this machine's address.

DNS, /etc/hosts or a forwarded port can make another machine's name lead here. SSH would detect that by the host key,
so `launch` must detect it too before it starts a command here without SSH.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.transports.ssh.failures import Place
from launcher.transports.ssh.known_hosts import AUTHORITY, REVOKED, KnownKey
from launcher.transports.ssh.known_hosts_file import KnownHostsFile
from launcher.transports.ssh.known_hosts_paths import find_files, has_tokens

_FOLDER = Path("/etc/ssh")
# A line of sshd_config, if the user may read that file: some systems show it to root alone.
_NAMED_FILE = re.compile(r'^[ \t]*host(key|certificate)[ \t=]+"?([^"\n]+?)"?[ \t]*$', re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a host may be another machine; `fix` is the remedy if the keys could not be compared."""

    text: str
    fix: str = ""


_BY_COMMAND = Objection(
    "KnownHostsCommand may have a different host key for it",
    "name its known_hosts file with UserKnownHostsFile in ssh_config, and set KnownHostsCommand none for it",
)
_NO_TOKENS = "write that path in ssh_config without ${} and %C, or any % for GlobalKnownHostsFile"
_OTHER_KEY = Objection("known_hosts has a different host key for it")
_NO_KEY = Objection(
    "this machine has no host key to compare",
    "if it is this machine, put its public host keys where sshd keeps them: /etc/ssh/ssh_host_*_key.pub",
)


def find_objection(place: Place, settings: Mapping[str, str]) -> Objection | None:
    """Return why a host may be another machine although its address is this one's; None if no key contradicts that.

    place, settings: the destination of its login, and the options that ssh_config sets for it.
    """
    if settings.get("knownhostscommand", "none") != "none":
        return _BY_COMMAND
    own, others = find_files(settings, place)
    unclear = next(filter(has_tokens, own + others), None)
    if unclear is not None:
        return Objection(f"{unclear} may have a different host key for it", _NO_TOKENS)
    name = place.known_name
    lines = [line for path in own + others for line in KnownHostsFile.read(path).keys.about(name)]
    if all(line.marker == REVOKED for line in lines):
        return None
    return _compare(name, lines)


def _compare(name: str, lines: Iterable[KnownKey]) -> Objection | None:
    shown = list(_read_own())
    keys = {blob for _, blob in shown}
    signers: set[bytes | None] = set()
    if any(line.marker == AUTHORITY for line in lines):
        from launcher.transports.ssh.host_certificates import read_signer  # needs 50 ms, and few have an authority

        signers = {read_signer(blob, name) for kind, blob in shown if "-cert-" in kind}
    revoked = {line.blob for line in lines if line.marker == REVOKED}
    for line in lines:
        if line.marker != REVOKED and line.blob in (signers if line.marker == AUTHORITY else keys) - revoked:
            return None
    return _OTHER_KEY if shown else _NO_KEY


def _read_own() -> Iterator[tuple[str, bytes]]:
    """Yield type and content of this machine's host keys and certificates: sshd's default ones and sshd_config's."""
    for path in _find_files():
        words = _text(path).split()
        with contextlib.suppress(ValueError):
            if len(words) > 1:
                yield words[0], base64.b64decode(words[1], validate=True)


def _find_files() -> Iterator[Path]:
    yield from _FOLDER.glob("ssh_host_*_key*.pub")
    for config in (_FOLDER / "sshd_config", *_FOLDER.glob("sshd_config.d/*.conf")):
        for kind, value in _NAMED_FILE.findall(_text(config)):
            is_private = kind.lower() == "key" and not value.endswith(".pub")
            yield Path(f"{value}.pub" if is_private else value)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
