"""Handshakes that must fail: old versions, weak ciphers, no certificate; of clients and of links."""

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
    """Return a client that accepts any certificate and, by its security level, any key."""
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
def test_listener_accepts_only_tls_1_2_and_1_3(authority: DevelopmentAuthority, version: str) -> None:
    """Independent of the system's defaults."""
    client = only(anybody(), version)
    if version in ("TLSv1_2", "TLSv1_3"):
        server_end, _ = handshake(listener(authority), client)
        assert server_end.version() == version.replace("_", ".") and server_end.compression() is None
        return
    with pytest.raises(ssl.SSLError):
        handshake(listener(authority), client)


def test_listener_prefers_the_newest_version(authority: DevelopmentAuthority) -> None:
    server_end, _ = handshake(listener(authority), anybody())
    assert server_end.version() == "TLSv1.3"


@pytest.mark.parametrize("ciphers", WEAK)
def test_listener_refuses_weak_ciphers(authority: DevelopmentAuthority, ciphers: str) -> None:
    """A client of TLS 1.2 without a better cipher is refused."""
    try:
        client = only(anybody(ciphers), "TLSv1_2")
    except ssl.SSLError:
        pytest.skip(f"this OpenSSL has no {ciphers}")
    with pytest.raises(ssl.SSLError):
        handshake(listener(authority), client)


@pytest.mark.parametrize("version", VERSIONS)
def test_link_accepts_only_tls_1_3(authority: DevelopmentAuthority, version: str) -> None:
    """With a certificate."""
    files = authority.node("edge", "edge-0")
    client = only(anybody(), version)
    client.load_cert_chain(files.certificate, files.key)
    router = link_contexts(authority.node("router", "router-0")).server
    if version == "TLSv1_3":
        assert handshake(router, client)[0].getpeercert()
        return
    with pytest.raises(ssl.SSLError):
        handshake(router, client)


def test_link_refuses_a_missing_or_foreign_certificate(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    router = link_contexts(authority.node("router", "router-0")).server
    foreign = DevelopmentAuthority(tmp_path / "other", "test", NOW).node("edge", "edge-0")
    client = anybody()
    with pytest.raises(ssl.SSLError):
        handshake(router, client)
    client.load_cert_chain(foreign.certificate, foreign.key)
    with pytest.raises(ssl.SSLError):
        handshake(router, client)
