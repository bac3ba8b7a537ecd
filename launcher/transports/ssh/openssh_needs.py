"""What only ssh itself can do of what a login needs, found before connecting: such a host is not reached by Fabric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import paramiko

from launcher.transports.ssh.host_keys import KnownHosts
from launcher.transports.ssh.identities import Login, Secrets, open_agent, read_public
from launcher.transports.ssh.known_hosts import find_unclear
from launcher.transports.ssh.openssh_config import HostConfig, is_file

_CERTIFICATE = "-cert-v01@openssh.com"
_IN_A_TOKEN = "sk-"  # how the type of a FIDO key begins
_OPTIONS = (
    "AddressFamily", "BindAddress", "BindInterface", "CertificateFile", "HostbasedAuthentication",
    "KnownHostsCommand", "NoHostAuthenticationForLocalhost", "PKCS11Provider", "ProxyUseFdpass", "RevokedHostKeys",
    "VerifyHostKeyDNS",
)  # fmt: skip
_DEFAULTS = ("none", "no", "false", "any")  # of these options


def find_need(hop: HostConfig, settings: Mapping[str, Any], known_hosts: KnownHosts, *, with_keys: bool) -> str:
    """Return what of a login to a hop only ssh can do; an empty text if there is nothing.

    settings: those of the hop, without an agent that doesn't answer; with_keys: look at the user's keys as well.
    """
    return next(_find_needs(hop, settings, known_hosts, with_keys=with_keys), "")


def _find_needs(
    hop: HostConfig, settings: Mapping[str, Any], known_hosts: KnownHosts, *, with_keys: bool
) -> Iterator[str]:
    for option in _OPTIONS:
        if settings.get(option.lower(), "none") not in _DEFAULTS:
            yield f"{option} in ssh_config"
    if hop.has_odd_tokens:
        yield "a token in ssh_config that only ssh expands"
    if unclear := find_unclear(settings):
        yield f"the known_hosts file {unclear}"
        return
    for line in (line for lines in known_hosts.lines_about(hop.place, settings) for line in lines):
        if line.marker is not None:
            yield f"a {line.marker} line in known_hosts"
    if with_keys and settings.get("pubkeyauthentication") not in ("no", "false"):
        yield from _find_keys(settings)


def _find_keys(settings: Mapping[str, Any]) -> Iterator[str]:
    with open_agent(settings.get("identityagent")) as agent_keys:
        if any(_CERTIFICATE in key.get_name() for key in agent_keys):
            yield "a certificate in the agent"
        held = {key.blob for key in agent_keys}
    for path in Login("", settings, Secrets()).paths:
        public = read_public(path)
        kind = paramiko.Message(public).get_text() if public is not None else ""
        beside = (path.with_name(f"{path.name}{end}") for end in ("-cert", "-cert.pub"))
        if _CERTIFICATE in kind or any(map(is_file, beside)):
            yield f"the certificate of {path}"
        if kind.startswith(_IN_A_TOKEN) and public not in held and is_file(path):
            yield f"the FIDO key {path}"
