"""QoS 2 messages in flight during a removal of the publish permission: not routed, and counted."""

from typing import Any

from mqtt.packets import Pubcomp
from tests.clients.packets import ack
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import book, roles, ruled, somebody
from wire.messages.sessions import RecordInbound

EXPIRY: dict[int, Any] = {17: 100}


def place() -> tuple[Edge, Session, Session]:
    """Return an edge, a durable publisher that may publish up/#, and a reader of it."""
    edge = ruled(roles(device={"publish": ["up/#"], "subscribe": ["up/#"]}))
    reader = somebody(edge, "reader")
    reader.subscribe("up/#")
    reader.read()
    return edge, somebody(edge, "anna", properties=EXPIRY), reader


def take_rights(edge: Edge) -> None:
    edge.core.replace_rules(book(roles(device={"subscribe": ["up/#"]})))
    while edge.core.access.next_deadline() == 0.0:
        edge.turn()
    edge.turn()


def test_recorded_message_after_permission_removal_is_refused() -> None:
    """PUBREC refuses, and no subscriber gets the message."""
    edge, anna, reader = place()
    edge.held.add(RecordInbound)
    anna.publish("up/a", qos=2, identifier=5)
    assert anna.read() == []
    take_rights(edge)
    edge.held.clear()
    edge.turn()
    assert [packet.reason_code for packet in anna.read()] == [0x87] and reader.read() == []
    assert edge.core.counts["refused_publish_rights"] == 1


def test_repeated_publish_after_pubrec_gets_same_response() -> None:
    """PUBREC under the former permission was lost: the repeat gets the same one, and no second copy is sent."""
    edge, anna, reader = place()
    anna.publish("up/a", qos=2, identifier=5)
    assert [packet.reason_code for packet in anna.read()] == [0]
    assert [packet.payload for packet in reader.read()] == [b"m"]
    take_rights(edge)
    anna.publish("up/a", qos=2, identifier=5, dup=True)
    assert [packet.reason_code for packet in anna.read()] == [0] and reader.read() == []
    anna.send(ack(0x62, 5))
    assert [type(packet) for packet in anna.read()] == [Pubcomp] and reader.read() == []
