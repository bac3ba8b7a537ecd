"""The secrets of a run: what the certificate promises, and what is never shown."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from launcher.transports.agents.credentials import Credentials, make_credentials, make_server_context


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    return make_credentials(3)


def test_the_certificate_is_valid_whatever_a_clock_says(credentials: Credentials) -> None:
    certificate = x509.load_pem_x509_certificate(credentials.certificate.encode())
    assert isinstance(key := certificate.public_key(), ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert (certificate.not_valid_before_utc.year, certificate.not_valid_after_utc.year) == (2000, 9999)
    assert credentials.fingerprint == certificate.fingerprint(hashes.SHA256()).hex()


def test_every_agent_has_its_own_token(credentials: Credentials) -> None:
    assert len({*credentials.tokens, *make_credentials(3).tokens}) == 6
    assert {len(token) for token in credentials.tokens} == {64}


def test_no_secret_is_printed(credentials: Credentials) -> None:
    for secret in (credentials.key, credentials.password, *credentials.tokens):
        assert secret not in repr(credentials)


def test_the_key_is_encrypted_and_no_file_is_left(
    credentials: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert credentials.key.startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_server_context(credentials)
    assert not list(tmp_path.iterdir())
