"""Certificates that a load balancer verified: whom its PROXY header vouches for, and who is believed."""

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
def test_a_verified_name_is_taken(flags: int) -> None:
    """Also from a session that the client resumed; other options stand beside it."""
    assert named(tls(flags, 0, b"device-7")) == "device-7"
    assert named(option(0xE1, b"x") + tls(flags, 0, "gerät".encode()) + option(0x04, b"")) == "gerät"


@pytest.mark.parametrize(
    "options",
    [
        b"",
        tls(TLS, 0),
        tls(TLS, 0, b"device-7"),  # TLS without a certificate of the client
        tls(0, 0, b"device-7"),
        tls(TLS | CONNECTION, 1, b"device-7"),  # not verified
        tls(TLS | CONNECTION, 0xFFFFFFFF, b"device-7"),
        tls(TLS | CONNECTION, 0),  # a certificate without a common name
        option(0x22, b"device-7"),  # not within the option about TLS
    ],
)
def test_nothing_else_names_anybody(options: bytes) -> None:
    """NIST: protect. What was not verified is as if nothing was given."""
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
        ("e\u0301".encode(),),  # looks like another name
        ("a\u202eb".encode(),),
    ],
)
def test_a_name_that_no_client_can_have_names_nobody(names: tuple[bytes, ...]) -> None:
    """It is told apart from no name: such a client is refused, and not taken for an anonymous one."""
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
def test_malformed_options_refuse_the_connection(options: bytes) -> None:
    """Cut off, or two of them: one reader could take the first and another one the last."""
    with pytest.raises(InvalidProxyHeader):
        ProxyHeader("any").take(header(options))


def test_damaged_options_never_name_another_client() -> None:
    """Whatever a byte becomes: the header is refused, or names nobody, or a name that its bytes hold."""
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
    """Connect behind a load balancer that says so."""
    session = edge.accept(policy)
    first = ProxiedSocket("any")
    first.header.take(header(options))
    session.client.first_bytes = first
    session.connect(**more)  # type: ignore[arg-type]
    return session


def test_the_name_is_the_clients_identity() -> None:
    """Before its user name, and enough where nobody is anonymous; without one the listener's policy decides."""
    edge = Edge(steps=[CertificateStep(NameKind.CN)])
    session = come(edge, tls(TLS | CONNECTION, 0, b"device-7"), username="somebody-else")
    assert session.read()[0].reason_code == 0 and session.client.owner == "device-7"
    assert come(edge, tls(TLS | CONNECTION, 1, b"device-7")).read()[0].reason_code == 0x87
    assert come(edge, b"", username="u").read()[0].reason_code == 0x87


def test_a_wrong_name_is_refused_where_anonymous_clients_are_allowed() -> None:
    """NIST: protect. Counted by its reason."""
    edge = Edge(steps=[CertificateStep(NameKind.CN)])
    open_to_all = ListenerPolicy("proxied", True, proxy_identity=True)
    session = come(edge, tls(TLS | CONNECTION, 0, b"a\nb"), open_to_all)
    assert session.read()[0].reason_code == 0x87 and edge.core.counts["refused_proxy_identity"] == 1
    assert come(edge, b"", open_to_all).read()[0].reason_code == 0


def test_a_listener_that_was_not_told_believes_no_name() -> None:
    """The default: the header names an address alone."""
    edge = Edge(steps=[CertificateStep(NameKind.CN)])
    session = come(edge, tls(TLS | CONNECTION, 0, b"device-7"), ListenerPolicy("proxied", False))
    assert session.read()[0].reason_code == 0x87


def test_the_load_balancers_own_certificate_is_no_clients() -> None:
    """A client without a certificate does not become its load balancer; a node's certificate is refused still."""
    edge = Edge(steps=[CertificateStep(NameKind.CN)], read_certificate=lambda _: facts("load-balancer"))
    assert come(edge, b"").read()[0].reason_code == 0x87
    session = come(edge, tls(TLS | CONNECTION, 0, b"device-7"))
    assert session.read()[0].reason_code == 0 and session.client.owner == "device-7"
    node = Edge(read_certificate=lambda _: facts("e0", of_cluster=True))
    assert come(node, tls(TLS | CONNECTION, 0, b"device-7")).read()[0].reason_code == 0x87


@pytest.mark.parametrize("versions", ["none", "v1"])
def test_a_listener_without_such_headers_cannot_ask_for_them(versions: Any) -> None:
    """The start is refused, and names both settings."""
    with pytest.raises(ValidationError, match="proxy_identity needs proxy_protocol"):
        ListenerSettings(name="x", port=0, tls=False, proxy_protocol=versions, proxy_identity=True)
