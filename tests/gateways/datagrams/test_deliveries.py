"""What is owed to subscribers: given up where they are silent, not where one message in many does not come."""

from gateways.datagrams.deliveries import Deliveries, PendingDelivery
from gateways.datagrams.messages import Code, DatagramPublish, DatagramSubscribe, Endpoint
from gateways.datagrams.node import DatagramNode
from gateways.datagrams.subscribers import DatagramPeer
from tests.gateways.datagrams.test_hostile import codes, made, say
from tests.gateways.datagrams.tree_simulation import TreeSimulation

THERE, PUBLISHER = (DatagramPeer(Endpoint(bytes((10, 0, 0, last)), 1000)) for last in (2, 3))


def test_who_answers_others_is_not_given_up_for_one() -> None:
    """One message that is lost each time is tried ten times and ends alone; what else is owed still comes."""
    deliveries, tries = Deliveries(0), 0
    first, waitings = PendingDelivery(None, 0, 0), [PendingDelivery(None, 0, number) for number in range(40)]
    packet = deliveries.send(0.0, THERE, DatagramPublish("a", b"lost"), 1, first)
    assert packet is not None
    others, now = iter(waitings), 0.0
    while first.open:
        now += 0.5
        other = next(others, None)
        if other is not None:
            sent = deliveries.send(now, THERE, DatagramPublish("a", b""), 1, other)
            assert sent is not None
        again, ended, gone = deliveries.repeat(now)
        tries += sum(each.request == packet.request for _, each in again)
        assert not gone and ended in ([], [first])
        if other is not None and sent is not None and not ended:
            deliveries.heard(now, THERE.endpoint)
            deliveries.answered(now, THERE.endpoint, sent.request)
        elif other is None:
            deliveries.heard(now, THERE.endpoint)
    assert tries == 9 and 24 < now < 28 and deliveries.given_up == 1
    assert sum(each.open for each in waitings) <= 1  # the one that was sent in the same moment


def test_who_is_silent_is_given_up_with_all_it_is_owed() -> None:
    deliveries, waitings = Deliveries(0), [PendingDelivery(None, 0, number) for number in range(100)]
    for waiting in waitings:
        deliveries.send(0.0, THERE, DatagramPublish("a", b""), 1, waiting)
    deliveries.heard(7.0, THERE.endpoint)  # before the fifth try
    now = 0.0
    while any(each.open for each in waitings):
        now += 0.25
        deliveries.repeat(now)
    assert now == 15.5 and deliveries.given_up == 100
    packet = deliveries.send(now, THERE, DatagramPublish("a", b""), 1, waitings[0])
    assert packet is not None and not waitings[0].open  # sent, and not waited for


def test_a_busy_subscriber_behind_loss_gets_all() -> None:
    """Of 600 messages some let five tries pass where a fifth is lost; four answered ones never came before."""
    tree = TreeSimulation(5, loss=0.2)
    tree.add_node(1, "", None)
    publisher, subscriber = tree.add_device(100, 1), tree.add_device(101, 1)
    tree.subscribe(subscriber, "#")
    tree.run_until(110)
    for tick in range(600):
        tree.run_until(110 + tick / 10)
        tree.publish(publisher, "a")
    tree.run_until(260)
    # Behind the last message it has nothing else to say, and five tries are all that a message gets.
    assert all(when > 175 for when in tree.story.given_up.values()) and not tree.lost()
    assert {each.code for each in tree.story.publications.values()} == {0}
    assert len(tree.story.received[subscriber.address]) == 600


def received(node: DatagramNode, now: float, number: int, qos: int = 0) -> list[DatagramPeer]:
    """Return who is sent a message that a device publishes."""
    ready = say(node, PUBLISHER, DatagramPublish("a", b"x", qos, number), now)
    return [sent.peer for sent in ready.send if isinstance(sent.packet.body, DatagramPublish)]


def test_a_subscription_is_stored_for_300_s() -> None:
    """Whoever does not renew it gets nothing more; one that asks for more has no more."""
    node = made()
    assert codes(say(node, THERE, DatagramSubscribe("a", 0, lease_s=10_000))) == [Code.SUBSCRIBED]
    assert received(node, 300.0, 1) == [THERE]
    assert received(node, 302.0, 2) == []
    assert node.figures["subscriptions"] == 0


def test_a_subscribe_with_end_is_an_unsubscribe() -> None:
    """It is answered as one, and nothing comes any more."""
    node = made()
    say(node, THERE, DatagramSubscribe("a", 0))
    assert received(node, 1.0, 1) == [THERE]
    assert codes(say(node, THERE, DatagramSubscribe("a", 0, end=True))) == [Code.SUBSCRIBED]
    assert received(node, 1.0, 2) == []


def test_64_are_under_way_and_256_wait() -> None:
    """The publisher of the next one is told to come again: nothing of it is distributed."""
    node = made()
    say(node, THERE, DatagramSubscribe("a", 1))
    sent = sum(len(received(node, 1.0, number, 1)) for number in range(1, 64 + 256 + 1))
    assert sent == 64
    assert codes(say(node, PUBLISHER, DatagramPublish("a", b"x", 1, 321), 1.0)) == [Code.BUSY]
