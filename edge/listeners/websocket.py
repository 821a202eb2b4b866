"""MQTT over WebSocket: the handshake and frames of RFC 6455 around a connection's bytes, by wsproto.

A client's packets need not align with frames [MQTT-6.0.0-2]; text frames are refused [MQTT-6.0.0-1]; the subprotocol is
"mqtt" [MQTT-6.0.0-3]. Bounded: frames are passed on in parts, handshakes and control frames are limited. Each packet to
a client has its own frame unless the listener joins them: paho C reads the first packet of a frame and then waits for
more data of the socket.
"""

from collections.abc import Callable

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
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits
from wsproto.utilities import ProtocolError

from edge.listeners.page_origins import PageOrigins, RefusedPage
from wire.clock import boot_time

__all__ = ["FRAME_BYTES_MAX", "WebSocketServer"]

FRAME_BYTES_MAX = 1 << 20  # of one frame, or the listener's largest packet if larger: beyond it close code 1009
HANDSHAKE_BYTES_MAX = 16 * 1024
CONTROL_RATE = 10.0  # control frames a second, pings and pongs together: beyond it the connection is closed
CONTROL_BURST = 20  # of them at once, as after a network outage
FRAGMENTS_MAX = 256  # of one message if they are short on average; a stream may be one message of long fragments
FRAGMENT_BYTES = 1024
TINY_FRAMES_MAX = 64  # surplus of data frames of 0 or 1 byte over longer ones: no packet is so short
FINAL_BINARY = 0x82  # FIN and the opcode of binary data
SUBPROTOCOLS = ("mqtt", "mqttv3.1")


class FrameLimit(Extension):
    """Refuses too long frames by their headers; an extension that is never offered, so not on the wire."""

    name = ""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.exceeded = False

    def enabled(self) -> bool:
        """Return True: wsproto calls it for each frame."""
        return True

    def offer(self) -> bool:
        """Return False: it is no extension of the protocol."""
        return False

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        """Refuse a frame by the length in its header, before its payload is read."""
        self.exceeded = payload_length > self._bytes_max
        if self.exceeded:
            return CloseReason.MESSAGE_TOO_BIG
        return super().frame_inbound_header(proto, opcode, rsv, payload_length)


class WebSocketServer:
    """One connection's WebSocket layer; a ``StreamFilter``.

    Args:
        path: The only allowed path, "" for any.
        pages: Pages that may connect.
        packet_bytes_max: Of an MQTT packet; also a bound of frames, because clients send each packet in a frame.
        joined: Packets that are sent together share a frame.
        local: Local address of the connection.

    Attributes:
        refused_page: A page that may not connect, for the log.
        refusal: Name of the counter if the handshake or a frame's length was refused, else "".
        ended: The connection must close: the peer closed, or was refused.
    """

    def __init__(
        self,
        path: str = "",
        pages: PageOrigins | None = None,
        packet_bytes_max: int = 0,
        joined: bool = False,
        local: str = "",
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self.refusal = ""
        self.ended = False
        self._frame_limit = FrameLimit(max(FRAME_BYTES_MAX, packet_bytes_max))
        self._joined = joined
        self._path = path
        self._pages = PageOrigins() if pages is None else pages
        self._local = local
        self.refused_page: RefusedPage | None = None
        self._connection = WSConnection(ConnectionType.SERVER)
        self._output = bytearray()
        self._open = False
        self._handshake_bytes = 0
        self._clock = clock
        self._controls_used_until = 0.0  # end of the used part of the control frames' rate
        self._tiny = 0
        self._fragments = self._fragment_bytes = 0  # of the incomplete message

    def __del__(self) -> None:
        """Free the parser of a closed connection."""
        self._free_parser()

    def _free_parser(self) -> None:
        """Free the parser, a generator that references itself: a node rarely runs the collection of old cycles.

        This also frees its unread data, up to half a megabyte after a burst on a lingering connection.
        """
        framing = self._connection.connection  # None before the handshake
        if framing is not None:
            framing._proto._parse_more.close()
        self._connection = WSConnection(ConnectionType.SERVER)

    def receive(self, data: bytes) -> bytes:
        """Return the MQTT bytes of the frames in ``data``, including those before a frame that ended the layer."""
        received = bytearray()
        if self.ended:
            return b""
        if not self._open:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self._end()
                return b""
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                if not self._take(event, received):
                    self._end()
                    break
        except (ProtocolError, ValueError):
            self._end()
        return bytes(received)

    def _end(self) -> None:
        self.ended = True
        self._free_parser()

    def _take(self, event: object, received: bytearray) -> bool:
        """Handle one event; False ends the connection."""
        if isinstance(event, BytesMessage):
            received += event.data
            if not self._note_length(event):
                return self._refuse(CloseReason.POLICY_VIOLATION)
        elif isinstance(event, Request):
            status = self._check_handshake(event)
            if status:
                self._output += self._connection.send(RejectConnection(status_code=status))
                return False
            chosen = next((name for name in SUBPROTOCOLS if name in event.subprotocols), None)
            if chosen is None:
                self._output += self._connection.send(RejectConnection(status_code=400))
                return False
            self._output += self._connection.send(AcceptConnection(chosen, [self._frame_limit]))
            self._open = True
        elif isinstance(event, Ping | Pong):
            used_until = max(self._controls_used_until, self._clock()) + 1 / CONTROL_RATE
            if used_until > self._clock() + CONTROL_BURST / CONTROL_RATE:
                return self._refuse(CloseReason.POLICY_VIOLATION)
            self._controls_used_until = used_until
            if isinstance(event, Ping):
                self._output += self._connection.send(event.response())
        elif isinstance(event, TextMessage):
            return self._refuse(CloseReason.UNSUPPORTED_DATA)
        elif isinstance(event, CloseConnection):
            if self._frame_limit.exceeded:
                self.refusal = "websocket_frames_refused"
            self._output += self._connection.send(event.response())
            return False
        return True

    def _refuse(self, reason: CloseReason) -> bool:
        self._output += self._connection.send(CloseConnection(reason))
        return False

    def _note_length(self, event: BytesMessage) -> bool:
        """Count a frame; return False if the data frames are too short."""
        self._fragment_bytes += len(event.data)
        if event.frame_finished:
            self._tiny = self._tiny + 1 if len(event.data) < 2 else max(0, self._tiny - 1)
            self._fragments += 1
        if event.message_finished:
            self._fragments = self._fragment_bytes = 0
        short = self._fragments > FRAGMENTS_MAX and self._fragment_bytes < FRAGMENT_BYTES * self._fragments
        return not short and self._tiny <= TINY_FRAMES_MAX

    def _check_handshake(self, request: Request) -> int:
        """Return 0, or the status that refuses the handshake."""
        if self._path and request.target.partition("?")[0] != self._path:
            self.refusal = "websocket_paths_refused"
            return 404
        origins = [value.decode("latin-1") for name, value in request.extra_headers if name.lower() == b"origin"]
        self.refused_page = self._pages.refuse(origins, request.host, self._local)
        if self.refused_page is not None:
            self.refusal = self.refused_page.counter
            return 403
        return 0

    def wrap(self, data: bytes) -> bytes:
        """Return binary frames that carry whole MQTT packets; empty before the handshake or after the close."""
        if not self._open or self.ended or not data:
            return b""
        end = len(data) if self._joined else _packet_end(data, 0)
        if end == len(data):
            return _frame_head(end) + data
        frames, start = bytearray(), 0
        while start < len(data):
            end = _packet_end(data, start)
            frames += _frame_head(end - start)
            frames += data[start:end]
            start = end
        return bytes(frames)

    def take_output(self) -> bytes:
        """Return the pending output of the layer itself."""
        output = bytes(self._output)
        self._output.clear()
        return output


def _packet_end(data: bytes, start: int) -> int:
    """Return the end of the MQTT packet at ``start``, or of the data if that is earlier."""
    remaining = shift = 0
    for at in range(start + 1, min(start + 5, len(data))):
        remaining |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:
            return min(at + 1 + remaining, len(data))
    return len(data)


def _frame_head(size: int) -> bytes:
    """Return the header of a whole unmasked binary frame of a server [RFC 6455, 5.2].

    Own code because wsproto takes 18 us for a frame of 20 bytes, and an iteration may have hundreds of them.
    """
    if size < 126:
        return bytes((FINAL_BINARY, size))
    if size < 1 << 16:
        return bytes((FINAL_BINARY, 126, size >> 8, size & 0xFF))
    return bytes((FINAL_BINARY, 127)) + size.to_bytes(8, "big")
