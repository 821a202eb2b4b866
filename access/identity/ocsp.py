"""Revocation by OCSP as a step of the chain: off, soft or require; the shell queries the responder.

The step never allows a client: it refuses a revoked certificate and passes others to the next step. The responder's URL
is a setting, never read from the certificate. Source: RFC 6960; no nonce, as in RFC 5019.
"""

import enum
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID

from access.identity.certificates import issuer_digest
from access.identity.principal import Answer, CertificateFacts, Credentials, Deny, Failed, Job, Pass, TimePoint, Wait
from mqtt.reasons import ReasonCode

__all__ = ["OcspJob", "OcspMode", "OcspReply", "OcspStep"]

ANSWER_BYTES_MAX = 65_536
CACHED_MAX = 10_000  # certificates; the least recently queried one is evicted
CLOCK_LEEWAY_S = 300.0
WEAK = (hashes.MD5, hashes.SHA1)


class OcspMode(enum.StrEnum):
    """Effect of a missing or unusable response: OCSP is off, the client passes, or is refused."""

    OFF = "off"
    SOFT = "soft"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class OcspJob:
    """Post the request to the responder; the result is an ``OcspReply``."""

    request: bytes
    issuer: str
    serial: str
    kind: str = field(default="ocsp", init=False)


@dataclass(frozen=True, slots=True)
class OcspReply:
    """Body of the responder's response, empty if there was none."""

    body: bytes


class OcspStep:
    """The step ``ocsp``, before ``certificate``.

    Args:
        mode: Effect of a missing response.
        authorities: Certificates that sign clients of the listener.
        unanswered: Called for each certificate that passed or failed without a usable response.
    """

    name = "ocsp"
    methods: tuple[str, ...] = ()

    def __init__(
        self, mode: OcspMode, authorities: Sequence[x509.Certificate], unanswered: Callable[[], None] = lambda: None
    ) -> None:
        self._mode = mode
        self._unanswered = unanswered
        self._authorities: dict[str, list[x509.Certificate]] = {}
        for each in authorities:
            self._authorities.setdefault(issuer_digest(each.subject), []).append(each)
        self._cached: OrderedDict[tuple[str, str], tuple[bool, float]] = OrderedDict()

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        """Use the cached response, or request one."""
        facts = credentials.certificate
        if facts is None or self._mode == OcspMode.OFF:
            return Pass()
        key = (facts.issuer, facts.serial)
        cached = self._cached.get(key)
        if cached is not None:
            good, until_utc = cached
            if moment.utc < until_utc:
                return (
                    Pass()
                    if good
                    else Deny(ReasonCode.NOT_AUTHORIZED, "certificate revoked, or unknown to its authority (OCSP)")
                )
            del self._cached[key]
        issuer = self._issuer(facts)
        if issuer is None:
            return self._without("no authority of its issuer's name")
        builder = ocsp.OCSPRequestBuilder().add_certificate_by_hash(
            *_issuer_hashes(issuer), int(facts.serial, 16), SHA1
        )
        return Wait(OcspJob(builder.build().public_bytes(serialization.Encoding.DER), facts.issuer, facts.serial))

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Evaluate the responder's response and cache it until its next update."""
        facts = credentials.certificate
        issuer = self._issuer(facts) if facts is not None else None
        if facts is None or issuer is None or not isinstance(job, OcspJob) or not isinstance(result, OcspReply):
            return Failed("ocsp: a result that nobody asked for")
        try:
            good, until_utc = _evaluate(result.body, issuer, int(facts.serial, 16), moment.utc)
        except Exception as error:  # the library documents ValueError only; the bytes are a responder's
            return self._without(str(error) if isinstance(error, ValueError) else type(error).__name__)
        self._cached[facts.issuer, facts.serial] = (good, until_utc)
        self._cached.move_to_end((facts.issuer, facts.serial))
        if len(self._cached) > CACHED_MAX:
            self._cached.popitem(last=False)
        return (
            Pass()
            if good
            else Deny(ReasonCode.NOT_AUTHORIZED, "certificate revoked, or unknown to its authority (OCSP)")
        )

    def _without(self, reason: str) -> Answer:
        self._unanswered()
        return Pass() if self._mode == OcspMode.SOFT else Failed(f"ocsp: {reason}")

    def _issuer(self, facts: CertificateFacts) -> x509.Certificate | None:
        """Return the signing authority; among equal names, the one with the key that the certificate names."""
        found = self._authorities.get(facts.issuer, [])
        if len(found) > 1:
            found = [each for each in found if _key_identifier(each) == facts.authority_key]
        return found[0] if len(found) == 1 else None


SHA1 = hashes.SHA1()  # names the issuer in request and response; no signature depends on it


def _key_identifier(certificate: x509.Certificate) -> bytes:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound:
        return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest


def _issuer_hashes(issuer: x509.Certificate) -> tuple[bytes, bytes]:
    name = hashes.Hash(SHA1)
    name.update(issuer.subject.public_bytes())
    return name.finalize(), x509.SubjectKeyIdentifier.from_public_key(issuer.public_key()).digest


def _evaluate(body: bytes, issuer: x509.Certificate, serial: int, utc: float) -> tuple[bool, float]:
    """Return whether the certificate is good, and the response's expiry.

    Raises:
        ValueError: The response is unusable. Other exceptions of the library are possible.
    """
    if not 0 < len(body) <= ANSWER_BYTES_MAX:
        raise ValueError("no answer" if not body else f"an answer of {len(body)} bytes")
    answer = ocsp.load_der_ocsp_response(body)
    if answer.response_status != ocsp.OCSPResponseStatus.SUCCESSFUL:
        raise ValueError(f"the responder says {answer.response_status.name}")
    if not _is_signed(answer, issuer, utc):
        raise ValueError("the answer is not signed by the issuer or its responder")
    name_hash, key_hash = _issuer_hashes(issuer)
    found = [
        each
        for each in answer.responses
        if each.serial_number == serial
        and isinstance(each.hash_algorithm, hashes.SHA1)
        and (each.issuer_name_hash, each.issuer_key_hash) == (name_hash, key_hash)
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} answers for the certificate")
    single = found[0]
    if single.next_update_utc is None:
        raise ValueError("the answer has no next update")
    if single.this_update_utc.timestamp() > utc + CLOCK_LEEWAY_S or not utc < single.next_update_utc.timestamp():
        raise ValueError("the answer is stale or of the future")
    return single.certificate_status == ocsp.OCSPCertStatus.GOOD, single.next_update_utc.timestamp()


def _is_signed(answer: ocsp.OCSPResponse, issuer: x509.Certificate, utc: float) -> bool:
    """Return whether the signature is the issuer's, or that of a responder that the issuer signed for OCSP."""
    algorithm = answer.signature_hash_algorithm
    if isinstance(algorithm, WEAK):
        return False
    return any(
        _verifies(signer, answer.signature, answer.tbs_response_bytes, algorithm)
        for signer in (issuer, *(each for each in answer.certificates[:4] if _may_respond(each, issuer, utc)))
    )


def _may_respond(responder: x509.Certificate, issuer: x509.Certificate, utc: float) -> bool:
    try:
        responder.verify_directly_issued_by(issuer)
        usage = responder.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except Exception:  # not of this issuer, or without a use
        return False
    dates = responder.not_valid_before_utc.timestamp(), responder.not_valid_after_utc.timestamp()
    return ExtendedKeyUsageOID.OCSP_SIGNING in usage and dates[0] <= utc + CLOCK_LEEWAY_S and utc < dates[1]


def _verifies(
    signer: x509.Certificate, signature: bytes, signed: bytes, algorithm: hashes.HashAlgorithm | None
) -> bool:
    key = signer.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey) and algorithm is not None:
            key.verify(signature, signed, padding.PKCS1v15(), algorithm)
        elif isinstance(key, ec.EllipticCurvePublicKey) and algorithm is not None:
            key.verify(signature, signed, ec.ECDSA(algorithm))
        elif isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
            key.verify(signature, signed)
        else:
            return False
    except Exception:  # InvalidSignature, or an unsupported algorithm
        return False
    return True
