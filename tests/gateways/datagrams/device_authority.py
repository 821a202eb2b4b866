"""Certificates of devices and datagram nodes for DTLS tests."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateways.datagrams.dtls import DtlsFiles

__all__ = ["LOOPBACK", "Authority"]

LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, folder: Path, name: str = "devices") -> None:
        self.folder, self.key, self.name = folder, ec.generate_private_key(ec.SECP256R1()), name
        own = self._builder([name], name, self.key)
        self.path = folder / f"{name}.pem"
        made = own.add_extension(x509.BasicConstraints(True, None), True).sign(self.key, hashes.SHA256())
        self.path.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def files(
        self,
        names: Sequence[str],
        alternatives: Sequence[x509.GeneralName] = (),
        trusted: Path | None = None,
        raw: bytes = b"",
    ) -> DtlsFiles:
        """Return the files of a peer with these common and alternative names; ``raw`` are the latter in DER."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(names, self.name, key)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        if raw:
            oid = x509.SubjectAlternativeName.oid
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, raw), False)
        stem = self.folder / ("-".join(names) or "unnamed")
        made = builder.sign(self.key, hashes.SHA256())
        stem.with_suffix(".crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        stem.with_suffix(".key").write_bytes(pem)
        stem.with_suffix(".key").chmod(0o600)
        return DtlsFiles(stem.with_suffix(".crt"), stem.with_suffix(".key"), trusted or self.path)

    def _builder(self, names: Sequence[str], issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        builder = x509.CertificateBuilder().serial_number(x509.random_serial_number()).public_key(key.public_key())
        builder = builder.not_valid_before(now - day).not_valid_after(now + day)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        return builder.subject_name(subject).issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
