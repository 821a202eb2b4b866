"""Test authorities: certificates, lists and OCSP responses, created by the library that also reads real ones."""

import datetime
from collections.abc import Iterable, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from access.identity.certificates import certificate_facts
from access.identity.principal import CertificateFacts

__all__ = ["UTC", "Authority", "der", "facts_of"]

NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
UTC = NOW.timestamp()
DAY = datetime.timedelta(days=1)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def facts_of(certificate: x509.Certificate) -> CertificateFacts:
    return certificate_facts(der(certificate))


class Authority:
    """An authority with its own key, the same in each process if ``secret`` is given."""

    def __init__(
        self, name: str = "Devices", parent: "Authority | None" = None, crl_sign: bool = True, secret: int = 0
    ) -> None:
        self.key = ec.derive_private_key(secret, ec.SECP256R1()) if secret else ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = parent or self
        usage = x509.KeyUsage(True, False, False, False, False, True, crl_sign, False, False)
        self.certificate = (
            self.builder(self.name, signer.name, 1 if parent is None else x509.random_serial_number())
            .public_key(self.key.public_key())
            .add_extension(x509.BasicConstraints(True, None), True)
            .add_extension(usage, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), False)
            .sign(signer.key, hashes.SHA256())
        )

    @staticmethod
    def builder(subject: x509.Name, issuer: x509.Name, serial: int) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).serial_number(serial)
        return builder.not_valid_before(NOW - 30 * DAY).not_valid_after(NOW + 300 * DAY)

    def client(
        self,
        names: Iterable[str] = ("device-1",),
        alternatives: Sequence[x509.GeneralName] = (),
        serial: int | None = None,
        responder: bool = False,
    ) -> x509.Certificate:
        """Return a client's certificate with these common names and alternative names."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        builder = self.builder(subject, self.name, serial or x509.random_serial_number())
        self.client_key = ec.generate_private_key(ec.SECP256R1())
        builder = builder.public_key(self.client_key.public_key())
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        use = ExtendedKeyUsageOID.OCSP_SIGNING if responder else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False
        )
        return builder.sign(self.key, hashes.SHA256())

    def crl(
        self,
        serials: Iterable[int] = (),
        days: tuple[float, float] = (-1, 1),
        key: ec.EllipticCurvePrivateKey | None = None,
        part: x509.ExtensionType | None = None,
    ) -> bytes:
        """Return a list in PEM; ``part`` is added as a critical extension."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(NOW + days[0] * DAY).next_update(NOW + days[1] * DAY)
        for serial in serials:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW - DAY)
            builder = builder.add_revoked_certificate(revoked.build())
        if part is not None:
            builder = builder.add_extension(part, True)
        return builder.sign(key or self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def ocsp_answer(
        self,
        certificate: x509.Certificate,
        status: ocsp.OCSPCertStatus = ocsp.OCSPCertStatus.GOOD,
        days: tuple[float, float | None] = (-1, 1),
        responder: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
    ) -> bytes:
        """Return a response signed by the authority or by a responder."""
        signer, key = responder or (self.certificate, self.key)
        revoked_at = NOW - DAY if status == ocsp.OCSPCertStatus.REVOKED else None
        builder = ocsp.OCSPResponseBuilder().add_response(
            certificate,
            self.certificate,
            hashes.SHA1(),
            status,
            NOW + days[0] * DAY,
            None if days[1] is None else NOW + days[1] * DAY,
            revoked_at,
            None,
        )
        builder = builder.responder_id(ocsp.OCSPResponderEncoding.HASH, signer)
        if responder is not None:
            builder = builder.certificates([signer])
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
