"""Handshakes that nobody should get: old versions, weak ciphers, no certificate; of clients and of links."""

import datetime
import ssl
import warnings
from pathlib import Path

import pytest

from tests.wire.test_tls import handshake
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import client_listener_context, link_contexts

NOW = datetime.datetime.now(datetime.UTC)
WEAK = ("eNULL", "aNULL", "EXPORT", "RC4", "3DES", "DES", "MD5", "SEED", "IDEA", "PSK", "SRP")
VERSIONS = ("SSLv3", "TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentAuthority:
    return DevelopmentAuthority(tmp_path_factory.mktemp("tls"), "test", NOW)


def listener(authority: DevelopmentAuthority) -> ssl.SSLContext:
    server = authority.server()
    return client_listener_context(server.certificate, server.key, server.authority)


def anybody(ciphers: str = "") -> ssl.SSLContext:
    """Return a client that takes whatever certificate and, by its security level, whatever key."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_ciphers(f"{ciphers or 'ALL'}:@SECLEVEL=0")
    return client


def only(client: ssl.SSLContext, version: str) -> ssl.SSLContext:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    return client


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_of_clients(authority: DevelopmentAuthority, version: str) -> None:
    """NIST: protect. TLS 1.2 and 1.3, whatever the system's own defaults are; nothing older."""
    client = only(anybody(), version)
    if version in ("TLSv1_2", "TLSv1_3"):
        server_end, _ = handshake(listener(authority), client)
        assert server_end.version() == version.replace("_", ".") and server_end.compression() is None
        return
    with pytest.raises(ssl.SSLError):
        handshake(listener(authority), client)


def test_the_newest_version_is_preferred(authority: DevelopmentAuthority) -> None:
    """NIST: protect. A client that offers both gets TLS 1.3."""
    server_end, _ = handshake(listener(authority), anybody())
    assert server_end.version() == "TLSv1.3"


@pytest.mark.parametrize("ciphers", WEAK)
def test_weak_ciphers_of_clients(authority: DevelopmentAuthority, ciphers: str) -> None:
    """NIST: protect. A client of TLS 1.2 that has nothing better is refused."""
    try:
        client = only(anybody(ciphers), "TLSv1_2")
    except ssl.SSLError:
        pytest.skip(f"this OpenSSL has no {ciphers}")
    with pytest.raises(ssl.SSLError):
        handshake(listener(authority), client)


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_of_links(authority: DevelopmentAuthority, version: str) -> None:
    """NIST: protect. Nodes speak TLS 1.3 and nothing else, with a certificate."""
    files = authority.node("edge", "edge-0")
    client = only(anybody(), version)
    client.load_cert_chain(files.certificate, files.key)
    router = link_contexts(authority.node("router", "router-0")).server
    if version == "TLSv1_3":
        assert handshake(router, client)[0].getpeercert()
        return
    with pytest.raises(ssl.SSLError):
        handshake(router, client)


def test_a_link_without_certificate(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    """NIST: protect. Neither nobody nor the node of another authority is let in."""
    router = link_contexts(authority.node("router", "router-0")).server
    foreign = DevelopmentAuthority(tmp_path / "other", "test", NOW).node("edge", "edge-0")
    client = anybody()
    with pytest.raises(ssl.SSLError):
        handshake(router, client)
    client.load_cert_chain(foreign.certificate, foreign.key)
    with pytest.raises(ssl.SSLError):
        handshake(router, client)
