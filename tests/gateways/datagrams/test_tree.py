"""Trees of nodes: resolving, subscribing and joining, and no message lost whatever the network and the nodes do."""

from functools import partial
from random import Random

import pytest

from gateways.datagrams.messages import Code
from tests.gateways.datagrams.tree_simulation import TreeSimulation, endpoint


def test_one_node_serves_all() -> None:
    """Control datagrams are few, and a message costs 1 + S + 1, and S answers at QoS 1."""
    tree = TreeSimulation(1)
    tree.add_node(1, "", None)
    devices = [tree.add_device(100 + number, 1) for number in range(4)]
    for device in devices[1:]:
        tree.subscribe(device, "a/#")
    tree.run_until(101)
    payload = tree.publish(devices[0], "a/x")
    tree.run_until(102)
    assert tree.story.publications[payload].code == Code.DISTRIBUTED
    assert not tree.lost()
    assert tree.story.data == 1 + 3
    assert tree.story.answers == 3 + 1


def test_a_child_takes_its_part_over() -> None:
    """Whoever subscribed before is known there, and nothing passes from node to node."""
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
    assert {each.code for each in tree.story.publications.values()} == {Code.DISTRIBUTED}
    assert not tree.lost()
    assert sum(len(copies) for copies in tree.story.received[subscriber.address].values()) == 4
    assert tree.story.between == 0


def test_a_silent_child_loses_its_part() -> None:
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
    assert tree.story.publications[payload].code == Code.DISTRIBUTED
    assert not tree.lost()


def test_through_one_node_only() -> None:
    """A device that can be reached from its node alone has everything from there, counted as relayed."""
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
    assert tree.story.between == 1


def run_seed(seed: int) -> TreeSimulation:
    """One tree of four nodes under loss, doubling and delay; nodes die and come back while devices publish."""
    random = Random(seed)
    tree = TreeSimulation(seed, loss=random.choice([0, 0.01, 0.05, 0.2]), late_s=0.3, double=0.02)
    nodes = [tree.add_node(1, "", None), tree.add_node(2, "a", 1), tree.add_node(3, "b", 1), tree.add_node(4, "a/x", 2)]
    devices = [tree.add_device(100 + number, random.choice([1, 2, 3, 4])) for number in range(6)]
    for device in devices[2:]:
        tree.subscribe(device, random.choice(["#", "a/#", "+/x/#", "b/+", "a/x/1", "a/x/#"]))
    for _ in range(60):
        when = 100 + random.uniform(0, 60)
        device, topic = random.choice(devices[:2]), random.choice(["a/x/1", "a/y", "b/1", "b/x", "c", "a/x"])
        tree.at(when, partial(tree.publish, device, topic))
    for _ in range(random.randrange(4)):
        node, when = random.choice(nodes[1:]), 100 + random.uniform(0, 50)
        tree.at(when, partial(tree.kill, node))
        tree.at(when + random.uniform(0.1, 30), partial(tree.restart, node))
    tree.run_until(260)
    return tree


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_seeds(first: int) -> None:
    """No message that was answered is missing at anybody who was subscribed before it was sent."""
    for seed in range(first, first + 20):
        tree = run_seed(seed)
        assert not tree.lost(), seed
        ended = [each.code for each in tree.story.publications.values()]
        assert None not in ended, seed
        assert ended.count(Code.DISTRIBUTED) >= len(ended) * 0.9, (seed, ended)


def test_an_address_that_proved_nothing_gets_little() -> None:
    tree = TreeSimulation(5)
    root = tree.add_node(1, "", None)
    device = tree.add_device(100, 1)
    tree.subscribe(device, "#")
    assert root.node is not None
    tree.run_until(101)
    assert root.node.figures["subscriptions"] == 1 and root.node.counts["refused_not_proved"] == 1
    assert endpoint(1) in tree.nodes
