"""Fuzz target of MQTT over WebSocket: client bytes after a handshake, and the frames sent to the client."""

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Ping, Request, TextMessage

from edge.listeners.websocket import TINY_FRAMES_MAX, WebSocketServer
from tests.clients.packets import ack, connect, publish

__all__ = ["WEBSOCKET_STREAMS", "websocket"]

SENT_MAX = 1 << 20
PACKETS = (connect(b"c", 5), publish(b"t", b"m", 2, 1, 5), publish(b"t", b"m" * 300, 0, 0, 5), ack(0x62, 1), b"\xc0\0")


def _client() -> tuple[WSConnection, bytes]:
    client = WSConnection(ConnectionType.CLIENT)
    return client, client.send(Request(host="h", target="/mqtt", subprotocols=["mqtt"]))


def _frames(*pieces: bytes) -> bytes:
    """Return the frames of a client that has been let in; the mask of each is drawn by the library."""
    client, request = _client()
    server = WebSocketServer()
    server.receive(request)
    client.receive_data(server.take_output())
    assert [type(event) for event in client.events()] == [AcceptConnection]
    return b"".join(client.send(BytesMessage(piece)) for piece in pieces)


def _other_frames() -> bytes:
    client, request = _client()
    server = WebSocketServer()
    server.receive(request)
    client.receive_data(server.take_output())
    list(client.events())
    first, last = (client.send(BytesMessage(part, message_finished=part == b"\0")) for part in (b"\xc0", b"\0"))
    return first + client.send(Ping(b"p")) + last + client.send(TextMessage("text"))


# First byte: how the input is cut, whether frames are joined, and whether the handshake comes from the input.
WEBSOCKET_STREAMS = (
    b"\0" + _frames(*PACKETS),
    b"\0" + _frames(b"".join(PACKETS)),
    b"\x40" + _frames(PACKETS[0][:3], PACKETS[0][3:] + PACKETS[1], PACKETS[3]),
    b"\4" + _other_frames(),
    b"\x80" + _client()[1],
    b"\x80" + _client()[1].replace(b"mqtt\r\n", b"other\r\n"),
    b"\x40" + b"".join(PACKETS),
)


def _read(data: bytes, step: int, joined: bool, opened: bool) -> tuple[WebSocketServer, bytes, bytes]:
    """Return a server that received the input in pieces, the MQTT bytes in it, and the layer's answer."""
    server = WebSocketServer(joined=joined, clock=lambda: 0.0)
    if opened:
        server.receive(_client()[1])
        server.take_output()
    received = output = b""
    for at in range(0, len(data), step):
        received += server.receive(data[at : at + step])
        output += server.take_output()
        assert len(received) <= len(data)
    return server, received, output


def websocket(data: bytes) -> None:
    """The cuts of the stream do not matter, and a client library reads the output, whole or in packets."""
    choice, rest = (data[0], data[1:]) if data else (0, b"")
    joined, opened = bool(choice & 0x40), not choice & 0x80
    server, received, output = _read(rest, len(rest) + 1, joined, opened)
    if len(rest) <= TINY_FRAMES_MAX:  # beyond it, ends of frames that come alone are counted as short frames
        again, same, answered = _read(rest, 1 + (choice & 0x3F), joined, opened)
        assert (same, again.ended) == (received, server.ended)
        assert answered == output or server.ended  # the reason of an end depends on the received part of the frame
    sent = server.wrap(rest)
    assert len(sent) <= SENT_MAX + 10 * len(rest)
    if server.ended or not opened:
        return
    client, request = _client()
    fresh = WebSocketServer(joined=joined)
    fresh.receive(request)
    client.receive_data(fresh.take_output())
    list(client.events())
    client.receive_data(sent)
    frames = [bytes(event.data) for event in client.events() if isinstance(event, BytesMessage)]
    assert b"".join(frames) == rest
    assert not joined or len(frames) <= 1
