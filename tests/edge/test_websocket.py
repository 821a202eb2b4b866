"""WebSocket below MQTT: sans-IO, byte by byte."""

import gc
import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import FrameProtocol

from conf.served_hosts import ServedHosts
from edge.listeners.listener_admission import listener_filter
from edge.listeners.page_origins import PageOrigins
from edge.listeners.websocket import WebSocketServer
from mqtt.data_types import encode_varint


class Browser:
    """The client's side of a WebSocket, by wsproto."""

    def __init__(self, *subprotocols: str) -> None:
        self.connection = WSConnection(ConnectionType.CLIENT)
        self.hello = self.connection.send(Request(host="h", target="/mqtt", subprotocols=list(subprotocols)))

    def events(self, data: bytes) -> list[object]:
        self.connection.receive_data(data)
        return list(self.connection.events())

    def message(self, data: bytes, finished: bool = True) -> bytes:
        return self.connection.send(BytesMessage(data=data, message_finished=finished))


def opened(clock: Callable[[], float] = lambda: 100.0) -> tuple[WebSocketServer, Browser]:
    server, browser = WebSocketServer(clock=clock), Browser("mqtt")
    assert server.receive(browser.hello) == b""
    (accepted,) = browser.events(server.take_output())
    assert isinstance(accepted, AcceptConnection) and accepted.subprotocol == "mqtt"
    return server, browser


def test_packets_need_not_align_with_frames() -> None:
    """[MQTT-6.0.0-2]: the bytes keep their order in any framing, in both directions."""
    server, browser = opened()
    data = browser.message(b"ab") + browser.message(b"cde", finished=False) + browser.message(b"f")
    received = b"".join(server.receive(data[i : i + 1]) for i in range(len(data)))
    assert received == b"abcdef"
    (event,) = browser.events(server.wrap(b"answer"))
    assert isinstance(event, BytesMessage) and event.data == b"answer"


def packet(size: int) -> bytes:
    """Return a PUBLISH of QoS 0 with ``size`` bytes after its fixed header."""
    return b"\x30" + encode_varint(size) + b"\0\1t" + bytes(size - 3)


def test_each_packet_has_its_own_frame() -> None:
    """paho C reads the second packet of a frame late; ``joined`` is a setting of the listener."""
    sizes = (3, 123, 124, 125, 126, 127, 128, 16_383, 16_384, 65_535, 65_536, 2_097_152)
    packets = [packet(size) for size in sizes] + [b"\xd0\0", b"\x40\2\0\1"]
    server, browser = opened()
    events = browser.events(server.wrap(b"".join(packets)))
    assert [event.data for event in events if isinstance(event, BytesMessage)] == packets
    joined = WebSocketServer(joined=True)
    browser = Browser("mqtt")
    joined.receive(browser.hello)
    browser.events(joined.take_output())
    (event,) = browser.events(joined.wrap(b"".join(packets[:3])))
    assert isinstance(event, BytesMessage) and event.data == b"".join(packets[:3])


@pytest.mark.parametrize("data", [b"\xd0", b"\x30\xff", b"\x30\xff\xff\xff\xff\xff", b"\xd0\0\x30\5a", b"\x30\5"])
def test_incomplete_packets_are_sent(data: bytes) -> None:
    server, browser = opened()
    assert (
        b"".join(event.data for event in browser.events(server.wrap(data)) if isinstance(event, BytesMessage)) == data
    )


def test_handshake_in_fragments_with_data() -> None:
    """The handshake may arrive byte by byte; no output precedes it."""
    server, browser = WebSocketServer(), Browser("x", "mqtt")
    assert server.wrap(b"too early") == b""
    assert all(server.receive(browser.hello[i : i + 1]) == b"" for i in range(len(browser.hello)))
    assert isinstance(browser.events(server.take_output())[0], AcceptConnection)


def test_wrong_subprotocol_is_rejected() -> None:
    """[MQTT-6.0.0-3]: "mqtt" must be among the offered ones."""
    server, browser = WebSocketServer(), Browser("chat")
    assert server.receive(browser.hello) == b"" and server.ended
    assert isinstance(browser.events(server.take_output())[0], RejectConnection)


def test_text_frame_ends_the_connection() -> None:
    """[MQTT-6.0.0-1]: the close frame has 1003."""
    server, browser = opened()
    assert server.receive(browser.connection.send(TextMessage(data="x"))) == b"" and server.ended
    (event,) = browser.events(server.take_output())
    assert isinstance(event, CloseConnection) and event.code == 1003
    assert server.receive(b"more") == b""


@pytest.mark.parametrize("kind", [Ping, Pong])
def test_ping_is_answered_and_control_flood_closes(kind: type) -> None:
    """Control frames have a rate, 1008; interleaved data does not matter, and pongs count too."""
    server, browser = opened()
    assert server.receive(browser.connection.send(Ping(payload=b"p"))) == b""
    (event,) = browser.events(server.take_output())
    assert isinstance(event, Pong) and event.payload == b"p"
    results = [server.receive(browser.connection.send(kind()) + browser.message(b"\xc0\x00")) for _ in range(20)]
    assert results[18:] == [b"\xc0\x00", b""] and server.ended
    last = browser.events(server.take_output())[-1]
    assert isinstance(last, CloseConnection) and last.code == 1008


def test_control_frames_within_their_rate() -> None:
    """Ten a second without end, and twenty at once after a network outage."""
    moments = itertools.count()
    server, browser = opened(lambda: next(moments) / 20)
    for _ in range(500):
        assert server.receive(browser.connection.send(Ping())) == b""
    late, other = opened()
    for _ in range(20):
        assert late.receive(other.connection.send(Ping())) == b""


def test_close_is_answered() -> None:
    """Data before the close is delivered."""
    server, browser = opened()
    data = browser.message(b"last") + browser.connection.send(CloseConnection(code=1000))
    assert server.receive(data) == b"last" and server.ended
    assert isinstance(browser.events(server.take_output())[0], CloseConnection)


def test_flood_of_tiny_fragments_ends_the_connection() -> None:
    """A frame of one byte is no packet: a few are accepted, a stream of them costs too much."""
    server, browser = opened()
    results = [server.receive(browser.message(b"x", finished=False)) for _ in range(600)]
    assert results[0] == b"x" and results[-1] == b"" and server.ended
    assert isinstance(browser.events(server.take_output())[-1], CloseConnection)
    honest, other = opened()
    for _ in range(600):  # two bytes are PINGREQ
        assert honest.receive(other.message(b"\xc0\x00")) == b"\xc0\x00"


def test_message_of_many_short_fragments_closes() -> None:
    """256 of them, 1008; the number of long ones is unlimited, and of short messages."""
    server, browser = opened()
    results = [server.receive(browser.message(b"xy", finished=False)) for _ in range(300)]
    assert results[255:258] == [b"xy", b"xy", b""] and server.ended
    assert isinstance(browser.events(server.take_output())[-1], CloseConnection)
    honest, other = opened()
    for _ in range(600):
        assert honest.receive(other.message(bytes(1024), finished=False)) == bytes(1024)
    for _ in range(600):
        assert honest.receive(other.message(bytes(4))) == bytes(4)


def head_of_a_frame(length: int, opcode: int = 2) -> bytes:
    """Return the header of a masked frame with a length of 65 536 bytes or more."""
    return bytes([0x80 | opcode, 0xFF]) + length.to_bytes(8, "big")


@pytest.mark.parametrize(
    ("packet_bytes_max", "most"), [(1024, 1 << 20), ((1 << 20) + 65_536, (1 << 20) + 65_536), (8 << 20, 8 << 20)]
)
@pytest.mark.parametrize("opcode", [0, 1, 2])
def test_too_long_frame_is_refused_at_its_header(packet_bytes_max: int, most: int, opcode: int) -> None:
    """1009 before its payload; 1 MiB, or the largest packet if that is more."""
    begun = b"\x02\x81\0\0\0\0\xc0" if opcode == 0 else b""  # a continued message
    for length, code in ((most, 0), (most + 1, 1009), (1 << 40, 1009), ((1 << 63) - 1, 1009)):
        server, browser = WebSocketServer(packet_bytes_max=packet_bytes_max), Browser("mqtt")
        server.receive(browser.hello)
        browser.events(server.take_output())
        server.receive(begun)
        received = server.receive(head_of_a_frame(length, opcode))
        said = browser.events(server.take_output())
        if code:
            assert [event.code for event in said if isinstance(event, CloseConnection)] == [code]
            assert server.refusal == "websocket_frames_refused" and server.receive(bytes(100)) == b""
        else:
            assert not said and server.refusal == ""
        assert received == b"" and server.ended is bool(code)


def test_data_before_too_long_frame_is_delivered() -> None:
    """As before a close."""
    server, browser = opened()
    assert server.receive(browser.message(b"\xc0\x00") + head_of_a_frame(1 << 40)) == b"\xc0\x00" and server.ended
    assert isinstance(browser.events(server.take_output())[0], CloseConnection)


def test_extension_offers_are_ignored() -> None:
    """No extension is negotiated."""
    server, browser = WebSocketServer(), Browser("mqtt")
    for offer in (b"", b";", b"; x=1, ;", b"permessage-deflate"):
        server = WebSocketServer()
        server.receive(browser.hello[:-2] + b"Sec-WebSocket-Extensions: " + offer + b"\r\n\r\n")
        answer = server.take_output()
        assert answer.startswith(b"HTTP/1.1 101") and b"extensions" not in answer.lower()


def test_endless_handshake_closes() -> None:
    """At most 16 KiB of it."""
    server = WebSocketServer()
    assert server.receive(b"GET / HTTP/1.1\r\nHost: h\r\n") == b""
    results = [server.receive(b"X-A: " + b"a" * 1000 + b"\r\n") for _ in range(20)]
    assert results[-1] == b"" and server.ended


@pytest.mark.parametrize("garbage", [b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", b"GET /\r\n\r\n", b"\xff" * 100])
def test_invalid_handshake(garbage: bytes) -> None:
    """Plain MQTT at a WebSocket listener, for example."""
    server = WebSocketServer()
    assert server.receive(garbage) == b"" and server.wrap(b"x") == b""


def test_filter_of_a_listener() -> None:
    """WebSocket if configured, else none."""
    assert listener_filter("mqtt")(1, "") is None and isinstance(listener_filter("ws")(1, ""), WebSocketServer)


def test_plain_listener_imports_no_websocket() -> None:
    """Neither at the start nor for its first client; a WebSocket listener imports it at the start."""
    code = (
        "import sys; from edge.listeners.listener_admission import listener_filter\n"
        "assert listener_filter('mqtt')(1, '') is None\n"
        "assert 'wsproto' not in sys.modules\n"
        "listener_filter('ws')\n"
        "assert 'wsproto' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def asked(
    target: str,
    host: str,
    *origins: bytes,
    path: str = "/mqtt",
    pages: PageOrigins | None = None,
    local: str = "",
) -> tuple[int, str]:
    """Return the status of a response, 101 for success, and the counter."""
    server, connection = WebSocketServer(path, pages, local=local), WSConnection(ConnectionType.CLIENT)
    headers = [(b"Origin", origin) for origin in origins]
    request = Request(host=host, target=target, subprotocols=["mqtt"], extra_headers=headers)
    server.receive(connection.send(request))
    return int(server.take_output().split(b" ")[1]), server.refusal


@pytest.mark.parametrize(
    ("target", "path", "status"),
    [
        ("/mqtt", "/mqtt", 101),
        ("/mqtt?token=1", "/mqtt", 101),
        ("/", "/mqtt", 404),
        ("/mqtt/", "/mqtt", 404),
        ("/MQTT", "/mqtt", 404),
        ("/anything", "", 101),
    ],
)
def test_only_the_configured_path_is_served(target: str, path: str, status: int) -> None:
    assert asked(target, "h", path=path) == (status, "websocket_paths_refused" if status == 404 else "")


@pytest.mark.parametrize(
    ("host", "origins", "status"),
    [
        ("broker.example:8083", (), 101),  # not a browser
        ("evil.example:8083", (), 101),
        ("broker.example:8083", (b"http://broker.example:8083",), 101),
        ("BROKER.example.", (b"http://broker.EXAMPLE:80",), 101),
        ("broker.example:80", (b"http://broker.example",), 101),
        ("192.0.2.7:8083", (b"http://192.0.2.7:8083",), 101),
        ("[2001:db8:0::7]:8083", (b"http://[2001:db8::7]:8083",), 403),  # browsers normalize both
        ("[2001:db8::7]:8083", (b"http://[2001:db8::7]:8083",), 101),
        ("a.wild.example:8083", (b"http://a.wild.example:8083",), 101),
        ("localhost:8083", (b"http://localhost:8083",), 101),
        ("127.0.0.1:8083", (b"http://127.0.0.1:8083",), 101),
        ("127.1.2.3:8083", (b"http://127.1.2.3:8083",), 101),
        ("[::1]:8083", (b"http://[::1]:8083",), 101),
        ("10.0.0.5:8083", (b"http://10.0.0.5:8083",), 101),  # the local address of the connection
        # other schemes, ports and hosts
        ("broker.example:8083", (b"https://broker.example:8083",), 403),
        ("broker.example:8083", (b"http://broker.example:3000",), 403),
        ("broker.example:8083", (b"http://broker.example",), 403),
        ("localhost:8083", (b"http://localhost:3000",), 403),
        ("localhost:8083", (b"http://127.0.0.1:8083",), 403),
        ("broker.example:8083", (b"http://evil.example:8083",), 403),
        ("broker.example", (b"http://broker.example.evil.example",), 403),
        ("broker.example", (b"http://evil.example#broker.example",), 403),
        ("broker.example", (b"http://evil.example@broker.example",), 403),
        ("broker.example", (b"null",), 403),
        ("broker.example", (b"",), 403),
        ("broker.example", (b"http://broker.example", b"http://broker.example"), 403),
        ("broker.example", (b"http://[",), 403),
        ("broker.example", (b"http://broker.example:99999999",), 403),
        # DNS rebinding: Host has the page's own name
        ("evil.example:8083", (b"http://evil.example:8083",), 421),
        ("evil.example", (b"http://evil.example",), 421),
        ("localhost.evil.example:8083", (b"http://localhost.evil.example:8083",), 421),
        ("127.0.0.1.evil.example", (b"http://127.0.0.1.evil.example",), 421),
        ("a.b.wild.example:8083", (b"http://a.b.wild.example:8083",), 421),
        ("wild.example:8083", (b"http://wild.example:8083",), 421),
        ("203.0.113.9:8083", (b"http://203.0.113.9:8083",), 421),
        ("[::2]:8083", (b"http://[::2]:8083",), 421),
    ],
)
def test_pages_of_other_origins_are_refused(host: str, origins: tuple[bytes, ...], status: int) -> None:
    """RFC 6455, section 10.2; and the host is one of the listener's own (DNS rebinding)."""
    hosts = ServedHosts(["0.0.0.0", "broker.example", "192.0.2.7"])
    hosts.set_certified({"*.wild.example", "2001:db8::7"})
    expected = {
        101: (101, ""),
        403: (403, "websocket_origins_refused"),
        421: (403, "websocket_hosts_refused"),
    }[status]
    assert asked("/mqtt", host, *origins, pages=PageOrigins((), "http", hosts), local="::ffff:10.0.0.5") == expected


@pytest.mark.parametrize("local", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.5.5.5", "[::1]"])
def test_loopback_listener_accepts_loopback_pages_only(local: str, host: str) -> None:
    pages = PageOrigins((), "https", ServedHosts([local]))
    assert asked("/mqtt", f"{host}:8084", f"https://{host}:8084".encode(), pages=pages, local=local)[0] == 101
    for other in ("evil.example:8084", "192.0.2.1:8084", "[2001:db8::1]:8084"):
        found = asked("/mqtt", other, f"https://{other}".encode(), pages=pages, local=local)
        assert found == (403, "websocket_hosts_refused")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (b"https://App.example", 101),
        (b"https://app.example:444", 403),
        (b"https://broker.example", 403),
        (b"http://localhost:8083", 403),
    ],
)
def test_listed_origins_match_exactly(origin: bytes, status: int) -> None:
    pages = PageOrigins(("https://app.example",), "http", ServedHosts(["broker.example"]))
    assert asked("/mqtt", "localhost:8083", origin, pages=pages)[0] == status


def test_closed_connection_is_freed_at_once() -> None:
    """Some of wsproto's objects form a cycle, and the collector rarely runs: 4 KiB a connection stayed."""
    hello = Browser("mqtt").hello
    gc.collect()
    gc.disable()
    try:
        for more in (b"", b"\x89\xe4\0\0\0\0" + b"x" * 100, b"\x88\x80\0\0\0\0"):
            server = WebSocketServer()
            server.receive(hello)
            assert any(isinstance(each, FrameProtocol) for each in gc.get_objects())
            server.receive(more)
            del server
            assert not any(isinstance(each, FrameProtocol) for each in gc.get_objects())
    finally:
        gc.enable()


def test_flood_after_close_is_not_kept() -> None:
    """The connection may linger until its peer has read the close; its later data need not."""
    server, browser = opened()
    flood = browser.connection.send(Ping(b"x" * 100)) * 5_000
    gc.collect()
    tracemalloc.start()
    try:
        assert server.receive(flood) == b"" and server.ended and server.take_output()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 32 * 1024
