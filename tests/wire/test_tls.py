"""Certificates: made once, checked at start, with clear errors."""

import datetime
import ssl
from pathlib import Path

import pytest

from conf.errors import UserError
from wire.links.authority import LEAF_DAYS, DevelopmentAuthority
from wire.links.tls import (
    CertificateFiles,
    check_certificate,
    client_listener_context,
    identity_uri,
    link_contexts,
    parse_identity,
    peer_identity,
    shared_authority,
)

NOW = datetime.datetime.now(datetime.UTC)
STORAGE = ("test", "storage", "storage-0")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Run a handshake in memory and return both ends."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = server.wrap_bio(up, down, server_side=True)
    client_end = client.wrap_bio(down, up, server_hostname="localhost")
    for _ in range(10):
        for end in (client_end, server_end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    server_end.do_handshake()
    return server_end, client_end


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path / "tls", "test", NOW)


def test_link_contexts_authenticate_both_ends(authority: DevelopmentAuthority) -> None:
    """Mutual TLS 1.3; each certificate names cluster, tier and node."""
    storage = link_contexts(authority.node("storage", "storage-0"))
    router = link_contexts(authority.node("router", "router-0"))
    server_end, client_end = handshake(router.server, storage.client)
    assert peer_identity(server_end) == STORAGE
    assert peer_identity(client_end) == ("test", "router", "router-0")
    assert server_end.version() == "TLSv1.3"


def test_peer_identity_refuses_an_mqtt_client_certificate(authority: DevelopmentAuthority) -> None:
    """A certificate of the same authority without a node's name opens no link."""
    router = link_contexts(authority.node("router", "router-0"))
    client = link_contexts(authority.client())
    server_end, _ = handshake(router.server, client.client)
    with pytest.raises(ValueError, match="names 0 StrataMQ nodes"):
        peer_identity(server_end)


@pytest.mark.parametrize(
    "uris",
    [
        ["stratamq://test/%61dmin/ann"],
        ["stratamq://test/admin/ann%0A"],
        ["stratamq://test/admin/ann?role=x"],
        ["stratamq://test//admin/ann"],
        ["STRATAMQ://test/admin/ann"],
        ["stratamq://test/viewer/ann", "Stratamq://test/admin/ann"],
        ["stratamq://test/viewer/ann", "stratamq://test/admin/ann"],
    ],
)
def test_peer_identity_requires_one_canonical_name(uris: list[str]) -> None:
    """A second name, or another spelling of a role, is no identity."""

    class Shown:
        def getpeercert(self) -> dict[str, object]:
            return {"subjectAltName": [("URI", uri) for uri in uris]}

    if uris == ["stratamq://test/admin/ann%0A"]:  # canonical: admission of operators refuses the name
        assert peer_identity(Shown()) == ("test", "admin", "ann\n")
        return
    with pytest.raises(ValueError, match=r"not a node's name|names 2"):
        peer_identity(Shown())


def test_client_listener_context_verifies_client_certificates(authority: DevelopmentAuthority) -> None:
    """localhost is in the certificate; TLS 1.1 is refused; a presented certificate is verified; one can be required."""
    server = authority.server()
    context = client_listener_context(server.certificate, server.key, server.authority)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION and context.options & ssl.OP_NO_COMPRESSION
    anybody = ssl.create_default_context(cafile=str(server.authority))
    server_end, _ = handshake(context, anybody)
    assert not server_end.getpeercert()
    required = client_listener_context(server.certificate, server.key, server.authority, True)
    assert required.verify_mode == ssl.CERT_REQUIRED
    with pytest.raises(ssl.SSLError):
        handshake(required, anybody)
    with pytest.raises(UserError, match="needs client_ca"):
        client_listener_context(server.certificate, server.key, None, True)


def test_authority_is_reused_and_private(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    """A second start uses the existing files; keys are readable only by their owner."""
    first = authority.node("edge", "edge-0")
    content = first.certificate.read_bytes(), first.key.read_bytes()
    again = DevelopmentAuthority(tmp_path / "tls", "test", NOW).node("edge", "edge-0")
    assert (again.certificate.read_bytes(), again.key.read_bytes()) == content
    for key in (tmp_path / "tls").glob("*.key"):
        assert key.stat().st_mode & 0o777 == 0o600
    later = DevelopmentAuthority(tmp_path / "tls", "test", NOW + datetime.timedelta(days=LEAF_DAYS))
    assert later.node("edge", "edge-0").certificate.read_bytes() != content[0]
    assert later.certificate.read_bytes() == authority.certificate.read_bytes()


def test_check_certificate_names_the_faulty_file(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    """Expired, foreign, missing, another node's: one line each, with the file."""
    files = authority.node("storage", "storage-0")
    check_certificate(files, STORAGE, NOW)
    with pytest.raises(UserError, match=r"storage-0\.pem expired on "):
        check_certificate(files, STORAGE, NOW + datetime.timedelta(days=LEAF_DAYS + 1))
    with pytest.raises(UserError, match=r"valid only from"):
        check_certificate(files, STORAGE, NOW - datetime.timedelta(days=1))
    with pytest.raises(UserError, match=r"names .*storage-0; this node needs stratamq://test/storage/storage-1"):
        check_certificate(files, ("test", "storage", "storage-1"), NOW)
    other = DevelopmentAuthority(tmp_path / "other", "test", NOW)
    with pytest.raises(UserError, match="was not signed by"):
        check_certificate(CertificateFiles(files.certificate, files.key, other.certificate), STORAGE, NOW)
    missing = CertificateFiles(tmp_path / "none.pem", files.key, files.authority)
    with pytest.raises(UserError, match=r"certificate .*none\.pem: No such file or directory"):
        check_certificate(missing, STORAGE, NOW)


def test_link_contexts_names_the_faulty_file(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    """Mismatch, a readable key, not PEM."""
    one, two = authority.node("edge", "edge-0"), authority.node("edge", "edge-1")
    with pytest.raises(UserError, match="do not belong together"):
        link_contexts(CertificateFiles(one.certificate, two.key, one.authority))
    with pytest.raises(UserError, match=r"key .*none: No such file"):
        link_contexts(CertificateFiles(one.certificate, tmp_path / "none", one.authority))
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    with pytest.raises(UserError, match=r"text\.pem is not readable as PEM"):
        link_contexts(CertificateFiles(one.certificate, one.key, text))
    two.key.chmod(0o644)
    with pytest.raises(UserError, match=r"is open to group or others \(mode 0644\): chmod 600"):
        link_contexts(two)


def test_authority_in_an_unwritable_or_broken_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="certificate folder"):
        DevelopmentAuthority(tmp_path / "file" / "tls", "test", NOW)
    (tmp_path / "ca.pem").write_text("x")
    with pytest.raises(UserError, match="is not readable"):
        DevelopmentAuthority(tmp_path, "test", NOW)


@pytest.mark.parametrize("identity", [("test", "edge", "edge-0"), ("a b/c", "edge", "ä%/?")])
def test_identity_uri_is_reversible(identity: tuple[str, str, str]) -> None:
    """For any names."""
    assert parse_identity(identity_uri(*identity)) == identity


@pytest.mark.parametrize("uri", ["", "http://a/b/c", "stratamq://a/b", "stratamq://a/b/c/d", "stratamq:///b/c"])
def test_parse_identity_refuses_other_uris(uri: str) -> None:
    """Strictly scheme://cluster/tier/node."""
    with pytest.raises(ValueError, match="not a node"):
        parse_identity(uri)


def test_shared_authority_finds_an_authority_used_for_clients_and_nodes(
    authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    """One authority, one key, one subject, or one that signed the other: each is found, in bundles too."""
    node = authority.node("edge", "edge-0")
    clients = DevelopmentAuthority(tmp_path / "clients", "clients of test", NOW)
    assert shared_authority(clients.certificate, authority.certificate, node.certificate) == ""
    assert "signed " in shared_authority(authority.certificate, authority.certificate, node.certificate)
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(clients.certificate.read_bytes() + authority.certificate.read_bytes())
    assert "signed " in shared_authority(bundle, authority.certificate, node.certificate)
    namesake = DevelopmentAuthority(tmp_path / "namesake", "test", NOW)
    assert "signs the nodes" in shared_authority(namesake.certificate, authority.certificate, node.certificate)
    intermediate = clients.node("edge", "edge-1").certificate  # imitates an authority signed by the clients' one
    assert "signed the authority" in shared_authority(clients.certificate, intermediate, node.certificate)
    assert "was signed by" in shared_authority(intermediate, clients.certificate, node.certificate)
