"""Certificates of gateways at listeners: which certificates of the nodes' authority identify a gateway as a client.

A listener with ``client_ca`` verifies against the nodes' authority too. Of its certificates only those of this
cluster's gateways are accepted; the client is then the user ``gateway/<name>``. The authority must sign gateways
directly. An authority that may have subordinates (no path length of 0) is not used, because a handshake does not reveal
which of them signed. Source: docs/adr/0053-gateways-at-the-doors.md.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from msgspec.structs import replace

from access.identity.certificates import issuer_digest
from access.identity.principal import CertificateFacts
from access.identity.revocation import read_authorities
from conf.events import say
from conf.node_settings import NAME_PATTERN
from edge.login.certificate_facts import shown_facts
from edge.loop.state import LoopConnection
from wire.links.revoked import RevokedPeers
from wire.links.tls import peer_identity
from wire.messages.hello import TIER_GATEWAY, LinkError

if TYPE_CHECKING:
    from conf.settings import EdgeConfig

__all__ = ["GatewayCertificates", "Signers", "gateway_signers"]

logger = logging.getLogger(__name__)


class Signers:
    """The nodes' authority as listeners use it.

    Args:
        path: Its file.
        certificates: The certificates in it.
    """

    def __init__(self, path: Path, certificates: Sequence[x509.Certificate]) -> None:
        self.path = path
        self.by_digest = {issuer_digest(each.subject): each for each in certificates}


def gateway_signers(config: "EdgeConfig") -> Signers | None:
    """Return the authority of gateways, None if listeners accept none.

    Raises:
        AccessFileError: The file of the authority is missing or not PEM.
    """
    path = config.node.authority
    if (
        path is None
        or config.node.plaintext_links
        or not any(each.tls and each.client_ca for each in config.edge.listeners)
    ):
        return None
    certificates = read_authorities(path)
    if not all(_signs_no_authority(each) for each in certificates):
        say(logger, "login.gateways_not_taken", path=path)
        return None
    return Signers(path, certificates)


def _signs_no_authority(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return constraints.ca and constraints.path_length == 0


class GatewayCertificates:
    """Reader of clients' certificates.

    Args:
        cluster: Of this edge.
        signers: Authority of gateways; None: gateways are not accepted. A reload replaces it with the listeners'
            contexts.
        revoked: Revoked certificates of that authority; None without links that have certificates.
    """

    def __init__(self, cluster: str, signers: Signers | None, revoked: RevokedPeers | None) -> None:
        self.signers = signers
        self._cluster = cluster
        self._revoked = revoked

    def read(self, conn: LoopConnection) -> CertificateFacts | None:
        """Return the facts of a client's certificate, None without one.

        A certificate of the nodes' authority is marked as of the cluster, with the name of the gateway if it is one.

        Raises:
            ValueError: It is unreadable.
        """
        facts = shown_facts(conn)
        signer = self.signers.by_digest.get(facts.issuer) if facts is not None and self.signers is not None else None
        if facts is None or signer is None:
            return facts
        return replace(facts, of_cluster=True, gateway=self._gateway(conn, signer))

    def _gateway(self, conn: LoopConnection, signer: x509.Certificate) -> str:
        """Return the name of the gateway, "" if the certificate is not a gateway's."""
        try:
            cluster, tier, name = peer_identity(conn.tls)
        except ValueError:
            return ""
        if (cluster, tier) != (self._cluster, TIER_GATEWAY) or not re.fullmatch(NAME_PATTERN, name) or len(name) > 64:
            return ""
        der: bytes = conn.tls.getpeercert(True)
        try:
            x509.load_der_x509_certificate(der).verify_directly_issued_by(signer)  # the name is no proof
            if self._revoked is not None:
                self._revoked.check(der)
        except (ValueError, TypeError, InvalidSignature, LinkError) as error:
            say(logger, "login.gateway_refused", gateway=name, why=error)
            return ""
        return name

    def is_revoked(self, conn: LoopConnection) -> bool:
        """Return whether a live connection of a gateway has a revoked certificate."""
        return (
            self._revoked is not None
            and conn.tls is not None
            and bool(self._revoked.end_of(conn.tls.getpeercert(True)))
        )
