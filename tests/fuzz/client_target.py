"""Fuzz target of the client's session: any bytes from a broker, or an impostor, to a gateway."""

from mqtt import StreamDecoder, encode_packet
from mqtt.client_session import Accepted, ClientBounds, ClientSession, ClientState, MustClose, PublishReceived
from mqtt.packets import Connack, Connect, Disconnect, Packet, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqtt.properties import Properties, PropertyId
from mqtt.reasons import ReasonCode

__all__ = ["CLIENT_STREAMS", "client_stream"]

RECEIVE_MAXIMUM = 3
ALIASED: Properties = {PropertyId.TOPIC_ALIAS: 1}
_STREAMS: list[list[Packet]] = [
    [Publish("a", b"1", 1, packet_identifier=1), Publish("b", b"2", 2, packet_identifier=2), Pubrel(2), Pingresp()],
    [Puback(1), Pubrec(2), Pubcomp(2), Publish("a", b"0"), Disconnect(ReasonCode.USE_ANOTHER_SERVER)],
    [Publish("a", properties=dict(ALIASED)), Publish("", properties=dict(ALIASED)), Puback(9), Pubcomp(2), Connack()],
]


def _bytes(version: int, packets: list[Packet]) -> bytes:
    return b"".join(encode_packet(packet, version) for packet in (Connack(), *packets))


CLIENT_STREAMS = tuple(
    bytes((version + 8 * step,)) + _bytes(version, packets)
    for step, version in enumerate((5, 4, 5))
    for packets in _STREAMS
    if version == 5 or (Connack() not in packets and packets[-1] != Disconnect(ReasonCode.USE_ANOTHER_SERVER))
)


def _run(version: int, data: bytes, step: int) -> tuple[list[str], bytes]:
    """Return the events and the packets of a session that reads ``data`` in pieces, and publishes when it may."""
    session, events, sent = ClientSession(), [], bytearray()
    session.begin(0.0, ClientBounds(window=2))
    properties: Properties = {PropertyId.RECEIVE_MAXIMUM: RECEIVE_MAXIMUM, PropertyId.TOPIC_ALIAS_MAXIMUM: 1}
    session.opened(0.0, Connect("c", protocol_version=version, properties=properties if version == 5 else {}))
    for offset in range(0, len(data), step):
        session.handle(1.0, data[offset : offset + step])
        while (event := session.next_event()) is not None:
            events.append(repr(event))
            match event:
                case Accepted():
                    for qos in (1, 2):
                        if session.has_room:
                            packet = Publish("mine", b"", qos, packet_identifier=session.next_identifier())
                            session.publish(packet, qos)
                case PublishReceived(packet):
                    assert packet.topic_name, "an alias was not resolved"
                    session.acknowledge(packet)
                case MustClose():
                    sent += b"".join(session.take_output())
                    session.closed()
                    assert session.state is ClientState.AWAY
                    return events, bytes(sent)
        sent += b"".join(session.take_output())
        assert len(session.inbound) <= (RECEIVE_MAXIMUM if version == 5 else 65_535)
        assert len(session.outbound) <= 2
    return events, bytes(sent)


def client_stream(data: bytes) -> None:
    """The cuts of the stream do not matter, only events come out, and each sent packet decodes."""
    version = 5 if not data or data[0] & 1 else 4
    whole = _run(version, data[1:], len(data) + 1)
    assert _run(version, data[1:], 1 + (data[0] >> 3 if data else 0)) == whole
    StreamDecoder(version).feed(whole[1])
