"""The secrets of a run whose controller is dialed by agents: a certificate with its key, and one token per agent."""

from __future__ import annotations

import datetime
import hashlib
import secrets
import ssl
import tempfile
from dataclasses import dataclass, field

_NAME = "launch"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What proves the controller to the agents, and each agent to the controller. Valid for one run."""

    certificate: str  # PEM
    key: str = field(repr=False)  # PEM, encrypted with `password`
    password: str = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)  # by the index of the agent

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the certificate in DER, in hex: agents accept this certificate alone."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.certificate)).hexdigest()


def make_credentials(count: int) -> Credentials:
    """Return new credentials for so many agents; only the launch host needs the library for that.

    The certificate is valid from 2000 to 9999, since the clocks of the hosts may be wrong.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59))
        .sign(key, hashes.SHA256())
    )
    pem, password = serialization.Encoding.PEM, secrets.token_hex(32)
    encryption = serialization.BestAvailableEncryption(password.encode())
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption).decode()
    tokens = tuple(secrets.token_hex(32) for _ in range(count))
    return Credentials(certificate.public_bytes(pem).decode(), private, password, tokens)


def make_server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return TLS's settings for the controller.

    OpenSSL's function reads a key from a file only. So the key is encrypted in a file that only this user can read,
    and which is removed before this returns.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # no agent resumes a session
    with tempfile.NamedTemporaryFile("w", encoding="ascii", prefix="launch-") as file:
        file.write(credentials.certificate + credentials.key)
        file.flush()
        context.load_cert_chain(file.name, password=credentials.password)
    return context
