"""Clients above Receive Maximum: accepted in order up to a second limit, then not read, then 0x93.

paho-mqtt and older libmosquitto resend all in-flight messages at once after CONNACK.
"""

from typing import Any

import pytest

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import PublishMessage, decode_publish
from wire.messages.frames import FrameKind

SECOND_NS = 1_000_000_000
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


def again(qos: int, count: int, payload: bytes = b"m") -> bytes:
    """Return all in-flight messages of a client as one write."""
    return b"".join(publish(b"t", payload, qos, number, 5, dup=True) for number in range(1, count + 1))


def limited(hot: Any, receive_maximum: int = 2, *, fresh: bool = False, **limits: Any) -> tuple[Broker, Any]:
    broker = Broker(hot, **limits)
    broker.handler.session_options = {"announced_receive_maximum": receive_maximum, "fresh": fresh}
    return broker, broker.client(5)


def sweep(broker: Broker, seconds: float) -> None:
    """Advance the time, with a sweep every second."""
    for _ in range(int(seconds)):
        broker.now_ns += SECOND_NS
        broker.turn()
        broker.hot.sweep(broker.now_ns)
        broker.turn()


class OtherEdge:
    """Another edge with the only subscriber; the test triggers its acknowledgements."""

    def __init__(self, broker: Broker) -> None:
        self.node = Node(broker, 2, "edge")
        broker.route_to(edges=(self.node.peer,))
        self.payloads: list[bytes] = []

    def take(self) -> int:
        """Receive messages without acknowledging them; return their number."""
        before = len(self.payloads)
        for kind, payload in self.node.take():
            if kind == FrameKind.PUBLISH:
                for record in decode_publish(payload):
                    assert isinstance(record, PublishMessage)
                    self.payloads.append(record.payload)
        return len(self.payloads) - before

    def acknowledge(self) -> None:
        self.node.tell()


def identifiers(packets: list[bytes], kind: int) -> list[int]:
    return [int.from_bytes(packet[2:4], "big") for packet in packets if packet[0] == kind]


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_above_receive_maximum_are_handled_in_order(hot: Any, qos: int) -> None:
    """40 messages for a Receive Maximum of 2: one copy of each, acknowledged in order, no 0x93."""
    broker, pub = limited(hot)
    sub = broker.subscriber(b"#", 2)
    data = b"".join(publish(b"t", b"%d" % number, qos, number, 5) for number in range(1, 41))
    broker.send(pub, data)
    first = broker.take(pub)
    assert identifiers(first, PUBACK if qos == 1 else PUBREC) == list(range(1, 41))
    if qos == 2:
        broker.send(pub, b"".join(ack(PUBREL, number) for number in range(1, 41)))
        assert identifiers(broker.take(pub), PUBCOMP) == list(range(1, 41))
    assert len(broker.take(sub)) == 40 and not broker.handler.errors
    sweep(broker, 30)
    assert not broker.handler.errors and not pub.parked
    assert broker.hot.counters()["excess_begun"] == qos - 1  # messages acknowledged at once are never above it


def test_client_above_second_limit_is_not_read(hot: Any) -> None:
    """The limit in messages: the rest stays unread until the first are acknowledged, in order."""
    broker, pub = limited(hot, receive_excess_messages_max=10)
    other_edge = OtherEdge(broker)
    broker.send(pub, b"".join(publish(b"t", b"%d" % number, 1, number, 5) for number in range(1, 41)))
    taken = [other_edge.take()]
    assert taken == [12] and pub.parked and broker.hot.counters()["parked_quota"] == 1
    while len(other_edge.payloads) < 40 and len(taken) < 10:
        other_edge.acknowledge()
        broker.turn()
        broker.turn()
        taken.append(other_edge.take())
    other_edge.acknowledge()
    assert other_edge.payloads == [b"%d" % number for number in range(1, 41)]
    assert identifiers(broker.take(pub), PUBACK) == list(range(1, 41))
    assert not broker.handler.errors and not pub.parked


def test_excess_bytes_limit_unacknowledged_messages(hot: Any) -> None:
    """The limit in bytes counts messages until our acknowledgement."""
    broker, pub = limited(hot, receive_excess_bytes_max=50_000)
    other_edge = OtherEdge(broker)
    broker.send(pub, again(1, 40, bytes(10_000)))
    # Two of them are within Receive Maximum; the sixth of the others meets the limit.
    assert other_edge.take() in range(7, 9) and pub.parked
    for _ in range(10):
        other_edge.acknowledge()
        broker.turn()
        broker.turn()
        other_edge.take()
    other_edge.acknowledge()
    assert identifiers(broker.take(pub), PUBACK) == list(range(1, 41))
    broker.send(pub, again(1, 2, bytes(10_000)))
    assert not pub.parked and not broker.handler.errors


def test_missing_pubrels_end_excess_after_timeout(hot: Any) -> None:
    """0x93 if only the client's PUBRELs were missing for 10 s; each PUBREL restarts the 10 s."""
    broker, pub = limited(hot)
    broker.send(pub, again(2, 5))
    sweep(broker, 9)
    assert not broker.handler.errors
    broker.send(pub, ack(PUBREL, 1))
    sweep(broker, 9)
    assert not broker.handler.errors
    sweep(broker, 3)
    assert broker.handler.errors == [(pub, 0x93)]


def test_pubrel_within_receive_maximum_has_no_timeout(hot: Any) -> None:
    """Released excess no longer counts, however long the other messages stay open."""
    broker, pub = limited(hot)
    broker.send(pub, again(2, 3))
    broker.send(pub, ack(PUBREL, 2))
    sweep(broker, 60)
    assert not broker.handler.errors


def test_excess_timeout_excludes_broker_delays(hot: Any) -> None:
    """While storage, another edge or the lease is the cause, the client's timeout does not run."""
    broker, pub = limited(hot, receive_excess_wait_ns=SECOND_NS)
    other_edge = OtherEdge(broker)
    broker.send(pub, again(2, 5))
    assert other_edge.take() == 5
    sweep(broker, 3)  # the timeout of a link is four
    other_edge.acknowledge()
    assert not broker.handler.errors
    broker.hot.set_lease(0)
    sweep(broker, 3)
    assert not broker.handler.errors
    broker.hot.set_lease(1 << 60)
    sweep(broker, 3)
    assert (pub, 0x93) in broker.handler.errors  # and the link had timed out


def test_unread_pubrels_above_second_limit_end_the_connection(hot: Any) -> None:
    """The client's own messages in front of them block reading."""
    broker, pub = limited(hot, receive_excess_messages_max=3)
    broker.send(pub, again(2, 10) + b"".join(ack(PUBREL, number) for number in range(1, 11)))
    assert len(identifiers(broker.take(pub), PUBREC)) == 5 and pub.parked
    sweep(broker, 12)
    assert broker.handler.errors == [(pub, 0x93)]


def test_new_session_without_resends_gets_0x93_at_once(hot: Any) -> None:
    """[MQTT-3.3.4-7]: Clean Start, and Receive Maximum QoS 2 messages wait for its PUBRELs."""
    broker, pub = limited(hot, fresh=True)
    broker.send(pub, b"".join(publish(b"t", b"", 2, number, 5) for number in range(1, 4)))
    assert broker.handler.errors == [(pub, 0x93)]


@pytest.mark.parametrize("qos", [1, 2])
def test_new_session_with_resends_is_served(hot: Any, qos: int) -> None:
    """DUP indicates an earlier disconnection; QoS 1 always waits for the broker."""
    broker, pub = limited(hot, fresh=True)
    if qos == 1:
        OtherEdge(broker)
        broker.send(pub, b"".join(publish(b"t", b"", 1, number, 5) for number in range(1, 41)))
    else:
        broker.send(pub, again(2, 1) + b"".join(publish(b"t", b"", 2, number, 5) for number in range(2, 41)))
        assert len(identifiers(broker.take(pub), PUBREC)) == 40
    assert not broker.handler.errors and not pub.parked
