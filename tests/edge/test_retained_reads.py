"""Retained messages for a SUBSCRIBE at one edge: copies, order with live messages, bounds of held copies."""

import pytest

from edge.subscriptions import live_message_holds
from mqtt.codec import encode_packet
from mqtt.packets import Puback, Publish, Suback, Unsuback
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, with_clients
from tests.edge.retained_partitions import RetainedPartitions, retained
from tests.edge.session_answers import publishes, said
from wire.messages.retained import (
    DeliverRetained,
    ReadRetained,
    ReadRetainedAll,
    RetainedDelivered,
    RetainedMessage,
    RetainedPage,
)
from wire.messages.sessions import SubscribeSession


def test_retained_copies_follow_suback() -> None:
    """RETAIN 1 [MQTT-3.3.1-8], at most the granted QoS; one partition for a concrete filter, all nodes otherwise."""
    edge = Edge()
    edge.retained = [retained("a/b")]
    session = edge.client()
    session.subscribe("a/b", qos=0)
    suback, copy = session.read()
    assert isinstance(suback, Suback)
    assert (copy.topic_name, copy.retain, copy.qos, copy.payload) == ("a/b", True, 0, b"old")
    session.subscribe("a/+", qos=2)
    _, copy = session.read()
    assert copy.retain and copy.qos == 1
    kinds = [type(message) for message in edge.seen if isinstance(message, ReadRetained | ReadRetainedAll)]
    assert kinds == [ReadRetained, ReadRetainedAll]


@pytest.mark.parametrize(("handling", "copies"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(handling: int, copies: list[int]) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11], for a first and for a repeated SUBSCRIBE."""
    edge = Edge()
    edge.retained = [retained("a")]
    session = edge.client()
    got = []
    for _ in range(2):
        session.subscribe("a", retain_handling=handling)
        got.append(len(publishes(session)))
    assert got == copies


def test_shared_subscription_reads_no_retained_messages() -> None:
    """Section 4.8.2."""
    edge = Edge()
    edge.retained = [retained("a")]
    session = edge.client()
    session.subscribe("$share/g/a")
    assert publishes(session) == []


def test_live_messages_are_held_for_retained_ones() -> None:
    """Retained first, then held ones, each once: a retained copy that is also held is not sent."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetained}
    session.subscribe("a", properties={PropertyId.SUBSCRIPTION_IDENTIFIER: [7]})
    for number, payload in enumerate((b"1", b"2", b"3")):
        publisher.publish("a", payload, number, number)
    assert [type(packet) for packet in session.read()] == [Suback]
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a", b"0"), retained("a", b"2")], partition=read.partition))
    copies = publishes(session)
    assert [(copy.payload, copy.retain, copy.qos) for copy in copies] == [
        (b"0", True, 1),
        (b"1", False, 0),
        (b"2", False, 1),
        (b"3", False, 2),
    ]
    assert all(copy.properties[PropertyId.SUBSCRIPTION_IDENTIFIER] == [7] for copy in copies)
    publisher.publish("a", b"4")
    assert [copy.payload for copy in publishes(session)] == [b"4"]
    assert len(edge.core.held) == 0


def test_held_copies_are_not_overtaken_by_other_subscriptions() -> None:
    """Order of a topic: neither UNSUBSCRIBE nor a second filter lets a later message overtake a held one."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetained, ReadRetainedAll}
    session.subscribe("a/b")
    publisher.publish("a/b", b"1", 1, 1)
    session.subscribe("a/+", retain_handling=2)  # reads no messages: alone it would be delivered at once
    publisher.publish("a/b", b"2", 1, 2)
    session.subscribe("a/#")
    publisher.publish("a/b", b"3", 1, 3)
    assert publishes(session) == []
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a/b", b"0")], partition=read.partition))
    assert [copy.payload for copy in publishes(session)] == [b"0"]  # the other filter still waits
    publisher.publish("a/b", b"4", 1, 4)
    session.unsubscribe("a/#")
    assert [copy.payload for copy in publishes(session)] == [b"1", b"2", b"3", b"4"]
    assert len(edge.core.held) == 0


def test_unsubscribe_ends_hold_and_read() -> None:
    """Held messages are sent before UNSUBACK; later retained ones are not."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetained}
    session.subscribe("a")
    publisher.publish("a", b"1", 1, 1)
    session.read()
    session.unsubscribe("a")
    assert [type(packet) for packet in session.read()] == [Publish, Unsuback]
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a", b"0")], partition=read.partition))
    edge.turn(6.0)
    assert session.read() == []


def test_hold_has_a_deadline_and_keeps_order() -> None:
    """At most retained_hold_s; until then hundreds of messages of every QoS keep their order."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p", version=4)
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    payloads = [b"%d" % number for number in range(200)]
    for number, payload in enumerate(payloads):
        publisher.publish("a", payload, 0 if number % 2 else 1, number + 1 if number % 2 == 0 else 0)
    edge.turn(4.0)
    assert publishes(session) == []
    edge.turn(1.1)
    held = publishes(session)
    assert [copy.payload for copy in held if copy.qos == 0] == payloads[1::2]
    assert [copy.payload for copy in held if copy.qos == 1] == payloads[::2][:64]  # the window of its client
    publisher.publish("a", b"late")  # the read is still in progress: messages are released
    edge.turn(0.1)
    assert [copy.payload for copy in publishes(session)] == [b"late"]
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a", b"old")], partition=read.partition))
    assert publishes(session) == [] and len(edge.core.held) == 0  # older than a released one


def test_hold_ends_with_large_messages() -> None:
    """A mebibyte for each client, even of few messages."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p", version=4)
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    payload = bytes(400_000)
    for number in range(2):
        publisher.publish("a", payload, 1, number + 1)
        edge.turn(0.1)
    assert publishes(session) == [] and "holds_cut_full" not in edge.core.counts
    publisher.publish("a", payload, 1, 3)
    edge.turn(0.1)
    assert [copy.payload for copy in publishes(session)] == [payload] * 3
    assert edge.core.counts["holds_cut_full"] == 1


def test_held_bytes_are_bounded_and_largest_holds_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only holds with more than their share of the edge's bound end, once it is reached."""
    monkeypatch.setattr(live_message_holds, "EDGE_BYTES_MAX", 300_000)
    edge = Edge()
    sessions, publisher = [edge.client(name) for name in "stu"], edge.client("p", version=4)
    edge.held = {ReadRetained}
    for number, session in enumerate(sessions):
        session.subscribe(f"a{number}")
        session.read()
    for number, count in enumerate((3, 1, 0)):
        for _ in range(count):
            publisher.publish(f"a{number}", bytes(80_000))
    edge.turn(0.1)
    assert [len(publishes(session)) for session in sessions] == [3, 0, 0]
    edge.turn(5.2)
    assert [len(publishes(session)) for session in sessions] == [0, 1, 0]


def test_hold_does_not_change_metrics() -> None:
    """Connections and copies count once."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    publisher.publish("a", b"1", 1, 1)
    figures = edge.core.hot.counters()
    assert (figures["connections"], figures["publish_out_qos1"]) == (2, 0)
    assert [packet.reason_code for packet in said(publisher, Puback)] == [0]  # its delivery is complete
    edge.turn(5.2)
    assert [copy.payload for copy in publishes(session)] == [b"1"]
    assert edge.core.hot.counters()["publish_out_qos1"] == 1


def test_held_message_expiry_is_reduced() -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]: it expires, or has less time left."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    for number, expiry_s in enumerate((3, 100)):
        publisher.publish("a", b"%d" % number, properties={PropertyId.MESSAGE_EXPIRY_INTERVAL: expiry_s})
    edge.turn(5.2)
    copies = publishes(session)
    assert [(copy.payload, copy.properties[PropertyId.MESSAGE_EXPIRY_INTERVAL]) for copy in copies] == [(b"1", 95)]
    assert edge.core.hot.counters()["dropped_expired"] == 1


def test_burst_in_one_iteration_is_bounded_without_loss() -> None:
    """Its publisher is paused, and excess copies are sent at the end of the iteration."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    packets = [Publish("a", bytes([number]) * 100_000) for number in range(24)]
    publisher.send(b"".join(encode_packet(packet, 5) for packet in packets))
    assert edge.core.counts["holds_cut_full"] == 1
    copies: list[Publish] = publishes(session)
    assert 10 < len(copies) < 24  # a burst of two mebibytes
    for _ in range(3):
        edge.turn(0.01)
        copies += publishes(session)
    assert [copy.payload for copy in copies] == [packet.payload for packet in packets]


def test_hold_of_closed_client_is_dropped() -> None:
    edge = Edge()
    session = edge.client("s")
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.drop()
    edge.turn(0.2)
    assert len(edge.core.held) == 0 and len(edge.core.hot.counters()) > 0
    assert edge.core.hot.counters()["connections"] == 0


def test_silent_partition_is_counted_and_live_messages_continue() -> None:
    """Its partitions are requested by themselves; the hold ends after retained_hold_s."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetainedAll}
    session.subscribe("a/#")
    session.read()
    publisher.publish("a/b", b"live")
    edge.turn(5.2)
    assert [copy.payload for copy in publishes(session)] == [b"live"]
    assert not any(isinstance(message, ReadRetained) for message in edge.seen)
    edge.turn(5.2)
    assert sum(isinstance(message, ReadRetained) for message in edge.seen) == 4
    assert edge.core.counts["retained_partitions_missed"] == 4 and not edge.core.retained.waits


def test_hold_ending_during_a_retained_publish_loses_nothing() -> None:
    """Simulation seed 1005: the message used the destination of the ended hold, and was lost."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    stores = RetainedPartitions(edge)
    publisher.publish("a", b"new", 1, 1, retain=True)
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a", b"old")], partition=read.partition))
    edge.turn()
    stores.waiting.pop()(0)
    edge.turn()
    assert [copy.payload for copy in publishes(session)] == [b"old", b"new"]
    assert [packet.reason_code for packet in said(publisher, Puback)] == [0]


def test_read_restarts_after_primary_change() -> None:
    """R12: the new primary holds first, then the edge reads again, without removed filters."""
    edge = Edge()
    edge.retained = [RetainedMessage("a/b", b"v", 1, b"")]
    session = edge.client("d", properties={PropertyId.SESSION_EXPIRY_INTERVAL: 100})
    edge.held = {DeliverRetained}
    session.subscribe("a/b", qos=1)
    subscribed = next(m.request for m in edge.seen if isinstance(m, SubscribeSession))
    (first,) = edge.take(DeliverRetained)
    assert (first.read, len(first.messages), first.done) == (subscribed, 1, False)
    edge.seen.clear()
    edge.storage(RetainedDelivered(first.request, again=True))
    (begin,) = edge.take(DeliverRetained)
    assert begin.read == begin.request and not begin.messages and not begin.done
    assert not any(isinstance(m, ReadRetained) for m in edge.seen)
    edge.storage(RetainedDelivered(begin.request))
    edge.turn()
    (copies,) = edge.take(DeliverRetained)
    assert (copies.read, len(copies.messages)) == (begin.request, 1)
    session.unsubscribe("a/b")
    edge.storage(RetainedDelivered(copies.request, again=True))
    edge.turn()
    assert edge.take(DeliverRetained) == []
