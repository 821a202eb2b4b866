"""Clients that send more than Receive Maximum: taken in order up to a second bound, then not read, then 0x93.

paho-mqtt and older libmosquitto send again all that is open, at once, after CONNACK.
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
    """All that a client has, at once."""
    return b"".join(publish(b"t", payload, qos, number, 5, dup=True) for number in range(1, count + 1))


def limited(hot: Any, receive_maximum: int = 2, *, fresh: bool = False, **limits: Any) -> tuple[Broker, Any]:
    broker = Broker(hot, **limits)
    broker.handler.session_options = {"announced_receive_maximum": receive_maximum, "fresh": fresh}
    return broker, broker.client(5)


def sweep(broker: Broker, seconds: float) -> None:
    """Let time pass, the loop looking every second."""
    for _ in range(int(seconds)):
        broker.now_ns += SECOND_NS
        broker.turn()
        broker.hot.sweep(broker.now_ns)
        broker.turn()


class Elsewhere:
    """Another edge with the only subscriber: it acknowledges when it is told to."""

    def __init__(self, broker: Broker) -> None:
        self.node = Node(broker, 2, "edge")
        broker.route_to(edges=(self.node.peer,))
        self.payloads: list[bytes] = []

    def take(self) -> int:
        """Take what came, without saying so; return how many messages."""
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
def test_what_lies_above_receive_maximum_is_handled_in_order(hot: Any, qos: int) -> None:
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
    assert broker.hot.counters()["excess_begun"] == qos - 1  # what is acknowledged at once is never above


def test_beyond_the_second_bound_it_is_not_read(hot: Any) -> None:
    """The bound in messages: the rest stays unread until the first are acknowledged, in order."""
    broker, pub = limited(hot, receive_excess_messages_max=10)
    elsewhere = Elsewhere(broker)
    broker.send(pub, b"".join(publish(b"t", b"%d" % number, 1, number, 5) for number in range(1, 41)))
    taken = [elsewhere.take()]
    assert taken == [12] and pub.parked and broker.hot.counters()["parked_quota"] == 1
    while len(elsewhere.payloads) < 40 and len(taken) < 10:
        elsewhere.acknowledge()
        broker.turn()
        broker.turn()
        taken.append(elsewhere.take())
    elsewhere.acknowledge()
    assert elsewhere.payloads == [b"%d" % number for number in range(1, 41)]
    assert identifiers(broker.take(pub), PUBACK) == list(range(1, 41))
    assert not broker.handler.errors and not pub.parked


def test_bytes_bound_what_waits_for_us(hot: Any) -> None:
    """The bound in bytes counts messages without our acknowledgement, and ends with it."""
    broker, pub = limited(hot, receive_excess_bytes_max=50_000)
    elsewhere = Elsewhere(broker)
    broker.send(pub, again(1, 40, bytes(10_000)))
    # Two of them lie within Receive Maximum; the sixth of the others finds the bound reached.
    assert elsewhere.take() in range(7, 9) and pub.parked
    for _ in range(10):
        elsewhere.acknowledge()
        broker.turn()
        broker.turn()
        elsewhere.take()
    elsewhere.acknowledge()
    assert identifiers(broker.take(pub), PUBACK) == list(range(1, 41))
    broker.send(pub, again(1, 2, bytes(10_000)))
    assert not pub.parked and not broker.handler.errors


def test_its_own_pubrels_are_waited_for(hot: Any) -> None:
    """0x93 when the excess waited for nothing but the client's PUBRELs for 10 s; each PUBREL gives it 10 s more."""
    broker, pub = limited(hot)
    broker.send(pub, again(2, 5))
    sweep(broker, 9)
    assert not broker.handler.errors
    broker.send(pub, ack(PUBREL, 1))
    sweep(broker, 9)
    assert not broker.handler.errors
    sweep(broker, 3)
    assert broker.handler.errors == [(pub, 0x93)]


def test_within_receive_maximum_pubrel_may_take_its_time(hot: Any) -> None:
    """The excess that was released counts no longer, however long the others stay open."""
    broker, pub = limited(hot)
    broker.send(pub, again(2, 3))
    broker.send(pub, ack(PUBREL, 2))
    sweep(broker, 60)
    assert not broker.handler.errors


def test_it_does_not_pay_for_our_delay(hot: Any) -> None:
    """While storage, another edge or the lease is what is missing, no time runs against the client."""
    broker, pub = limited(hot, receive_excess_wait_ns=SECOND_NS)
    elsewhere = Elsewhere(broker)
    broker.send(pub, again(2, 5))
    assert elsewhere.take() == 5
    sweep(broker, 3)  # a link may be silent for four
    elsewhere.acknowledge()
    assert not broker.handler.errors
    broker.hot.set_lease(0)
    sweep(broker, 3)
    assert not broker.handler.errors
    broker.hot.set_lease(1 << 60)
    sweep(broker, 3)
    assert (pub, 0x93) in broker.handler.errors  # and the link was silent by then


def test_pubrels_behind_the_second_bound_end_it_too(hot: Any) -> None:
    """They cannot be read: the messages in front of them are the client's own."""
    broker, pub = limited(hot, receive_excess_messages_max=3)
    broker.send(pub, again(2, 10) + b"".join(ack(PUBREL, number) for number in range(1, 11)))
    assert len(identifiers(broker.take(pub), PUBREC)) == 5 and pub.parked
    sweep(broker, 12)
    assert broker.handler.errors == [(pub, 0x93)]


def test_a_new_session_that_repeats_nothing_is_told_at_once(hot: Any) -> None:
    """[MQTT-3.3.4-7]: Clean Start, and as many QoS 2 messages as it may have wait for its PUBRELs."""
    broker, pub = limited(hot, fresh=True)
    broker.send(pub, b"".join(publish(b"t", b"", 2, number, 5) for number in range(1, 4)))
    assert broker.handler.errors == [(pub, 0x93)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_new_session_that_sends_again_is_served(hot: Any, qos: int) -> None:
    """DUP says that it was cut off before; QoS 1 waits for us in any case."""
    broker, pub = limited(hot, fresh=True)
    if qos == 1:
        Elsewhere(broker)
        broker.send(pub, b"".join(publish(b"t", b"", 1, number, 5) for number in range(1, 41)))
    else:
        broker.send(pub, again(2, 1) + b"".join(publish(b"t", b"", 2, number, 5) for number in range(2, 41)))
        assert len(identifiers(broker.take(pub), PUBREC)) == 40
    assert not broker.handler.errors and not pub.parked
