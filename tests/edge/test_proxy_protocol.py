"""PROXY headers before TLS and MQTT: exact reads, trusted senders, any fragmentation."""

import random
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic import ValidationError

from conf.settings import ListenerSettings
from edge.listeners.listener_admission import proxy_admission
from edge.listeners.proxied_socket import ProxiedSocket, TrustedProxies
from edge.listeners.proxy_protocol import HEADER_BYTES_MAX, InvalidProxyHeader, ProxyHeader, crc32c
from edge.loop.options import FirstBytes
from tests.clients.packets import connect
from tests.edge.loop.conftest import load
from tests.edge.loop.test_loop import Client, certificates, running
from tests.patience import PATIENCE_S

__all__ = ["certificates"]

V1 = b"PROXY TCP4 192.0.2.7 192.0.2.9 5555 1883\r\n"
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
IPV4 = bytes([192, 0, 2, 7, 192, 0, 2, 9]) + struct.pack(">HH", 5555, 1883)
IPV6 = bytes(15) + b"\x01" + bytes(16) + struct.pack(">HH", 5555, 1883)


def v2(family: int, addresses: bytes, command: int = 1) -> bytes:
    return SIGNATURE + bytes([0x20 | command, family]) + struct.pack(">H", len(addresses)) + addresses


def checked(addresses: bytes, wrong: int = 0) -> bytes:
    """Return a header of version 2 with a checksum."""
    header = bytearray(v2(0x11, addresses + b"\x03\x00\x04" + bytes(4)))
    header[-4:] = struct.pack(">I", crc32c(bytes(header)) ^ wrong)
    return bytes(header)


GOOD: tuple[tuple[str, bytes, tuple[str, int] | None], ...] = (
    ("v1", V1, ("192.0.2.7", 5555)),
    ("any", b"PROXY TCP6 ::1 ::2 5555 1883\r\n", ("::1", 5555)),
    ("any", b"PROXY UNKNOWN\r\n", None),
    ("any", b"PROXY UNKNOWN whatever\r\n", None),
    ("v2", v2(0x11, IPV4), ("192.0.2.7", 5555)),
    ("any", v2(0x21, IPV6 + b"\xe1\x00\x04TLVS"), ("::1", 5555)),
    ("any", checked(IPV4), ("192.0.2.7", 5555)),
    ("any", v2(0x11, bytes(12), command=0), None),  # LOCAL
    ("any", v2(0x00, b"", command=0), None),
    ("any", v2(0x00, b"ignored"), None),
    ("any", v2(0x31, bytes(216)), None),  # a Unix socket has no address
)
WRONG: tuple[tuple[str, bytes], ...] = (
    ("any", b"\x10\x0c\x00\x04MQTT"),
    ("any", b"\x16\x03\x01\x02\x00\x01"),
    ("v2", V1),
    ("v1", v2(0x11, IPV4)),
    ("any", b"PROXY TCP4 a.b.c.d 192.0.2.9 5555 1883\r\n"),
    ("any", b"PROXY TCP4 ::1 ::2 5555 1883\r\n"),
    ("any", b"PROXY TCP4 192.0.2.7 192.0.2.9 70000 1883\r\n"),
    ("any", b"PROXY TCP4 192.0.2.7 192.0.2.9 -1 1883\r\n"),
    ("any", b"PROXY TCP4 192.0.2.7 192.0.2.9 5555 x\r\n"),
    ("any", b"PROXY TCP4 192.0.2.7\r\n"),
    ("any", b"PROXY UDP4 192.0.2.7 192.0.2.9 5555 1883\r\n"),
    ("any", b"PROXY TCP4 " + b"1" * 200),
    ("any", b"PROXY \xff\r\n"),
    ("any", SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12)),
    ("any", SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12)),
    ("any", SIGNATURE + b"\x21\x11\xff\xff"),
    ("any", v2(0x12, IPV4)),  # datagrams
    ("any", v2(0x11, IPV4[:11])),
    ("any", v2(0x21, IPV4)),
    ("any", v2(0x11, IPV4 + b"\xe1\x00")),
    ("any", v2(0x11, IPV4 + b"\xe1\x00\x05TLVS")),
    ("any", checked(IPV4, wrong=1)),
    ("any", v2(0x11, IPV4 + b"\x03\x00\x02\x00\x00")),
)


def test_crc32c_vectors() -> None:
    """RFC 3720, appendix B.4."""
    assert [crc32c(data) for data in (b"", bytes(32), b"\xff" * 32, bytes(range(32)), b"123456789")] == [
        0, 0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0xE3069283,
    ]  # fmt: skip


@pytest.mark.parametrize(("versions", "header", "source"), GOOD)
def test_exactly_the_header_is_read(versions: str, header: bytes, source: tuple[str, int] | None) -> None:
    """In any fragmentation."""
    data = header + b"\x16\x03\x01 CONNECT"
    for step in (1, 2, 7, 1000):
        proxy, taken, seen = ProxyHeader(versions), 0, 0
        while not proxy.complete:
            seen = min(len(data), seen + step)
            taken += proxy.take(data[taken:seen])
            assert taken == min(seen, len(header))
        assert (taken, proxy.source, proxy.local) == (len(header), source, header[12:13] == b"\x20")


@pytest.mark.parametrize(("versions", "data"), WRONG)
def test_invalid_headers_are_refused(versions: str, data: bytes) -> None:
    """At once or byte by byte."""
    with pytest.raises(InvalidProxyHeader):
        ProxyHeader(versions).take(data)
    proxy = ProxyHeader(versions)
    with pytest.raises(InvalidProxyHeader):
        for at in range(len(data)):
            proxy.take(data[at : at + 1])


def test_random_bytes_are_refused_or_bounded() -> None:
    """Damaged headers end, within the largest header."""
    rng = random.Random(1)
    for _ in range(3000):
        data = bytearray(rng.choice(GOOD)[1] + bytes(rng.randrange(30)))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        proxy, taken = ProxyHeader("any"), 0
        try:
            while not proxy.complete and taken < len(data):
                taken += proxy.take(bytes(data[taken : taken + rng.randint(1, 40)]))
        except InvalidProxyHeader:
            continue
        assert taken <= HEADER_BYTES_MAX


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
        ("2001:db8::1", False),
    ],
)
def test_default_trusted_networks(address: str, trusted: bool) -> None:
    """Loopback, also as IPv4-mapped IPv6."""
    settings = ListenerSettings(name="x", port=0, tls=False, proxy_protocol="any")
    door = proxy_admission(settings.proxy_protocol, settings.proxy_trusted)
    assert door is not None and door.trusted.names(address) is trusted
    assert proxy_admission("none", settings.proxy_trusted) is None


def test_invalid_network_is_reported() -> None:
    """At the start, with its text."""
    with pytest.raises(ValidationError, match=r"10\.0\.0\.1/8"):
        ListenerSettings(name="x", port=0, tls=False, proxy_trusted=("10.0.0.1/8",))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    theirs.setblocking(False)
    yield ours, theirs
    for one in (ours, theirs, listener):
        one.close()


def step(sock: ProxiedSocket, theirs: socket.socket) -> int:
    """Wait for data, then read."""
    import select

    assert select.select([theirs], [], [], 10)[0]
    return sock.read(theirs.fileno())


@pytest.mark.parametrize(
    ("sent", "outcome"),
    [
        (b"", "proxy_checks"),
        (b"PROXY UNKNOWN\r\n", "proxy_checks"),
        (V1, "proxy_checks"),
        (v2(0, b"", command=0), "proxy_checks"),
        (v2(0, b""), "proxy_checks"),
        (b"PROXY TCP4", "proxy_headers_wrong"),
        (b"GET / HTTP/1.1\r\n", "proxy_headers_wrong"),
    ],
)
def test_connections_without_client_data(pair: Any, sent: bytes, outcome: str) -> None:
    """A health check is no error, a truncated header is one."""
    ours, theirs = pair
    first = ProxiedSocket("any")
    ours.sendall(sent)
    ours.shutdown(socket.SHUT_WR)
    for _ in range(10):
        if step(first, theirs) == FirstBytes.ENDED:
            break
    assert first.outcome == outcome


def test_trust_uses_the_socket_peer(pair: Any) -> None:
    _, theirs = pair
    assert TrustedProxies(["127.0.0.0/8"]).refusal(theirs.fileno()) == ""
    assert TrustedProxies(["10.0.0.0/8"]).refusal(theirs.fileno()) == "proxy_untrusted"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("form", ["compiled", "pure"])
async def test_loop_reads_header_before_tls(certificates: Path, tls: bool, form: str) -> None:
    """Split anywhere, together with the client's first bytes or alone; the client's bytes reach TLS unchanged.

    LOCAL is served like any other header: "the receiver must accept this connection as valid" [PROXY protocol, 2.2].
    """
    hot = load(form)
    context, trusting = None, None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
        trusting = ssl.create_default_context(cafile=str(certificates / "cert.pem"))
    async with running(hot, tls=context) as edge:
        first: list[ProxiedSocket] = []

        def attach(_: object, fd: int) -> None:
            first.append(ProxiedSocket("any"))
            options = hot.options.ConnOptions(tls=context, first_bytes=first[-1])
            edge.hot.attach(fd, 0, options, hot.descriptors.boot_ns())

        edge.handler.attach = attach
        for header in (V1, checked(IPV4), v2(0x00, b""), v2(0, b"", command=0), v2(0x11, bytes(12), command=0)):
            for cut in (0, 1, len(header) // 2, len(header)):
                stream: Any = await trio.open_tcp_stream("127.0.0.1", edge.port)
                await stream.send_all(header[:cut])
                if 0 < cut < len(header):
                    with trio.fail_after(PATIENCE_S):
                        while not first or not first[-1].header.begun:
                            await trio.sleep(0.001)
                await stream.send_all(header[cut:] + (b"" if tls else connect()))
                if trusting is not None:
                    stream = trio.SSLStream(stream, trusting, server_hostname="localhost")
                    await stream.send_all(connect())
                assert (await Client(stream).packets(1))[0][0] == 0x20
                named = header is V1 or (header[12:13] == b"\x21" and header[13:14] != b"\x00")
                assert first[-1].source == (("192.0.2.7", 5555) if named else None)
        assert not edge.handler.errors
