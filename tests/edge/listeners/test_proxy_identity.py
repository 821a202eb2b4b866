"""Client certificates verified by a load balancer: names in the PROXY header, and trust in them."""

import random
import struct
from typing import Any

import pytest
from pydantic import ValidationError

from access.identity.certificates import CertificateStep, NameKind
from conf.settings import ListenerSettings
from edge.listeners.proxied_socket import ProxiedSocket
from edge.listeners.proxy_protocol import InvalidProxyHeader, ProxyHeader
from edge.node.limits import ListenerPolicy
from tests.edge.edge_harness import Edge, Session, facts

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
ADDRESSES = bytes([192, 0, 2, 7, 192, 0, 2, 9]) + struct.pack(">HH", 5555, 1883)
TLS, CONNECTION, SESSION = 0x01, 0x02, 0x04
VERSION = b"\x21\x00\x07TLSv1.3"
VOUCHED = ListenerPolicy("proxied", False, proxy_identity=True)


def option(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + len(value).to_bytes(2, "big") + value


def tls(flags: int, verify: int, *names: bytes, more: bytes = VERSION) -> bytes:
    body = bytes([flags]) + verify.to_bytes(4, "big") + more + b"".join(option(0x22, name) for name in names)
    return option(0x20, body)


def header(options: bytes) -> bytes:
    body = ADDRESSES + options
    return SIGNATURE + b"\x21\x11" + len(body).to_bytes(2, "big") + body


def named(options: bytes) -> str | None:
    proxy = ProxyHeader("any")
    proxy.take(header(options))
    assert proxy.complete and proxy.source == ("192.0.2.7", 5555)
    return proxy.common_name


@pytest.mark.parametrize("flags", [TLS | CONNECTION, TLS | SESSION, TLS | CONNECTION | SESSION])
def test_verified_name_is_accepted(flags: int) -> None:
    """Also from a resumed TLS session, and with other options."""
    assert named(tls(flags, 0, b"device-7")) == "device-7"
    assert named(option(0xE1, b"x") + tls(flags, 0, "gerät".encode()) + option(0x04, b"")) == "gerät"


@pytest.mark.parametrize(
    "options",
    [
        b"",
        tls(TLS, 0),
        tls(TLS, 0, b"device-7"),  # TLS without a client certificate
        tls(0, 0, b"device-7"),
        tls(TLS | CONNECTION, 1, b"device-7"),  # not verified
        tls(TLS | CONNECTION, 0xFFFFFFFF, b"device-7"),
        tls(TLS | CONNECTION, 0),  # a certificate without a common name
        option(0x22, b"device-7"),  # not within the TLS option
    ],
)
def test_unverified_name_is_ignored(options: bytes) -> None:
    assert named(options) == ""


@pytest.mark.parametrize(
    "names",
    [
        (b"",),
        (b"a", b"b"),
        (b"a", b"a"),
        (b"a\x00b",),
        (b"a\nb",),
        (b"\xff",),
        ("e\u0301".encode(),),  # a homoglyph
        ("a\u202eb".encode(),),
    ],
)
def test_invalid_name_is_refused(names: tuple[bytes, ...]) -> None:
    """It differs from no name: such a client does not become anonymous."""
    assert named(tls(TLS | CONNECTION, 0, *names, more=b"")) is None


@pytest.mark.parametrize(
    "options",
    [
        option(0x20, b""),
        option(0x20, b"\x03\x00\x00\x00"),
        option(0x20, b"\x03\x00\x00\x00\x00\x22\x00"),
        option(0x20, b"\x03\x00\x00\x00\x00\x22\x00\x09device-7"),
        tls(TLS | CONNECTION, 0, b"a") + tls(TLS | CONNECTION, 0, b"b"),
        tls(TLS | CONNECTION, 1, b"a") + tls(TLS | CONNECTION, 0, b"b"),
    ],
)
def test_malformed_options_are_refused(options: bytes) -> None:
    """Truncated or repeated options could be read differently by two parsers."""
    with pytest.raises(InvalidProxyHeader):
        ProxyHeader("any").take(header(options))


def test_damaged_options_never_change_the_name() -> None:
    """Each changed byte gives a refusal, no name, or the name in the bytes."""
    rng = random.Random(7)
    good = header(tls(TLS | CONNECTION, 0, b"device-7"))
    for _ in range(5_000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(28, len(data))] = rng.randrange(256)
        proxy = ProxyHeader("any")
        try:
            proxy.take(bytes(data))
        except InvalidProxyHeader:
            continue
        assert not proxy.common_name or proxy.common_name.encode() in bytes(data)


def come(edge: Edge, options: bytes, policy: ListenerPolicy = VOUCHED, **more: str) -> Session:
    """Connect behind a load balancer with these options."""
    session = edge.accept(policy)
    first = ProxiedSocket("any")
    first.header.take(header(options))
    session.client.first_bytes = first
    session.connect(**more)  # type: ignore[arg-type]
    return session


def test_verified_name_is_the_identity() -> None:
    """It precedes the user name and suffices without anonymous access; without it the listener's policy decides."""
    edge = Edge(steps=[CertificateStep(NameKind.CN)])
    session = come(edge, tls(TLS | CONNECTION, 0, b"device-7"), username="somebody-else")
    assert session.read()[0].reason_code == 0 and session.client.owner == "device-7"
    assert come(edge, tls(TLS | CONNECTION, 1, b"device-7")).read()[0].reason_code == 0x87
    assert come(edge, b"", username="u").read()[0].reason_code == 0x87


def test_invalid_name_is_refused_with_anonymous_access() -> None:
    edge = Edge(steps=[CertificateStep(NameKind.CN)])
    open_to_all = ListenerPolicy("proxied", True, proxy_identity=True)
    session = come(edge, tls(TLS | CONNECTION, 0, b"a\nb"), open_to_all)
    assert session.read()[0].reason_code == 0x87 and edge.core.counts["refused_proxy_identity"] == 1
    assert come(edge, b"", open_to_all).read()[0].reason_code == 0


def test_name_is_ignored_without_proxy_identity() -> None:
    edge = Edge(steps=[CertificateStep(NameKind.CN)])
    session = come(edge, tls(TLS | CONNECTION, 0, b"device-7"), ListenerPolicy("proxied", False))
    assert session.read()[0].reason_code == 0x87


def test_load_balancer_certificate_is_not_the_clients() -> None:
    """A node's certificate is still refused."""
    edge = Edge(steps=[CertificateStep(NameKind.CN)], read_certificate=lambda _: facts("load-balancer"))
    assert come(edge, b"").read()[0].reason_code == 0x87
    session = come(edge, tls(TLS | CONNECTION, 0, b"device-7"))
    assert session.read()[0].reason_code == 0 and session.client.owner == "device-7"
    node = Edge(read_certificate=lambda _: facts("e0", of_cluster=True))
    assert come(node, tls(TLS | CONNECTION, 0, b"device-7")).read()[0].reason_code == 0x87


@pytest.mark.parametrize("versions", ["none", "v1"])
def test_proxy_identity_without_proxy_protocol_is_refused(versions: Any) -> None:
    """The error names both settings."""
    with pytest.raises(ValidationError, match="proxy_identity needs proxy_protocol"):
        ListenerSettings(name="x", port=0, tls=False, proxy_protocol=versions, proxy_identity=True)
