"""Certificates of hosts: which key signed one, and whether it is valid for a host now."""

from __future__ import annotations

import base64
import time

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from launcher.transports.ssh.known_hosts import matches

_OPENSSH = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def read_signer(certificate: bytes, host: str) -> bytes | None:
    """Return the public key that signed a host's certificate; None if the certificate isn't valid for the host now."""
    kind = certificate[4 : 4 + int.from_bytes(certificate[:4], "big")].decode("utf-8", "replace")
    try:
        identity = serialization.load_ssh_public_identity(f"{kind} {base64.b64encode(certificate).decode()}".encode())
        assert isinstance(identity, serialization.SSHCertificate)  # by its type
        identity.verify_cert_signature()
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        return None
    principals = [name.decode("utf-8", "replace").lower() for name in identity.valid_principals]
    is_good = (
        identity.type is serialization.SSHCertificateType.HOST
        and identity.valid_after <= time.time() < identity.valid_before
        and not identity.critical_options
        and (not principals or any(matches(host.lower(), principal) for principal in principals))
    )
    return base64.b64decode(identity.signature_key().public_bytes(*_OPENSSH).split()[1]) if is_good else None
