"""Facts of a connection's certificate, read once for each login.

Behind a load balancer that verifies certificates, the connection's own certificate is the load balancer's, and the
PROXY header names the client, even if the load balancer is a gateway. A certificate of a node or an operator is always
reported as such, so that the chain refuses it.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, TypeAlias

from access.identity.certificates import NameKind, certificate_facts
from access.identity.principal import CertificateFacts
from edge.loop.state import LoopConnection
from edge.node.limits import ListenerPolicy

__all__ = [
    "CACHED_BYTES_MAX",
    "CACHED_MAX",
    "CertificateReader",
    "FromHeader",
    "InvalidCertificate",
    "facts_of",
    "shown_facts",
]

KINDS = tuple(NameKind)
CACHED_MAX = 1_024  # cached certificates: parsing one costs more than the rest of a login
CACHED_BYTES_MAX = 4_096  # of a cached one


class InvalidCertificate(ValueError):
    """The certificate names no client; the text is the name of the counter."""


class FromHeader(Protocol):
    """A PROXY header that was read."""

    @property
    def common_name(self) -> str | None:
        """The name that the load balancer verified, "" for none; None: an invalid client name."""


CertificateReader: TypeAlias = Callable[[LoopConnection], CertificateFacts | None]


def shown_facts(conn: LoopConnection) -> CertificateFacts | None:
    """Return the facts of the certificate that TLS verified, None without one.

    Raises:
        ValueError: It is unreadable.
    """
    if conn.tls is None:
        return None
    der: bytes | None = conn.tls.getpeercert(True)
    if not der:
        return None
    return _cached_facts(der) if len(der) <= CACHED_BYTES_MAX else _read_facts(der)


def _read_facts(der: bytes) -> CertificateFacts:
    return certificate_facts(der, KINDS, ocsp=False)


# A pure function of the bytes; dates and lists are checked at each login
_cached_facts = lru_cache(CACHED_MAX)(_read_facts)


def facts_of(
    conn: LoopConnection, policy: ListenerPolicy, header: FromHeader | None, read: CertificateReader
) -> CertificateFacts | None:
    """Return the certificate facts for a client's chain, None for a client without a certificate.

    Raises:
        InvalidCertificate: It is unreadable, or the header has no valid name.
    """
    try:
        facts = read(conn)
    except ValueError:
        raise InvalidCertificate("refused_certificate") from None
    if not policy.proxy_identity or (facts is not None and facts.of_cluster and not facts.gateway):
        return facts
    name = header.common_name if header is not None else ""
    if name is None:
        raise InvalidCertificate("refused_proxy_identity")
    return CertificateFacts({NameKind.CN: (name,)}, "", "", "") if name else None
