"""Lying, repeating and misconfigured peers: no trust, no unbounded state, no request loop."""

import itertools

from gateways.datagrams.messages import (
    Body,
    Code,
    Datagram,
    DatagramPublish,
    DatagramSubscribe,
    Endpoint,
    Join,
    PubAck,
    PubConnect,
)
from gateways.datagrams.node import DatagramNode
from gateways.datagrams.node_events import Arrived, DatagramNodeSettings, DatagramReady
from gateways.datagrams.proofs import Proofs
from gateways.datagrams.subscribers import DatagramPeer
from tests.gateways.datagrams.tree_simulation import AllowAll, TreeSimulation, endpoint

REQUESTS = itertools.count(1)


class Rules(AllowAll):
    """Rules that allow all, or one filter, also for named devices."""

    only = ""

    def may_publish(self, name: str, topic: str, qos: int) -> bool:
        return super().may_publish("", topic, qos) or bool(name)

    def may_subscribe(self, name: str, topic_filter: str, qos: int) -> bool:
        return self.only in ("", topic_filter) and super().may_subscribe("", topic_filter, qos) and name in ("", "d")


def made(**settings: object) -> DatagramNode:
    wanted = DatagramNodeSettings("", endpoint(1), {"": ("a",)}, incarnation=1, first_number=1, **settings)  # type: ignore[arg-type]
    return DatagramNode(wanted, Rules(), Proofs(bytes(32)))


def send(node: DatagramNode, peer: DatagramPeer, body: Body, now: float = 1.0, is_proved: bool = True) -> DatagramReady:
    return node.handle(
        now, [Arrived(peer, "d" if peer.session else "", Datagram(next(REQUESTS), body), 100, is_proved)]
    )


def codes(ready: DatagramReady) -> list[int]:
    return [sent.packet.body.code for sent in ready.send if isinstance(sent.packet.body, PubAck)]


def test_node_answer_of_other_session_is_ignored() -> None:
    """Otherwise a forged address could acknowledge another device's messages."""
    node, mine, liar = made(), DatagramPeer(endpoint(9), 5), DatagramPeer(endpoint(9), 6)
    send(node, mine, DatagramSubscribe("a", 1))
    out = send(node, DatagramPeer(endpoint(8), 7), DatagramPublish("a", b"x", 1, 1))
    (delivery,) = [sent for sent in out.send if isinstance(sent.packet.body, DatagramPublish)]
    answer = Datagram(delivery.packet.request, PubAck(Code.DELIVERED))
    assert not codes(node.handle(1.1, [Arrived(liar, "liar", answer, 100, False)]))
    assert codes(node.handle(1.1, [Arrived(mine, "d", answer, 100, True)])) == [Code.DISTRIBUTED]


def test_node_moved_device_receives_pending_messages() -> None:
    node, old, new = made(), DatagramPeer(endpoint(9), 5), DatagramPeer(endpoint(10), 5)
    send(node, old, DatagramSubscribe("a", 1))
    send(node, DatagramPeer(endpoint(8), 7), DatagramPublish("a", b"x", 1, 1))
    (refused,) = send(node, new, DatagramSubscribe("a", 1, cookie=bytes(16)), is_proved=False).send
    assert isinstance(refused.packet.body, PubAck) and refused.packet.body.code == Code.NOT_PROVED
    out = send(node, new, DatagramSubscribe("a", 1, cookie=refused.packet.body.cookie), is_proved=False)
    assert out.proved == [new] and node.statistics["subscriptions"] == 1
    again = node.handle(5.0)
    assert [sent.peer for sent in again.send if isinstance(sent.packet.body, DatagramPublish)] == [new]


def test_node_repeated_subscription_is_pending_once() -> None:
    """The cluster does not answer; the last of the requests is answered."""
    node, peer = made(attached=True), DatagramPeer(endpoint(9), 5)
    answers = [send(node, peer, DatagramSubscribe("a", 1)) for _ in range(100)]
    assert sum(len(each.subscribe) for each in answers) == 1 and not any(codes(each) for each in answers)
    assert codes(node.lose_cluster()) == [Code.BUSY]
    assert send(node, peer, DatagramSubscribe("a", 1)).subscribe == ["a"]


def test_node_unproved_address_leaves_no_state() -> None:
    node, peer = made(), DatagramPeer(endpoint(9))
    for topic in ("a", "b", "c"):
        (sent,) = send(node, peer, PubConnect(topic, cookie=bytes(16)), is_proved=False).send
        assert getattr(sent.packet.body, "topic_number") == 0  # noqa: B009  # of a union
        assert sent.bytes_max == 300
    (sent,) = send(node, peer, PubConnect("a")).send
    assert getattr(sent.packet.body, "topic_number")  # noqa: B009


def test_node_join_with_wrong_address_is_refused_slowly() -> None:
    """Half a second between its requests, and an answer with the reason."""
    tree = TreeSimulation(8)
    tree.add_node(1, "", None)
    wrong = DatagramNodeSettings("a", Endpoint(bytes(4), 5), {}, incarnation=1, first_number=1)
    child = tree.add_node(2, "a", 1)
    child.node = DatagramNode(wrong, AllowAll(), Proofs(bytes(32)), DatagramPeer(endpoint(1)))
    tree.run_until(110)
    assert child.node is not None and not child.node.holds(tree.now)
    assert 10 <= child.node.counts["joins_refused"] <= 22 and tree.record.control < 60


def test_node_unreachable_child_is_prepared_later() -> None:
    """Subscriptions lost in five tries are sent again; many are sent in batches."""
    tree = TreeSimulation(9)
    root = tree.add_node(1, "", None)
    for number in range(200):
        tree.subscribe(tree.add_device(1_000 + number, 1), f"a/{number}/#")
    tree.run_until(101)
    child = tree.add_node(2, "a", 1)
    tree.run_until(101.1)
    tree.cut.add(frozenset((endpoint(1), endpoint(2))))
    tree.run_until(112)
    tree.cut.clear()
    tree.run_until(140)
    assert root.node is not None and child.node is not None
    assert root.node.statistics["children"] == 1 and child.node.statistics["subscriptions"] == 200


def test_a_node_has_one_subtree() -> None:
    node = made()
    peer = DatagramPeer(endpoint(2))
    assert codes(send(node, peer, Join("a", 1, endpoint(2)))) == [Code.JOINED]
    assert codes(send(node, peer, Join("a", 1, endpoint(3)))) == [Code.MALFORMED]
    assert codes(send(node, DatagramPeer(endpoint(3)), Join("a", 1, endpoint(3)))) == [Code.TAKEN]
    assert codes(send(node, DatagramPeer(endpoint(3)), Join("b", 1, endpoint(3)))) == [Code.NOT_AUTHORIZED]


def test_node_hops_of_device_are_reset() -> None:
    """Found by fuzzing: passed on with 17 hops it was unreadable and unanswered."""
    node = made()
    send(node, DatagramPeer(endpoint(2)), Join("a", 1, endpoint(2)))
    out = send(node, DatagramPeer(endpoint(9)), DatagramSubscribe("a/#", 1, hops=16))
    passed = [sent.packet.body for sent in out.send if isinstance(sent.packet.body, DatagramSubscribe)]
    assert [each.hops for each in passed] == [1]


def test_node_reauthorize_removes_forbidden_subscriptions() -> None:
    """After a reload: at this node and at those below, without waiting for a renewal."""
    rules = Rules()
    wanted = DatagramNodeSettings("", endpoint(1), {"": ("a",)}, incarnation=1, first_number=1)
    node = DatagramNode(wanted, rules, Proofs(bytes(32)))
    child = DatagramPeer(endpoint(2))
    send(node, child, Join("a", 1, child.endpoint))
    for number, topic_filter in ((9, "#"), (10, "b")):
        (passed, *_) = send(node, DatagramPeer(endpoint(number), number), DatagramSubscribe(topic_filter, 1)).send
        node.handle(1.0, [Arrived(child, "", Datagram(passed.packet.request, PubAck(Code.SUBSCRIBED)), 20, True)])
    assert node.statistics["subscriptions"] == 2 and not node.reauthorize(2.0).send
    rules.only = "b"
    destinations = [sent.packet.body for sent in node.reauthorize(2.0).send if sent.peer == child]
    assert destinations == [DatagramSubscribe("#", 1, endpoint(9), end=True, hops=1)]
    assert node.statistics["subscriptions"] == 1 and node.counts["subscriptions_withdrawn"] == 1
