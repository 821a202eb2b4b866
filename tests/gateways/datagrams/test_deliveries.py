"""Deliveries to subscribers: given up if they are silent, not if single messages are lost."""

from gateways.datagrams.deliveries import Deliveries, PendingDelivery
from gateways.datagrams.messages import Code, DatagramPublish, DatagramSubscribe, Endpoint
from gateways.datagrams.node import DatagramNode
from gateways.datagrams.subscribers import DatagramPeer
from tests.gateways.datagrams.test_hostile import codes, made, send
from tests.gateways.datagrams.tree_simulation import TreeSimulation

THERE, PUBLISHER = (DatagramPeer(Endpoint(bytes((10, 0, 0, last)), 1000)) for last in (2, 3))


def test_deliveries_responsive_subscriber_loses_one_message_only() -> None:
    """A message that is always lost is tried ten times and given up alone; other messages still arrive."""
    deliveries, tries = Deliveries(0), 0
    first, messages = PendingDelivery(None, 0, 0), [PendingDelivery(None, 0, number) for number in range(40)]
    packet = deliveries.send(0.0, THERE, DatagramPublish("a", b"lost"), 1, first)
    assert packet is not None
    others, now = iter(messages), 0.0
    while first.open:
        now += 0.5
        other = next(others, None)
        if other is not None:
            sent = deliveries.send(now, THERE, DatagramPublish("a", b""), 1, other)
            assert sent is not None
        again, ended, silent_peers = deliveries.repeat(now)
        tries += sum(each.request == packet.request for _, each in again)
        assert not silent_peers and ended in ([], [first])
        if other is not None and sent is not None and not ended:
            deliveries.record_received(now, THERE.endpoint)
            deliveries.answered(now, THERE.endpoint, sent.request)
        elif other is None:
            deliveries.record_received(now, THERE.endpoint)
    assert tries == 9 and 24 < now < 28 and deliveries.given_up == 1
    assert sum(each.open for each in messages) <= 1  # possibly the one sent in the same step


def test_deliveries_silent_subscriber_is_given_up() -> None:
    deliveries, messages = Deliveries(0), [PendingDelivery(None, 0, number) for number in range(100)]
    for waiting in messages:
        deliveries.send(0.0, THERE, DatagramPublish("a", b""), 1, waiting)
    deliveries.record_received(7.0, THERE.endpoint)  # before the fifth try
    now = 0.0
    while any(each.open for each in messages):
        now += 0.25
        deliveries.repeat(now)
    assert now == 15.5 and deliveries.given_up == 100
    packet = deliveries.send(now, THERE, DatagramPublish("a", b""), 1, messages[0])
    assert packet is not None and not messages[0].open  # sent, and not waited for


def test_deliveries_lossy_subscriber_receives_all() -> None:
    """With 20 % loss some of 600 messages fail five tries; otherwise the subscriber would be given up."""
    tree = TreeSimulation(5, loss=0.2)
    tree.add_node(1, "", None)
    publisher, subscriber = tree.add_device(100, 1), tree.add_device(101, 1)
    tree.subscribe(subscriber, "#")
    tree.run_until(110)
    for tick in range(600):
        tree.run_until(110 + tick / 10)
        tree.publish(publisher, "a")
    tree.run_until(260)
    # After the last message the device sends nothing else, so that each message has five tries.
    assert all(when > 175 for when in tree.record.given_up.values()) and not tree.lost()
    assert {each.code for each in tree.record.publications.values()} == {0}
    assert len(tree.record.received[subscriber.address]) == 600


def received(node: DatagramNode, now: float, number: int, qos: int = 0) -> list[DatagramPeer]:
    """Return the destinations of a device's publish."""
    ready = send(node, PUBLISHER, DatagramPublish("a", b"x", qos, number), now)
    return [sent.peer for sent in ready.send if isinstance(sent.packet.body, DatagramPublish)]


def test_a_subscription_is_stored_for_300_s() -> None:
    """Without renewal it expires; a longer lease is not granted."""
    node = made()
    assert codes(send(node, THERE, DatagramSubscribe("a", 0, lease_s=10_000))) == [Code.SUBSCRIBED]
    assert received(node, 300.0, 1) == [THERE]
    assert received(node, 302.0, 2) == []
    assert node.statistics["subscriptions"] == 0


def test_a_subscribe_with_end_is_an_unsubscribe() -> None:
    """It is answered, and no further message is sent."""
    node = made()
    send(node, THERE, DatagramSubscribe("a", 0))
    assert received(node, 1.0, 1) == [THERE]
    assert codes(send(node, THERE, DatagramSubscribe("a", 0, end=True))) == [Code.SUBSCRIBED]
    assert received(node, 1.0, 2) == []


def test_deliveries_window_and_queue_are_bounded() -> None:
    """The publisher of the next one is answered busy, and its message is not distributed."""
    node = made()
    send(node, THERE, DatagramSubscribe("a", 1))
    sent = sum(len(received(node, 1.0, number, 1)) for number in range(1, 64 + 256 + 1))
    assert sent == 64
    assert codes(send(node, PUBLISHER, DatagramPublish("a", b"x", 1, 321), 1.0)) == [Code.BUSY]
