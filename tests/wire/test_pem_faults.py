"""Damaged certificates and keys: the error names the file and the line."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from conf.errors import UserError
from tests.access.identity.authorities import Authority
from wire.links.pem_faults import damaged_line
from wire.links.tls import load_authority, load_certificate

PEM = serialization.Encoding.PEM
ONE, TWO = (Authority(name).certificate.public_bytes(PEM) for name in ("One", "Two"))
LINES = ONE.count(b"\n")


def test_damaged_line_of_valid_certificates_is_zero() -> None:
    for content in (b"", ONE, ONE + TWO, b"a comment\n" + ONE + b"\0" + TWO.replace(b"\n", b"\r\n")):
        assert damaged_line(content) == 0


@pytest.mark.parametrize(
    "second", [TWO[:200], TWO[:-30], TWO.replace(b"M", b"\0", 3), TWO.replace(b"\nMII", b"\n!II"), TWO[:300] + ONE]
)
def test_damaged_line_is_that_of_the_damaged_certificate(tmp_path: Path, second: bytes) -> None:
    """With the second of two authorities damaged, neither is loaded, and the first line of the damaged one is named."""
    path = tmp_path / "ca.pem"
    path.write_bytes(b"# authorities\n" + ONE + second)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(UserError, match=rf"^certificate authority {path}:{LINES + 2}: is not readable as PEM"):
        load_authority(context, path)


def test_key_with_a_password_is_refused(tmp_path: Path) -> None:
    """A prompt would block a start at a terminal, and stop the node at a reload."""
    authority = Authority()
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(authority.client().public_bytes(PEM))
    key.touch(0o600)
    key.write_bytes(
        authority.client_key.private_bytes(
            PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
        )
    )
    with pytest.raises(UserError, match=rf"^key {key} has a password"):
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
    key.write_bytes(key.read_bytes()[:60])
    with pytest.raises(UserError, match=rf"^key {key} is not readable as PEM"):
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
