"""What only ssh itself can do of what a login needs, found before connecting: such a host is not reached by Fabric."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.transports.ssh.host_keys import KnownHosts
from launcher.transports.ssh.identities import Login, Secrets, open_agent, read_public
from launcher.transports.ssh.known_hosts import find_unclear
from launcher.transports.ssh.openssh_config import HostConfig

_CERTIFICATE = "-cert-v01@openssh.com"
_OPTIONS = {
    "certificatefile": "CertificateFile",
    "knownhostscommand": "KnownHostsCommand",
    "pkcs11provider": "PKCS11Provider",
    "revokedhostkeys": "RevokedHostKeys",
}
_ANSWER_S = 5.0


def find_need(hop: HostConfig, settings: Mapping[str, Any], known_hosts: KnownHosts, secrets: Secrets) -> str:
    """Return what of a login to a hop only ssh can do; an empty text if there is nothing.

    settings: those of the hop, without an agent that doesn't answer.
    """
    return next(_find_needs(hop, settings, known_hosts, secrets), "")


def _find_needs(
    hop: HostConfig, settings: Mapping[str, Any], known_hosts: KnownHosts, secrets: Secrets
) -> Iterator[str]:
    for name, spelt in _OPTIONS.items():
        if hop.option(name) is not None:
            yield f"{spelt} in ssh_config"
    if hop.option("hostbasedauthentication") == "yes":
        yield "HostbasedAuthentication in ssh_config"
    if hop.has_odd_tokens:
        yield "a token in ssh_config that only ssh expands"
    if unclear := find_unclear(settings):
        yield f"the known_hosts file {unclear}"
        return
    for line in (line for lines in known_hosts.lines_about(hop.place, settings) for line in lines):
        if line.marker is not None:
            yield f"a {line.marker} line in known_hosts"
    if secrets.password is not None:  # then nothing else is needed to log in
        return
    if settings.get("pubkeyauthentication") not in ("no", "false"):
        yield from _find_keys(settings, secrets)
    if hop.option("gssapiauthentication") == "yes" and _has_ticket():
        yield "a Kerberos ticket"


def _find_keys(settings: Mapping[str, Any], secrets: Secrets) -> Iterator[str]:
    login = Login("", settings, secrets)
    for path in login.named:
        if path.with_name(f"{path.name}-cert.pub").is_file():
            yield f"the certificate of {path}"
    with open_agent(settings.get("identityagent")) as agent_keys:
        if any(_CERTIFICATE in key.get_name() for key in agent_keys):
            yield "a certificate in the agent"
        held = {key.blob for key in agent_keys}
    for path in login.files:
        if read_public(path) not in held and not secrets.is_usable(path):
            yield f"the key {path}"


@functools.cache
def _has_ticket() -> bool:
    klist = shutil.which("klist")
    try:
        return klist is not None and subprocess.run([klist, "-s"], timeout=_ANSWER_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
