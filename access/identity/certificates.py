"""Names in client certificates: extracts them, and the step that derives user and client ID from them.

TLS verifies chain, purpose and dates; ``revocation.py`` and ``ocsp.py`` check revocation. A certificate that names a
node or an operator is never a client's, in any of its names.
"""

import enum
import hashlib
from collections.abc import Collection, Mapping
from typing import TypeAlias

from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID

from access.identity.principal import (
    Allow,
    Answer,
    CertificateFacts,
    Credentials,
    Deny,
    Failed,
    Job,
    Pass,
    Principal,
    TimePoint,
    name_fault,
)
from mqtt.reasons import ReasonCode

__all__ = ["CertificateStep", "NameKind", "NameUse", "certificate_facts", "issuer_digest"]

# The scheme of nodes and operators, in each encoding of certificate names.
CLUSTER_SCHEMES = tuple("stratamq:".encode(encoding) for encoding in ("ascii", "utf-16-be", "utf-32-be"))
CERTIFICATE_BYTES_MAX = 65_536

Names: TypeAlias = Mapping[str, tuple[str, ...]]


class NameKind(enum.StrEnum):
    """Part of a certificate that names its client."""

    CN = "cn"
    SAN_DNS = "san_dns"
    SAN_URI = "san_uri"
    SAN_EMAIL = "san_email"
    DN = "dn"
    FINGERPRINT = "fingerprint"


ALL_KINDS = tuple(NameKind)
ALTERNATIVE = frozenset((NameKind.SAN_DNS, NameKind.SAN_URI, NameKind.SAN_EMAIL))


class NameUse(enum.StrEnum):
    """Use of a certificate's name."""

    USER = "user"
    CLIENT_ID = "client_id"
    BOTH = "both"


def certificate_facts(der: bytes, kinds: Collection[NameKind] = ALL_KINDS, ocsp: bool = True) -> CertificateFacts:
    """Return the facts of a certificate that TLS verified.

    Args:
        der: The certificate.
        kinds: Names that the listener's steps need, besides CN, which rules need. Each kind costs some microseconds.
        ocsp: Also read the issuer's key identifier, which OCSP needs for authorities of equal names.

    Raises:
        ValueError: It is unreadable, too long, or has an ambiguous subject.
    """
    if len(der) > CERTIFICATE_BYTES_MAX:
        raise ValueError(f"a certificate of {len(der)} bytes")
    try:
        certificate = x509.load_der_x509_certificate(der)
        names, authority_key = _names(certificate, kinds, ocsp)
        expires_at_utc = certificate.not_valid_after_utc.timestamp()
        issuer = issuer_digest(certificate.issuer)
        serial = certificate.serial_number
        if serial <= 0:  # RFC 5280 section 4.1.2.2; "-5" could never be in a list
            raise ValueError("serial")
    except Exception as error:  # the library documents no exceptions; the bytes are a client's
        raise ValueError(f"unreadable certificate: {type(error).__name__}") from None
    return CertificateFacts(
        names,
        f"{serial:x}",
        hashlib.sha256(der).hexdigest(),
        issuer,
        authority_key,
        _is_of_cluster(der),
        expires_at_utc=expires_at_utc,
    )


def issuer_digest(name: x509.Name) -> str:
    """Return the key that certificates and CRLs of one issuer share."""
    return hashlib.sha256(name.public_bytes()).hexdigest()


def _names(certificate: x509.Certificate, kinds: Collection[NameKind], ocsp: bool) -> tuple[Names, bytes]:
    subject = certificate.subject
    names: dict[str, tuple[str, ...]] = {
        NameKind.CN: tuple(_text(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)),
    }
    if NameKind.DN in kinds:
        names[NameKind.DN] = _distinguished(subject)
    authority_key = b""
    if not ocsp and ALTERNATIVE.isdisjoint(kinds):
        return names, authority_key
    for extension in certificate.extensions:
        if extension.oid == ExtensionOID.SUBJECT_ALTERNATIVE_NAME:
            found = extension.value
            assert isinstance(found, x509.SubjectAlternativeName)
            names[NameKind.SAN_DNS] = tuple(found.get_values_for_type(x509.DNSName))
            names[NameKind.SAN_URI] = tuple(found.get_values_for_type(x509.UniformResourceIdentifier))
            names[NameKind.SAN_EMAIL] = tuple(found.get_values_for_type(x509.RFC822Name))
        elif extension.oid == ExtensionOID.AUTHORITY_KEY_IDENTIFIER:
            assert isinstance(extension.value, x509.AuthorityKeyIdentifier)
            authority_key = extension.value.key_identifier or b""
    return names, authority_key


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else ""  # a bit string: invalid, and refused like an empty name


def _distinguished(subject: x509.Name) -> tuple[str, ...]:
    """Return the subject in RFC 4514 form; "" if a part is invalid, because escapes would hide that."""
    if any(name_fault(_text(part.value)) for part in subject):
        return ("",)
    return (subject.rfc4514_string(),)


def _is_of_cluster(der: bytes) -> bool:
    """Return whether the cluster's scheme occurs anywhere in a certificate, in any letter case.

    Names are contained verbatim in the bytes, so the search covers kinds that no listener reads.
    """
    small = der.lower()
    return any(scheme in small for scheme in CLUSTER_SCHEMES)


class CertificateStep:
    """The step ``certificate``.

    Args:
        kind: The part with the client's name.
        use: The meaning of the name. If it is only a client ID, the user is empty, as without a name.
    """

    name = "certificate"
    methods: tuple[str, ...] = ()

    def __init__(self, kind: NameKind, use: NameUse = NameUse.USER) -> None:
        self._kind = kind
        self._use = use

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        """Allow the client of the certificate until its expiry; TLS has verified the certificate."""
        del moment
        facts = credentials.certificate
        if facts is None:
            return Pass()
        if facts.of_cluster:
            return Deny(ReasonCode.NOT_AUTHORIZED, "certificate of a node or an operator")
        values = (facts.fingerprint,) if self._kind == NameKind.FINGERPRINT else facts.names.get(self._kind, ())
        if len(values) != 1:
            return Deny(ReasonCode.NOT_AUTHORIZED, f"certificate with {len(values)} names of kind {self._kind}")
        fault = name_fault(values[0])
        if not fault and self._kind == NameKind.SAN_DNS and "*" in values[0]:
            fault = "is a wildcard"
        if fault:
            return Deny(ReasonCode.NOT_AUTHORIZED, f"certificate whose {self._kind} {fault}")
        common = facts.names.get(NameKind.CN, ())
        return Allow(
            Principal(
                values[0] if self._use != NameUse.CLIENT_ID else "",
                self.name,
                values[0] if self._use != NameUse.USER else credentials.client_id,
                expires_at_utc=facts.expires_at_utc,
                serial=facts.serial,
                fingerprint=facts.fingerprint,
                issuer=facts.issuer,
                common_name=common[0] if len(common) == 1 and not name_fault(common[0]) else "",
            )
        )

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Fail: the step requests no job."""
        del credentials, job, result, moment
        return Failed("certificate: a result that nobody asked for")
