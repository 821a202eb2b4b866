"""Revocation lists of the authority of nodes and operators, read and validated for ``wire/links/revoked.py``.

A thread of the shell reads them; a check costs about 20 us per link. ``cryptography`` is imported only if lists are
set.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from access.files import AccessFileError, read_access_file
from conf.errors import ExitCode, UserError
from conf.node_settings import NodeSettings

if TYPE_CHECKING:
    from access.identity.principal import CertificateFacts
    from access.identity.revocation import RevocationSet

__all__ = ["IssuedPeers", "read_peer_lists"]

CERTIFICATE_BYTES_MAX = 1 << 20


class IssuedPeers:
    """Validated lists, for certificates in DER from TLS."""

    def __init__(self, lists: "RevocationSet") -> None:
        self._lists = lists

    @property
    def revoked(self) -> int:
        """Number of certificates in the lists."""
        return self._lists.revoked

    @property
    def next_update_utc(self) -> float:
        """The time at which the first list becomes stale."""
        return self._lists.next_update_utc

    def refusal(self, certificate: bytes, utc: float) -> str:
        """Return why a certificate in DER is refused at a time, "" if it is not."""
        try:
            facts = _facts(certificate)
        except ValueError as error:
            return str(error)
        return self._lists.refusal(facts.issuer, facts.serial, utc)


def read_peer_lists(node: NodeSettings) -> IssuedPeers | None:
    """Read the lists of ``node.crl_files``; None if it is empty.

    Raises:
        UserError: A list is invalid, or none belongs to this node's authority: every link would be refused.
    """
    if not node.crl_files:
        return None
    if node.plaintext_links or node.authority is None or node.certificate is None:
        raise UserError("node.crl_files needs links with certificates: links are plaintext here", ExitCode.USAGE)
    from access.identity.revocation import read_authorities, read_crl_files

    utc = time.time()
    lists = read_crl_files(node.crl_files, read_authorities(node.authority), utc)
    if lists.refusal(_own_issuer(node.certificate), "", utc):
        raise UserError(
            f"node.crl_files has no list of the authority that signed {node.certificate}: every link would be refused",
            ExitCode.USAGE,
        )
    return IssuedPeers(lists)


def _facts(certificate: bytes) -> "CertificateFacts":
    from access.identity.certificates import certificate_facts

    return certificate_facts(certificate, kinds=(), ocsp=False)


def _own_issuer(path: Path) -> str:
    from cryptography import x509

    from access.identity.certificates import issuer_digest

    content = read_access_file(path, CERTIFICATE_BYTES_MAX)
    try:
        return issuer_digest(x509.load_pem_x509_certificate(content).issuer)
    except ValueError:
        raise AccessFileError(path, 0, "holds no certificate in PEM, or a damaged one") from None
