"""Trees of nodes: resolving, subscribing and joining, without message loss under network and node failures."""

from random import Random

import pytest

from gateways.datagrams.device import Device
from gateways.datagrams.messages import (
    Code,
    Datagram,
    DatagramPublish,
    DatagramSubscribe,
    Endpoint,
    PubAccept,
    PubAck,
    PubConnect,
)
from gateways.datagrams.node import DatagramNode
from gateways.datagrams.node_events import Arrived, DatagramNodeSettings
from gateways.datagrams.proofs import Proofs
from gateways.datagrams.subscribers import DatagramPeer
from tests.gateways.datagrams.tree_simulation import Actor, AllowAll, TreeSimulation, endpoint, run_seed


def test_one_node_serves_all() -> None:
    """Few control datagrams; a message costs 1 + S + 1 datagrams, and S answers at QoS 1."""
    tree = TreeSimulation(1)
    tree.add_node(1, "", None)
    devices = [tree.add_device(100 + number, 1) for number in range(4)]
    for device in devices[1:]:
        tree.subscribe(device, "a/#")
    tree.run_until(101)
    payload = tree.publish(devices[0], "a/x")
    tree.run_until(102)
    assert tree.record.publications[payload].code == Code.DISTRIBUTED
    assert not tree.lost()
    assert tree.record.data == 1 + 3
    assert tree.record.answers == 3 + 1


def test_tree_joined_child_serves_existing_subscribers() -> None:
    """Earlier subscriptions are known there, and no message passes between nodes."""
    tree = TreeSimulation(2)
    tree.add_node(1, "", None)
    publisher, subscriber, other = (tree.add_device(100 + number, 1) for number in range(3))
    tree.subscribe(subscriber, "#")
    tree.subscribe(other, "a/x/#")
    tree.run_until(101)
    tree.add_node(2, "a", 1)
    tree.run_until(103)
    for topic in ("a/x/1", "b/y", "a", "ab/c"):
        tree.publish(publisher, topic)
    tree.run_until(104)
    assert {each.code for each in tree.record.publications.values()} == {Code.DISTRIBUTED}
    assert not tree.lost()
    assert sum(len(copies) for copies in tree.record.received[subscriber.address].values()) == 4
    assert tree.record.between == 0


def test_tree_dead_child_is_replaced_by_parent() -> None:
    tree = TreeSimulation(3)
    tree.add_node(1, "", None)
    child = tree.add_node(2, "a", 1)
    publisher, subscriber = tree.add_device(100, 1), tree.add_device(101, 2)
    tree.run_until(102)
    tree.subscribe(subscriber, "a/#")
    tree.run_until(103)
    tree.kill(child)
    payload = tree.publish(publisher, "a/x")
    tree.run_until(140)
    assert tree.record.publications[payload].code == Code.DISTRIBUTED
    assert not tree.lost()


def test_through_one_node_only() -> None:
    """A device reachable only through its node receives all messages from it, counted as relayed."""
    tree = TreeSimulation(4)
    root = tree.add_node(1, "", None)
    tree.add_node(2, "a", 1)
    publisher, hidden = tree.add_device(100, 1), tree.add_device(101, 1, relay=True)
    tree.run_until(102)
    tree.subscribe(hidden, "#")
    tree.run_until(103)
    tree.publish(publisher, "a/x")
    tree.publish(publisher, "b/x")
    tree.run_until(104)
    assert not tree.lost()
    assert root.node is not None and root.node.counts["messages_relayed"] == 1
    assert tree.record.between == 1


def test_tree_partitioned_child_stops_deciding() -> None:
    """After its lease it redirects publishers: its parent has subscribers that it does not know."""
    tree = TreeSimulation(6)
    tree.add_node(1, "", None)
    tree.add_node(2, "a", 1)
    publisher, late = tree.add_device(100, 1), tree.add_device(101, 1)
    tree.run_until(102)
    tree.publish(publisher, "a/x")
    tree.run_until(103)
    tree.cut.add(frozenset((endpoint(1), endpoint(2))))
    tree.run_until(119)
    tree.subscribe(late, "a/#")
    tree.run_until(120)
    payload = tree.publish(publisher, "a/x")
    tree.run_until(140)
    assert tree.record.publications[payload].code == Code.DISTRIBUTED
    assert tree.record.subscriptions[late.address].since < 120 and not tree.lost()


def test_tree_child_of_restarted_node_serves_new_subscribers() -> None:
    """Found by the simulation: its lease of the former incarnation was valid, and new subscriptions did not reach
    it.
    """
    tree = TreeSimulation(7)
    tree.add_node(1, "", None)
    middle, lowest = tree.add_node(2, "a", 1), tree.add_node(3, "a/x", 2)
    publisher, early, late = tree.add_device(100, 3), tree.add_device(101, 1), tree.add_device(102, 1)
    tree.subscribe(early, "#")
    tree.run_until(102)
    tree.publish(publisher, "a/x/1")  # from now on it uses the lowest node directly
    tree.run_until(103)
    tree.kill(middle)
    tree.run_until(103.5)
    tree.restart(middle)
    tree.run_until(104)
    tree.subscribe(late, "#")
    for tick in range(240):
        tree.run_until(104 + tick / 4)
        tree.publish(publisher, "a/x/1")
    tree.run_until(200)
    assert tree.record.subscriptions[late.address].since < 130
    assert {each.code for each in tree.record.publications.values()} == {Code.DISTRIBUTED}
    assert not tree.lost()
    assert lowest.node is not None and lowest.node.holds(tree.now)


def test_tree_node_below_does_not_answer_subscribe() -> None:
    """Found by the simulation: a node below mistook a SUBSCRIBE for a keep-open one, and other nodes lacked the
    filter.
    """
    assert not run_seed(52952).lost()


def test_tree_node_below_answers_keep_open_only() -> None:
    """For a filter beyond its subtree it answers only keep-open requests, and only for known subscriptions."""
    tree = TreeSimulation(10)
    tree.add_node(1, "", None)
    below = tree.add_node(2, "a", 1)
    subscriber = tree.add_device(101, 1)
    tree.run_until(102)
    tree.subscribe(subscriber, "#")
    tree.run_until(103)
    assert below.node is not None

    def subscribe_below(topic_filter: str, keep_open: bool) -> PubAck:
        packet = Datagram(7, DatagramSubscribe(topic_filter, 1, keep_open=keep_open, cookie=bytes(16)))
        arrived = Arrived(DatagramPeer(subscriber.address), "", packet, 100, True)
        assert below.node is not None
        (answer,) = (
            each.packet.body for each in below.node.handle(tree.now, [arrived]).send if each.packet.request == 7
        )
        assert isinstance(answer, PubAck)
        return answer

    assert subscribe_below("#", True).code == Code.SUBSCRIBED
    assert subscribe_below("#", False).code == Code.NOT_MINE and subscribe_below("#", False).nodes == (endpoint(1),)
    assert subscribe_below("+/x", True).code == Code.NOT_MINE  # no node passed it on


def test_tree_node_with_children_keeps_lease_on_leave() -> None:
    """If returned at once, its subtree would have two deciding nodes until its child's lease ends."""
    tree = TreeSimulation(8)
    tree.add_node(1, "", None)
    middle = tree.add_node(2, "a", 1)
    tree.add_node(3, "a/x", 2)
    publisher, late = tree.add_device(100, 3), tree.add_device(101, 1)
    tree.run_until(102)
    tree.publish(publisher, "a/x/1")
    tree.run_until(103)
    assert middle.node is not None and not middle.node.leave(tree.now).send
    tree.kill(middle)
    tree.run_until(103.5)
    tree.subscribe(late, "#")
    for tick in range(120):
        tree.run_until(103.5 + tick / 4)
        tree.publish(publisher, "a/x/1")
    tree.run_until(200)
    assert tree.record.subscriptions[late.address].since < 130 and not tree.lost()


def test_tree_lossy_network_delivers_all() -> None:
    """20 % of datagrams are lost, and every answered message arrives."""
    for seed in range(5):
        tree = TreeSimulation(seed, loss=0.2)
        tree.add_node(1, "", None)
        publisher, subscriber = tree.add_device(100, 1), tree.add_device(101, 1)
        tree.subscribe(subscriber, "#")
        tree.run_until(110)
        for _ in range(20):
            tree.publish(publisher, "a")
        tree.run_until(160)
        assert not tree.lost(), seed


def test_device_unanswered_message_bounds_later_ones() -> None:
    """A node refuses numbers below its window of 1 024: a device waits for the oldest one."""
    home = endpoint(1)
    device, numbers, answered = Device((home,), 0), set[int](), 0
    for ref in range(3_000):
        device.publish(1.0, ref, "a", b"", 1)
    sent = device.take_output().send
    while sent:
        arrived: list[tuple[Endpoint, Datagram]] = []
        for _, packet in sent:
            if isinstance(packet.body, PubConnect):
                arrived.append((home, Datagram(packet.request, PubAccept("", 600))))
            elif isinstance(packet.body, DatagramPublish):
                numbers.add(packet.body.number)
                is_first = packet.body.number == min(numbers)  # its answer is lost
                if not is_first:
                    arrived.append((home, Datagram(packet.request, PubAck(Code.DISTRIBUTED))))
        answered += sum(isinstance(packet.body, PubAck) for _, packet in arrived)
        sent = device.handle(1.1, arrived).send
    assert 256 <= answered < 1_024


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_seeds(first: int) -> None:
    """Each answered message reaches all devices that were subscribed before it was sent."""
    answered = 0
    for seed in range(first, first + 20):
        tree = run_seed(seed)
        assert not tree.lost(), seed
        ended = [each.code for each in tree.record.publications.values()]
        assert None not in ended, seed
        answered += ended.count(Code.DISTRIBUTED)
    assert answered >= 20 * 60 * 0.98  # one run in a hundred, with 20 % loss and failures, has 10 % given up


def test_tree_unproved_address_is_not_amplified() -> None:
    tree = TreeSimulation(5)
    root = tree.add_node(1, "", None)
    device = tree.add_device(100, 1)
    tree.subscribe(device, "#")
    assert root.node is not None
    tree.run_until(101)
    assert root.node.statistics["subscriptions"] == 1 and root.node.counts["refused_not_proved"] == 1
    assert endpoint(1) in tree.nodes


def test_fifty_joins_and_fifty_deaths_under_load() -> None:
    """Children restart while devices publish with 5 % loss: all answered messages arrive."""
    tree, random = TreeSimulation(12, loss=0.05), Random(12)
    tree.add_node(1, "", None)
    children = [tree.add_node(2, "a", 1), tree.add_node(3, "b", 1)]
    publishers = [tree.add_device(100 + number, 1) for number in range(3)]
    for number, topic_filter in enumerate(("#", "a/#", "b/#")):
        tree.subscribe(tree.add_device(200 + number, 1), topic_filter)
    tree.run_until(105)
    for _ in range(25):
        for child in children:
            tree.kill(child)
            tree.publish(random.choice(publishers), random.choice(("a/t", "b/t", "c")))
            tree.run_until(tree.now + random.uniform(0, 1))
            tree.restart(child)
            tree.run_until(tree.now + random.uniform(0, 2))
            tree.publish(random.choice(publishers), random.choice(("a/t", "b/t", "c")))
    tree.run_until(tree.now + 70)
    assert {each.code for each in tree.record.publications.values()} == {Code.DISTRIBUTED}
    assert len(tree.record.publications) == 100 and not tree.lost()


def test_device_resumes_soon_after_node_restart() -> None:
    """With nodes restarting every few seconds the window of messages backed off in step, and missed them."""
    tree, random = TreeSimulation(3), Random(3)
    tree.add_node(1, "", None)
    children = [tree.add_node(2, "a", 1), tree.add_node(3, "b", 1)]
    publishers = {"a/t": tree.add_device(100, 1), "b/t": tree.add_device(101, 1)}
    tree.subscribe(tree.add_device(200, 1), "#")
    tree.run_until(105)
    while tree.now < 255:
        for child in children:
            tree.kill(child)
        for child in children:
            end = tree.now + 5 * random.uniform(0.7, 1.5)
            while tree.now < end:
                _fill(tree, publishers)
            tree.restart(child)
        end = tree.now + 5
        while tree.now < end:
            _fill(tree, publishers)
    tree.run_until(tree.now + 70)
    waited = [each.ended - each.began for each in tree.record.publications.values()]
    assert {each.code for each in tree.record.publications.values()} == {Code.DISTRIBUTED} and not tree.lost()
    assert max(waited) < 20 and len(waited) > 1_000


def _fill(tree: TreeSimulation, publishers: dict[str, Actor]) -> None:
    """Keep eight messages of each publisher open, for a quarter of a second."""
    for topic, actor in publishers.items():
        while actor.device is not None and actor.device.open < 8:
            tree.publish(actor, topic)
    tree.run_until(tree.now + 0.25)


def test_node_forwarded_request_is_refused_to_original_sender() -> None:
    """Otherwise a child without lease would answer its parent, and the device would wait."""
    settings = DatagramNodeSettings("a", endpoint(2), {}, incarnation=1, first_number=1)
    node, source = (
        DatagramNode(settings, AllowAll(), Proofs(bytes(32)), DatagramPeer(endpoint(1))),
        endpoint(100),
    )
    passed = Datagram(7, PubConnect("a/t", source, 1))
    ready = node.handle(1.0, [Arrived(DatagramPeer(endpoint(1)), "", passed, 60, True)])
    answers = [(sent.peer.endpoint, sent.packet) for sent in ready.send if isinstance(sent.packet.body, PubAck)]
    assert answers == [(source, Datagram(7, PubAck(Code.BUSY)))]
