"""Revocation by lists: combines CRL files into one set that is checked for each certificate.

Each list must be signed by an authority of the listener, current, and complete. A certificate is refused while the list
of its issuer is missing or stale. Reading a large list takes long: a thread of the shell reads, and the set is swapped.
Source: RFC 5280 section 5.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import CRLEntryExtensionOID, ExtensionOID

from access.files import AccessFileError, read_access_file
from access.identity.certificates import issuer_digest
from wire.links.pem_faults import damaged_line

__all__ = ["RevocationSet", "read_authorities", "read_crl_files", "revocation_set"]

CRL_BYTES_MAX = 16 << 20  # one file: about 400 000 serials
FILES_MAX = 64
SERIALS_MAX = 1_000_000  # of all files: about 80 MiB
AUTHORITY_BYTES_MAX = 4 << 20
CLOCK_LEEWAY_S = 300.0  # tolerated clock difference of an authority
PEM_LIST = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
WEAK = (hashes.MD5, hashes.SHA1)
# Extensions that do not change a list's meaning; any other critical one is refused, as RFC 5280 section 5.2 requires.
KNOWN = {ExtensionOID.AUTHORITY_KEY_IDENTIFIER, ExtensionOID.CRL_NUMBER, ExtensionOID.ISSUING_DISTRIBUTION_POINT}


@dataclass(frozen=True, slots=True)
class IssuerList:
    """Revoked certificates of one issuer, from all of its lists.

    Attributes:
        serials: Hexadecimal, as in ``CertificateFacts``.
        next_update_utc: Of the list that expires first.
        next_update_file: Name of that list.
        authority_revoked: The issuer's own certificate is revoked.
    """

    serials: frozenset[str]
    next_update_utc: float
    next_update_file: str
    authority_revoked: bool = False


class RevocationSet:
    """An immutable set of lists; a newer one replaces it."""

    def __init__(self, lists: Mapping[str, IssuerList]) -> None:
        self._lists = dict(lists)

    @property
    def next_update_utc(self) -> float:
        """The time at which the first list becomes stale; 0 without a list."""
        return min((each.next_update_utc for each in self._lists.values()), default=0.0)

    @property
    def revoked(self) -> int:
        """Number of certificates in the lists."""
        return sum(len(each.serials) for each in self._lists.values())

    def ends(self, issuer: str, serial: str) -> bool:
        """Return whether a certificate is revoked, even by a stale list; its open connections are then closed."""
        found = self._lists.get(issuer)
        return found is not None and (found.authority_revoked or serial in found.serials)

    def refusal(self, issuer: str, serial: str, utc: float) -> str:
        """Return why a certificate is refused, empty if it is not revoked and its list is current.

        Args:
            issuer: As in ``CertificateFacts``.
            serial: As in ``CertificateFacts``.
            utc: Seconds since the epoch.
        """
        found = self._lists.get(issuer)
        if found is None:
            return "no revocation list of its issuer"
        if found.authority_revoked:
            return "its issuer is revoked"
        if serial in found.serials:
            return "revoked"
        if not utc < found.next_update_utc:  # this form also refuses NaN
            return f"revocation list {found.next_update_file} is stale"
        return ""


def read_authorities(path: Path) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a PEM file of authorities.

    Raises:
        AccessFileError: It is invalid.
    """
    content = read_access_file(path, AUTHORITY_BYTES_MAX)
    try:
        return tuple(x509.load_pem_x509_certificates(content))
    except Exception:  # the library documents ValueError only
        raise AccessFileError(path, damaged_line(content), "holds no certificate in PEM, or a damaged one") from None


def read_crl_files(paths: Sequence[Path], authorities: Sequence[x509.Certificate], utc: float) -> RevocationSet:
    """Return the set of all lists in files; PEM with one or several lists, or one in DER.

    Args:
        paths: At most 64 files.
        authorities: Certificates that sign clients of the listener, including intermediate ones.
        utc: Seconds since the epoch; lists must be current at this time.

    Raises:
        AccessFileError: A file is unreadable, wrongly signed, stale, not yet valid, or a partial list.
    """
    if len(paths) > FILES_MAX:
        raise AccessFileError(paths[FILES_MAX], 0, f"is one file more than the {FILES_MAX} that are read")
    contents = [(path, read_access_file(path, CRL_BYTES_MAX)) for path in paths]
    return revocation_set(contents, authorities, utc)


def revocation_set(
    contents: Sequence[tuple[Path, bytes]], authorities: Sequence[x509.Certificate], utc: float
) -> RevocationSet:
    """Return the set of lists whose bytes were read before; otherwise as ``read_crl_files``.

    Raises:
        AccessFileError: As ``read_crl_files``.
    """
    lists: dict[str, IssuerList] = {}
    total = 0
    for path, content in contents:
        for line, der_or_pem in _pieces(path, content):
            issuer, found = _read_list(path, line, der_or_pem, authorities, utc, SERIALS_MAX - total)
            total += len(found.serials)
            known = lists.get(issuer)
            lists[issuer] = found if known is None else _both(known, found)
    for authority in authorities:  # one may be revoked by the authority above it
        if authority.subject == authority.issuer:
            continue  # a root is in no list: its serial in its own list is a client's
        above = lists.get(issuer_digest(authority.issuer))
        subject = issuer_digest(authority.subject)
        if above is not None and f"{authority.serial_number:x}" in above.serials and subject in lists:
            below = lists[subject]
            lists[subject] = IssuerList(below.serials, below.next_update_utc, below.next_update_file, True)
    return RevocationSet(lists)


def _both(one: IssuerList, two: IssuerList) -> IssuerList:
    """Return two lists of one issuer as one: both must stay current, because they may cover different keys."""
    first = min(one, two, key=lambda each: each.next_update_utc)
    return IssuerList(one.serials | two.serials, first.next_update_utc, first.next_update_file)


def _pieces(path: Path, content: bytes) -> list[tuple[int, bytes]]:
    """Return each list of a file with its line, 0 for DER.

    Raises:
        AccessFileError: There is none, or a PEM block is incomplete.
    """
    if content.startswith(b"\x30"):
        return [(0, content)]
    found = [(content.count(b"\n", 0, each.start()) + 1, each.group()) for each in PEM_LIST.finditer(content)]
    if not found:
        raise AccessFileError(path, 0, "holds no revocation list; expected PEM (BEGIN X509 CRL) or DER")
    if len(found) != content.count(b"-----BEGIN") or len(found) != content.count(b"-----END"):
        raise AccessFileError(path, 0, "holds more than whole revocation lists; a list was cut off, or a file mixed up")
    return found


def _read_list(
    path: Path, line: int, data: bytes, authorities: Sequence[x509.Certificate], utc: float, serials_max: int
) -> tuple[str, IssuerList]:
    try:
        crl = x509.load_pem_x509_crl(data) if line else x509.load_der_x509_crl(data)
        fault = _fault(crl, authorities, utc)
        if fault:
            raise AccessFileError(path, line, fault)
        assert crl.next_update_utc is not None  # else there was a fault
        serials: set[str] = set()
        for entry in crl:
            if any(part.critical and part.oid != CRLEntryExtensionOID.CRL_REASON for part in entry.extensions):
                raise AccessFileError(path, line, "has an entry with a critical part that is not understood")
            serials.add(f"{entry.serial_number:x}")
            if len(serials) > serials_max:
                raise AccessFileError(path, line, f"lifts the revoked certificates of all files above {SERIALS_MAX}")
        return issuer_digest(crl.issuer), IssuerList(frozenset(serials), crl.next_update_utc.timestamp(), path.name)
    except AccessFileError:
        raise
    except Exception as error:  # the library documents ValueError only
        raise AccessFileError(path, line, f"is no readable revocation list ({type(error).__name__})") from None


def _fault(crl: x509.CertificateRevocationList, authorities: Sequence[x509.Certificate], utc: float) -> str:
    for part in crl.extensions:
        if part.oid == ExtensionOID.DELTA_CRL_INDICATOR:
            return "is a delta list; name the whole one"
        if part.critical and part.oid not in KNOWN:
            return f"has a critical part that is not understood ({part.oid.dotted_string})"
        if isinstance(part.value, x509.IssuingDistributionPoint) and not _is_whole(part.value):
            return "covers only a part of its issuer's certificates; name the whole list"
    if isinstance(crl.signature_hash_algorithm, WEAK):
        return "is signed by MD5 or SHA-1"
    signers = [each for each in authorities if each.subject == crl.issuer]
    if not signers:
        return "is of an issuer that is no authority of the listener; add its certificate to client_ca"
    if not any(_signed(crl, signer) for signer in signers):
        return "is not signed by its issuer"
    if crl.last_update_utc.timestamp() > utc + CLOCK_LEEWAY_S:
        return f"is of the future (from {crl.last_update_utc:%Y-%m-%d %H:%M} UTC)"
    if crl.next_update_utc is None:
        return "has no next update, so it could never be known to be stale"
    if not utc < crl.next_update_utc.timestamp():
        return f"is stale since {crl.next_update_utc:%Y-%m-%d %H:%M} UTC; fetch the newer list"
    return ""


def _is_whole(scope: x509.IssuingDistributionPoint) -> bool:
    return not (
        scope.indirect_crl
        or scope.only_contains_attribute_certs
        or scope.only_contains_ca_certs
        or scope.only_some_reasons
        or scope.full_name
        or scope.relative_name
    )


def _signed(crl: x509.CertificateRevocationList, signer: x509.Certificate) -> bool:
    try:
        usage = signer.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        pass
    else:
        if not usage.crl_sign:
            return False
    key = signer.public_key()
    try:
        return crl.is_signature_valid(key)  # type: ignore[arg-type]  # a key that cannot sign is a TypeError
    except Exception:  # unsupported algorithm or key
        return False
