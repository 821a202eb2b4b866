"""Certificates and TLS contexts: the identity of each end of a connection.

Nodes and operators carry a URI ``stratamq://<cluster>/<tier>/<node>`` in their certificate's subject alternative names;
the tier claimed in HELLO must be the certified one. In production they come from the operator's own authority, for
development from ``wire/links/authority.py``. ``cryptography`` is imported only to examine a certificate at start, never
for a link. Source: design section 9; TLS settings after RFC 9325 (TLS 1.2 minimum for clients, 1.3 between nodes).
"""

import datetime
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from conf.errors import UserError
from conf.private_files import check_file, check_private
from wire.links.pem_faults import certificates_fault, key_fault
from wire.links.revoked import RevokedPeers

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "URI_SCHEME",
    "CertificateFiles",
    "LinkContexts",
    "certificate_hosts",
    "certified_uris",
    "check_certificate",
    "client_listener_context",
    "identity_uri",
    "link_contexts",
    "load_authority",
    "load_certificate",
    "loses_authority",
    "parse_identity",
    "peer_identity",
    "shared_authority",
]

URI_SCHEME = "stratamq"
PEM_BYTES_MAX = 1024 * 1024  # of certificates, keys and bundles of authorities
HOW_TO_MAKE = "`stratamq init DIR` makes certificates, and the files that name them"


class HasPeerCertificate(Protocol):
    """``ssl.SSLSocket``, ``ssl.SSLObject`` and ``trio.SSLStream`` (which forwards to its SSLObject)."""

    def getpeercert(self) -> Any:
        """Return the peer's certificate as ``ssl.SSLSocket`` does; None without one."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files of one end of a connection."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(slots=True)
class LinkContexts:
    """Both directions of mutual TLS between nodes; a reload replaces both, for the next handshakes."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    revoked: RevokedPeers = field(default_factory=RevokedPeers)  # stays when contexts are replaced


def client_listener_context(
    certificate: Path,
    key: Path,
    client_ca: Path | None = None,
    require_client_certificate: bool = False,
    gateways: Path | None = None,
) -> ssl.SSLContext:
    """Return the context of a listener for MQTT clients.

    A client certificate is verified whenever it is presented and ``client_ca`` is set. Certificates of ``gateways``,
    the nodes' authority, are then valid too; the caller must refuse all names except gateways.

    Raises:
        UserError: A file is missing, unreadable, readable by all users (key), or certificate and key do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    load_certificate(context, certificate, key)
    if client_ca is not None:
        for authority in (client_ca, gateways):
            if authority is not None:
                load_authority(context, authority)
        context.verify_mode = ssl.CERT_REQUIRED if require_client_certificate else ssl.CERT_OPTIONAL
    elif require_client_certificate:
        raise UserError("require_client_certificate needs client_ca: the authority that signs client certificates")
    return context


def link_contexts(files: CertificateFiles) -> LinkContexts:
    """Return the contexts of links between nodes: mutual TLS 1.3, identity by URI instead of host name.

    Raises:
        UserError: As ``client_listener_context``.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # nodes move between addresses; ``peer_identity`` identifies them
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.options |= ssl.OP_NO_COMPRESSION
        context.verify_mode = ssl.CERT_REQUIRED
        load_certificate(context, files.certificate, files.key)
        load_authority(context, files.authority)
    server.num_tickets = 0  # links live long; resumption would only skip the check of a revoked identity
    return LinkContexts(server, client)


def loses_authority(old: ssl.SSLContext, new: ssl.SSLContext) -> bool:
    """Return whether the new context may refuse a peer that the old one accepted."""
    before, after = set(old.get_ca_certs(binary_form=True)), set(new.get_ca_certs(binary_form=True))
    others_before, others_after = (
        each.cert_store_stats()["x509"] - each.cert_store_stats()["x509_ca"] for each in (old, new)
    )
    return not before <= after or others_before > others_after or new.verify_mode > old.verify_mode


def peer_identity(connection: HasPeerCertificate) -> tuple[str, str, str]:
    """Return (cluster, tier, node) of the peer's verified certificate.

    Raises:
        ValueError: No certificate, or none of a node (an MQTT client's, for example), or one of several nodes, or one
            that is not spelled as by ``identity_uri``.
    """
    certificate = connection.getpeercert()
    names = certificate.get("subjectAltName", ()) if certificate else ()
    uris = [value for kind, value in names if kind == "URI" and value.lower().startswith(f"{URI_SCHEME}://")]
    if len(uris) != 1:
        raise ValueError(f"the certificate names {len(uris)} StrataMQ nodes, expected one URI {URI_SCHEME}://...")
    identity = parse_identity(uris[0])
    if identity_uri(*identity) != uris[0]:  # one name has one spelling: no %61dmin, no other case, no line's end
        raise ValueError(f"not a node's name as StrataMQ writes it: {uris[0]!r}")
    return identity


def identity_uri(cluster: str, tier: str, node: str) -> str:
    """Return the URI of a node in its certificate."""
    return f"{URI_SCHEME}://{quote(cluster, safe='')}/{quote(tier, safe='')}/{quote(node, safe='')}"


def parse_identity(uri: str) -> tuple[str, str, str]:
    """Split a URI of ``identity_uri``.

    Raises:
        ValueError: Not such a URI.
    """
    parts = urlsplit(uri)
    path = parts.path.split("/")
    if parts.scheme != URI_SCHEME or not parts.netloc or len(path) != 3 or path[0] or not path[1] or not path[2]:
        raise ValueError(f"not a node's name: {uri!r}")
    return unquote(parts.netloc), unquote(path[1]), unquote(path[2])


# -- files


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load the certificate that a context presents.

    Raises:
        UserError: A file is missing, open to others, or unreadable; with its name, and the line of a damaged part.
    """
    _require_file("certificate", certificate)
    _require_file("key", key)
    check_private(key, "key")
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # OpenSSL would ask a terminal for it
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UserError(f"certificate {certificate} and key {key} do not belong together") from None
        fault = certificates_fault("certificate", certificate) or key_fault(key)
        raise UserError(fault or f"certificate {certificate} or key {key} is not readable as PEM") from None


def load_authority(context: ssl.SSLContext, authority: Path) -> None:
    """Load the authority, or several from one file, by which a context verifies the peer.

    Raises:
        UserError: The file is missing or unreadable; the line of a damaged part.
    """
    _require_file("certificate authority", authority)
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        fault = certificates_fault("certificate authority", authority)
        raise UserError(fault or f"certificate authority {authority} is not readable as PEM: {error.reason}") from None


def _require_file(what: str, path: Path) -> None:
    try:
        check_file(path, what, PEM_BYTES_MAX)
        with path.open("rb"):
            return
    except FileNotFoundError as error:
        raise UserError(f"{what} {path}: {error.strerror}; {HOW_TO_MAKE}") from None
    except OSError as error:
        raise UserError(f"{what} {path}: {error.strerror or error}") from None


def check_certificate(files: CertificateFiles, identity: tuple[str, str, str], now: datetime.datetime) -> None:
    """Check that a node's own certificate is current, signed by the authority, and names this node.

    Costs an import of ``cryptography``; run at start, before the first link.

    Args:
        files: The node's own.
        identity: (cluster, tier, node) that it must name.
        now: Aware, UTC.
    Raises:
        UserError: With the faulty file and its fault.
    """
    leaf = _certificates("certificate", files.certificate)[0]
    authority = _certificates("certificate authority", files.authority)[0]
    for path, certificate in ((files.certificate, leaf), (files.authority, authority)):
        if now > certificate.not_valid_after_utc:
            raise UserError(f"certificate {path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: renew it")
        if now < certificate.not_valid_before_utc:
            raise UserError(f"certificate {path} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d}")
    if not _issued(authority, leaf):
        raise UserError(f"certificate {files.certificate} was not signed by {files.authority}")
    wanted = identity_uri(*identity)
    if wanted not in certified_uris(leaf):
        named = ", ".join(certified_uris(leaf)) or "no node"
        raise UserError(f"certificate {files.certificate} names {named}; this node needs {wanted}")


def shared_authority(client_ca: Path, node_authority: Path, node_certificate: Path) -> str:
    """Return how a clients' authority overlaps with the nodes' authority, "" if it does not.

    A bundle may hold several certificates; each is compared with each. Costs an import of ``cryptography``.

    Raises:
        UserError: A file is missing or not PEM.
    """
    clients = _certificates("client_ca", client_ca)
    nodes = _certificates("certificate authority", node_authority)
    for client in clients:
        if _issued(client, _certificates("certificate", node_certificate)[0]):
            return f"signed {node_certificate}, this node's certificate"
        for node in nodes:
            if client.public_key() == node.public_key() or client.subject == node.subject:
                return f"signs the nodes of this cluster too (node.authority = {node_authority})"
            if _issued(client, node):
                return f"signed the authority of this cluster's nodes, {node_authority}"
            if _issued(node, client):
                return f"was signed by the authority of this cluster's nodes, {node_authority}"
    return ""


def _issued(issuer: "x509.Certificate", certificate: "x509.Certificate") -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificates(what: str, path: Path) -> "list[x509.Certificate]":
    from cryptography import x509

    _require_file(what, path)
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError:
        raise UserError(certificates_fault(what, path) or f"{what} {path} is not readable as PEM") from None


def certificate_hosts(path: Path) -> frozenset[str]:
    """Return the host names and IP addresses among the alternative names of a server's certificate.

    Raises:
        UserError: The file is no certificate in PEM.
    """
    from cryptography import x509

    own = _certificates("certificate", path)[0]
    try:
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return frozenset((*names.get_values_for_type(x509.DNSName), *addresses))


def certified_uris(certificate: "x509.Certificate") -> list[str]:
    """Return the URIs among a certificate's subject alternative names."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)
