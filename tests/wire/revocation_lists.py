"""Revocation lists of a development authority, made with its key."""

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["revocation_list"]


def revocation_list(folder: Path, revoked: Iterable[Path] = (), days: tuple[float, float] = (-1, 1)) -> bytes:
    """Return a list in PEM.

    Args:
        folder: Of the authority.
        revoked: Certificates in it.
        days: Creation and expiry, in days from now.
    """
    issuer = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    made, stale = (now + datetime.timedelta(days=each) for each in days)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject).last_update(made).next_update(stale)
    for path in revoked:
        serial = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(made)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(cast("ec.EllipticCurvePrivateKey", key), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)
