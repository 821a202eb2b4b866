"""Framing: from a byte stream, cut anywhere, to packets (MQTT 5.0 section 2.1).

Finds the boundaries of packets, and refuses as early as the bytes allow: a bad first byte before its length, a length
before its body. It never buffers more than the limits allow.
"""

from mqtt.data_types import varint_end, varint_value
from mqtt.decode import check_first_byte, decode_packet
from mqtt.errors import MalformedPacket, RemoteProtocolError
from mqtt.limits import DEFAULT_LIMITS, Limits
from mqtt.packets import Connect, Packet
from mqtt.reasons import PacketType, ReasonCode

__all__ = ["StreamDecoder"]


class StreamDecoder:
    """Incremental decoder of one direction of one connection.

    Args:
        protocol_version: 3, 4 or 5. A decoded CONNECT changes it.
        limits: Limits of the receiver.
        connect_first: The first packet must be a CONNECT and no other may be [MQTT-3.1.0-1] [MQTT-3.1.0-2].

    Attributes:
        protocol_version: The current version.
        error: The error that ended the stream, or None. ``feed`` raises it at once, or, if it has earlier packets to
            return, in the next call.
    """

    def __init__(
        self, protocol_version: int = 4, limits: Limits = DEFAULT_LIMITS, *, connect_first: bool = False
    ) -> None:
        self.protocol_version = protocol_version
        self.error: RemoteProtocolError | None = None
        self._limits = limits
        self._connect_first = connect_first
        self._first = True
        self._buffer = bytearray()
        self._body = 0  # offset of the body of the last packet
        self._needed = 1  # bytes needed before the next parse

    def __len__(self) -> int:
        """Return the number of buffered bytes of an incomplete packet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Packet]:
        """Process the next bytes of the stream; return the packets that they complete.

        Raises:
            MalformedPacket: 0x81. The stream cannot be decoded further.
            RemoteProtocolError: 0x82, 0x95 for a packet above the limit, or another code.
        """
        if self.error is not None:
            raise self.error
        packets: list[Packet] = []
        buffer = self._buffer
        buffer += data
        offset = 0
        try:
            while (end := self._frame_end(offset)) is not None:
                packets.append(self._decode(offset, end))
                offset = end
        except RemoteProtocolError as error:
            self.error = error
            self._buffer = bytearray()
            if not packets:
                raise
            return packets
        if offset:
            del buffer[:offset]
            self._needed -= offset
        return packets

    def _frame_end(self, offset: int) -> int | None:
        """Return the end of the packet at offset, or None while it is incomplete."""
        buffer = self._buffer
        if len(buffer) < self._needed:
            return None
        if offset == len(buffer):
            self._needed = offset + 1
            return None
        self._check_first_byte(buffer[offset])
        body = varint_end(buffer, offset + 1)
        if body == -1:
            self._needed = len(buffer) + 1
            return None
        if body == -2:
            raise MalformedPacket("remaining length longer than four bytes, section 2.1.4")
        if buffer[body - 1] == 0 and body > offset + 2 and self.protocol_version == 5:
            raise MalformedPacket("remaining length not in its shortest form [MQTT-1.5.5-1]")
        end = body + varint_value(buffer, offset + 1, body)
        limits = self._limits
        if end - offset > (limits.first_packet_bytes_max if self._first else limits.maximum_packet_size):
            raise RemoteProtocolError(f"packet of {end - offset} bytes", ReasonCode.PACKET_TOO_LARGE)
        self._needed = end
        if end > len(buffer):
            return None
        self._body = body
        return end

    def _check_first_byte(self, first_byte: int) -> None:
        if self._connect_first and (first_byte >> 4 == PacketType.CONNECT) != self._first:
            if self._first:
                raise RemoteProtocolError("the first packet is no CONNECT [MQTT-3.1.0-1]")
            raise RemoteProtocolError("a second CONNECT [MQTT-3.1.0-2]")
        check_first_byte(first_byte, self.protocol_version, self._limits)

    def _decode(self, offset: int, end: int) -> Packet:
        buffer = self._buffer
        packet = decode_packet(buffer[offset], bytes(buffer[self._body : end]), self.protocol_version, self._limits)
        self._first = False
        self._needed = end + 1
        if isinstance(packet, Connect):
            self.protocol_version = packet.protocol_version
        return packet
