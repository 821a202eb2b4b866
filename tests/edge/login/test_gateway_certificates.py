"""Certificates of the nodes' authority at a listener: only gateways are accepted."""

import contextlib
import datetime
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from access.identity.principal import CertificateFacts
from edge.login.gateway_certificates import GatewayCertificates, Signers, gateway_signers
from wire.links.authority import DevelopmentAuthority
from wire.links.revoked import RevokedPeers
from wire.links.tls import CertificateFiles, client_listener_context

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def nodes(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "nodes", "c", NOW, "nodes of c")


@pytest.fixture
def devices(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "devices", "c", NOW, "devices of c")


def signers(nodes: DevelopmentAuthority) -> Signers:
    return Signers(nodes.certificate, x509.load_pem_x509_certificates(nodes.certificate.read_bytes()))


def shown(devices: DevelopmentAuthority, nodes: DevelopmentAuthority, client: CertificateFiles) -> Any:
    """Return a connection with a client's certificate at a listener that accepts gateways."""
    server = devices.server()
    accepting = client_listener_context(server.certificate, server.key, devices.certificate, True, nodes.certificate)
    calling = ssl.create_default_context(cafile=str(devices.certificate))
    calling.load_cert_chain(client.certificate, client.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        calling.wrap_bio(down, up, server_hostname="localhost"),
        accepting.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(6):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return SimpleNamespace(tls=ends[1])


def test_gateway_is_identified_by_its_name(devices: DevelopmentAuthority, nodes: DevelopmentAuthority) -> None:
    reader = GatewayCertificates("c", signers(nodes), RevokedPeers())
    facts = reader.read(shown(devices, nodes, nodes.gateway("bridge")))
    assert facts is not None and facts.gateway == "bridge"
    facts = reader.read(shown(devices, nodes, devices.client("device")))
    assert facts is not None and not facts.gateway and not facts.of_cluster


def test_other_certificates_of_the_authority_are_refused(
    devices: DevelopmentAuthority, nodes: DevelopmentAuthority
) -> None:
    """Nodes, operators, a certificate without such a name, a gateway of another cluster."""
    reader = GatewayCertificates("c", signers(nodes), RevokedPeers())
    other = GatewayCertificates("d", signers(nodes), RevokedPeers())
    for files in (nodes.node("edge", "e1"), nodes.operator(), nodes.client("plain")):
        facts = reader.read(shown(devices, nodes, files))
        assert facts is not None and facts.of_cluster and not facts.gateway
    facts = other.read(shown(devices, nodes, nodes.gateway("bridge")))
    assert facts is not None and facts.of_cluster and not facts.gateway


def test_device_authority_signs_no_gateway(
    devices: DevelopmentAuthority, nodes: DevelopmentAuthority, tmp_path: Path
) -> None:
    """Nor does a subordinate with the name of the nodes' authority."""
    reader = GatewayCertificates("c", signers(nodes), RevokedPeers())
    facts = reader.read(shown(devices, nodes, devices.gateway("bridge")))
    assert facts is not None and facts.of_cluster and not facts.gateway
    namesake = DevelopmentAuthority(tmp_path / "namesake", "c", NOW, "nodes of c")
    facts = reader.read(shown(namesake, nodes, namesake.gateway("bridge")))
    assert facts is not None and facts.of_cluster and not facts.gateway


def test_revoked_gateway_is_refused_and_disconnected(
    devices: DevelopmentAuthority, nodes: DevelopmentAuthority
) -> None:
    revoked = RevokedPeers(lambda: 1.0)
    reader = GatewayCertificates("c", signers(nodes), revoked)
    conn = shown(devices, nodes, nodes.gateway("bridge"))
    assert not reader.is_revoked(conn)
    lists: Any = SimpleNamespace(refusal=lambda *_: "it is in the list")
    revoked.put(lists)
    facts = reader.read(conn)
    assert facts is not None and facts.of_cluster and not facts.gateway and reader.is_revoked(conn)


def test_listener_without_authority_accepts_no_gateway(
    devices: DevelopmentAuthority, nodes: DevelopmentAuthority
) -> None:
    facts = GatewayCertificates("c", None, None).read(shown(devices, nodes, nodes.gateway("bridge")))
    assert isinstance(facts, CertificateFacts) and facts.of_cluster and not facts.gateway


def test_authority_with_subordinates_is_not_used(
    devices: DevelopmentAuthority, nodes: DevelopmentAuthority, tmp_path: Path
) -> None:
    """A handshake does not reveal which of them signed."""
    key = load_pem_private_key((nodes.folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    old = x509.load_pem_x509_certificate(nodes.certificate.read_bytes())
    builder = x509.CertificateBuilder(old.subject, old.subject, key.public_key(), 1, NOW, old.not_valid_after_utc)
    wide = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(key, hashes.SHA256())
    path = tmp_path / "wide.pem"
    path.write_bytes(wide.public_bytes(Encoding.PEM))
    listener = SimpleNamespace(tls=True, client_ca=devices.certificate)
    node = SimpleNamespace(authority=nodes.certificate, plaintext_links=False)
    config: Any = SimpleNamespace(node=node, edge=SimpleNamespace(listeners=[listener]))
    assert gateway_signers(config) is not None
    config.node.authority = path
    assert gateway_signers(config) is None
    config.node.authority, listener.client_ca = nodes.certificate, None  # no listener requests certificates
    assert gateway_signers(config) is None
