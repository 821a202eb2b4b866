"""Invalid input of a datagram node: each is refused with its code, counted, and does not affect other devices."""

from __future__ import annotations

import socket

import pytest

from gateways.datagrams.messages import (
    DATAGRAM_BYTES_MAX,
    Code,
    Datagram,
    DatagramPublish,
    DatagramSubscribe,
    Endpoint,
    Join,
    PubAck,
    PubConnect,
    decode,
    encode,
)
from gateways.datagrams.node import DatagramNode
from gateways.datagrams.node_events import Arrived, ClusterMessage, DatagramNodeSettings
from gateways.datagrams.proofs import Proofs
from gateways.datagrams.sealed import SealedPort
from gateways.datagrams.sockets import DatagramSocket, bind_udp
from gateways.datagrams.subscribers import DatagramPeer
from tests.gateways.datagrams.test_hostile import Rules, codes, made, send
from tests.gateways.datagrams.tree_simulation import TreeSimulation, endpoint

DEVICE, CHILD = DatagramPeer(endpoint(9)), DatagramPeer(endpoint(2))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\0", "one byte"),
        (b"\x08\x01", "a version and no body"),
        (
            encode(Datagram(0, DatagramPublish("west/room/t", b"21.5", 1, 7)))[:-3],
            "truncated, without a request number",
        ),
        (bytes(DATAGRAM_BYTES_MAX + 1), "oversized, without a request number"),
        (b"\x08\x02", "another version, without a request number"),
        (b"\x08\x01\x10\x07\x6a\x03\x08\xac\x02", "an answer with code 300"),
        (b"\x08\x09\x10\x07\x6a\x02\x08\x14", "an answer of another version"),
        (b"\x08\x01\x10\x07\x5a\x03\x0a\x01\xff", "an answer whose subtree is not UTF-8"),
        (b"\x10" + b"\xff" * 1_000, "a number without end"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_node_malformed_datagram_is_counted(data: bytes, reason: str) -> None:
    """No answer is sent, so that the node's presence is not revealed; the next datagram is read."""
    node, sender = DatagramSocket(bind_udp("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.sendto(data, ("127.0.0.1", node.endpoint.port))
        taken: list[Datagram] = []
        for _ in range(2):
            node.read(0.0, lambda _peer, _name, _is_proved, packet, _length: taken.append(packet))
    counts = dict(node.counts)
    node.close()
    assert not taken, reason
    assert counts.pop("in") == 1 and list(counts.values()) == [1], counts
    assert next(iter(counts)).startswith("malformed_"), counts


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (encode(Datagram(7, PubConnect("a/+"))), Code.MALFORMED, "topic"),
        (encode(Datagram(7, PubConnect(""))), Code.MALFORMED, "topic"),
        (encode(Datagram(7, DatagramPublish("a/#", b"x", 1, 1))), Code.MALFORMED, "topic"),
        (encode(Datagram(7, DatagramPublish("", b"x", 1, 1))), Code.MALFORMED, "topic_or_topic_number"),
        (encode(Datagram(7, DatagramPublish("a", b"x", 2, 1))), Code.MALFORMED, "qos"),
        (encode(Datagram(7, DatagramSubscribe("a/#/b"))), Code.MALFORMED, "filter"),
        (encode(Datagram(7, DatagramSubscribe(""))), Code.MALFORMED, "filter"),
        (encode(Datagram(7, DatagramSubscribe("a", 2))), Code.MALFORMED, "qos"),
        (encode(Datagram(7, Join("a", 1, Endpoint(b"abc", 1)))), Code.MALFORMED, "endpoint"),
        (b"\x08\x09" + encode(Datagram(7, PubConnect("a")))[2:], Code.MALFORMED, "version"),
        (b"\x08\x01\x10\x07", Code.MALFORMED, "no_message"),
        (b"\x08\x01\x10\x07\x52\x03\x0a\x01\xff", Code.MALFORMED, "not_a_packet"),
        (encode(Datagram(7, DatagramPublish("west/room/t", b"21.5", 1, 7)))[:-3], Code.MALFORMED, "not_a_packet"),
        (encode(Datagram(7, DatagramPublish("a", bytes(1_200), 1, 1))), Code.TOO_LARGE, "too_long"),
        (encode(Datagram(7, DatagramPublish("a/#", bytes(60_000), 1, 1))), Code.TOO_LARGE, "too_long"),
        (b"\x08\x01\x10\x07\x52\x03\x0a\x01\xff" + bytes(1_200), Code.TOO_LARGE, "too_long"),
    ],
)
@pytest.mark.parametrize("is_sealed", [False, True], ids=["clear", "sealed"])
def test_node_malformed_request_is_refused(data: bytes, code: Code, reason: str, is_sealed: bool) -> None:
    """The developer of a device receives the reason."""
    key, node = bytes(32), made()
    device = SealedPort({}, "pump", key) if is_sealed else None
    port = DatagramSocket(bind_udp("127.0.0.1", 0), SealedPort({"pump": key}) if is_sealed else None)
    answers: list[Datagram] = []

    def arrived(peer: DatagramPeer, name: str, is_proved: bool, packet: Datagram, length: int) -> None:
        for sent in node.handle(1.0, [Arrived(peer, name, packet, length, is_proved)]).send:
            port.send(1.0, sent)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port.endpoint.port))
        sender.settimeout(5.0)
        if device is None:
            sender.send(data)
        else:
            assert device.send(1.0, DatagramPeer(port.endpoint), data) is None
        while not answers:
            for _, made_data in device.replies if device is not None else ():
                sender.send(made_data)
            if device is not None:
                device.replies.clear()
            port.read(1.0, arrived)
            back = sender.recv(DATAGRAM_BYTES_MAX)
            opened = device.receive(1.0, port.endpoint, back) if device is not None else None
            if device is None or opened is not None:
                answers.append(decode(back if opened is None else opened[3]))
    port.close()
    assert answers == [Datagram(7, PubAck(code))]
    assert port.counts[f"malformed_{reason}"] == 1 and node.counts[f"refused_{code.name.lower()}"] == 1


def test_root_after_restart_is_busy() -> None:
    """Otherwise publishers would resolve again, and subscriptions would be lost until the root decides."""
    node = made(holds_from=25.0)
    assert codes(send(node, DEVICE, PubConnect("a"))) == [Code.BUSY]
    assert codes(send(node, DEVICE, DatagramPublish("a", b"x", 1, 1))) == [Code.BUSY]
    assert codes(send(node, DEVICE, DatagramPublish("", b"x", 1, 2, 2 << 16 | 1))) == [Code.BUSY]
    panel = DatagramPeer(endpoint(8))
    assert codes(send(node, panel, DatagramSubscribe("a", 1))) == [
        Code.BUSY
    ]  # children that it does not know yet do not have it
    ready = send(node, DEVICE, DatagramPublish("a", b"x", 1, 1), now=25.0)
    assert [(sent.peer, type(sent.packet.body)) for sent in ready.send] == [(panel, DatagramPublish)]
    assert codes(send(node, panel, DatagramSubscribe("a", 1), now=26.0)) == [Code.SUBSCRIBED]


def test_node_subscription_to_other_address_is_refused() -> None:
    """Even with a proved own address: only a node may name another address."""
    node, victim = made(), endpoint(77)
    for is_proved in (False, True):
        ready = send(node, DEVICE, DatagramSubscribe("a", 1, deliver_to=victim), is_proved=is_proved)
        assert codes(ready) == [Code.NOT_PROVED]
        assert all(sent.peer == DEVICE for sent in ready.send)
    assert node.statistics["subscriptions"] == 0
    assert not [
        sent
        for sent in send(node, DatagramPeer(endpoint(8)), DatagramPublish("a", b"x", 1, 1)).send
        if sent.peer != DatagramPeer(endpoint(8))
    ]


def test_node_resolve_answer_goes_to_sender() -> None:
    """A forged request would send unrequested datagrams to a third party."""
    ready = send(made(), DEVICE, PubConnect("a", reply_to=endpoint(77)))
    assert codes(ready) == [Code.NOT_PROVED] and [sent.peer for sent in ready.send] == [DEVICE]


def test_node_child_subscription_outside_subtree_is_refused() -> None:
    """A subscription passed up by a child must lie within its subtree."""
    node = made()
    assert codes(send(node, CHILD, Join("a", 1, CHILD.endpoint))) == [Code.JOINED]
    assert codes(send(node, CHILD, DatagramSubscribe("#", 1, deliver_to=endpoint(77), hops=1))) == [Code.NOT_AUTHORIZED]
    assert codes(send(node, CHILD, DatagramSubscribe("a/#", 1, deliver_to=endpoint(77), hops=16))) == [Code.MALFORMED]
    assert codes(send(node, CHILD, DatagramPublish("b", b"x", 1, 1))) == [Code.NOT_AUTHORIZED]
    assert node.statistics["subscriptions"] == 0


@pytest.mark.parametrize(
    ("subtree", "code"),
    [
        ("", Code.NOT_MINE),  # the root itself
        ("c", Code.NOT_AUTHORIZED),  # not granted
        ("a/x", Code.NOT_AUTHORIZED),  # below a granted subtree
    ],
)
def test_node_join_for_ungrantable_subtree_is_refused(subtree: str, code: Code) -> None:
    """The root is never granted, even if the list of children includes it."""
    settings = DatagramNodeSettings("", endpoint(1), {"": ("", "a")}, incarnation=1, first_number=1)
    node = DatagramNode(settings, Rules(), Proofs(bytes(32)))
    assert codes(send(node, CHILD, Join(subtree, 1, CHILD.endpoint))) == [code]
    assert node.statistics["children"] == 0 and node.holds(1.0)


def test_node_join_for_held_subtree_is_refused() -> None:
    """Also from the same name at another address, above it and below it; the holder keeps its subtree."""
    settings = DatagramNodeSettings("", endpoint(1), {"": ("a", "a/x", "a/x/y")}, incarnation=1, first_number=1)
    node = DatagramNode(settings, Rules(), Proofs(bytes(32)))
    assert codes(send(node, CHILD, Join("a/x", 5, CHILD.endpoint))) == [Code.JOINED]
    other = DatagramPeer(endpoint(3))
    assert codes(send(node, other, Join("a/x", 9, other.endpoint))) == [Code.TAKEN]
    assert codes(send(node, other, Join("a", 9, other.endpoint))) == [Code.TAKEN]
    below = send(node, other, Join("a/x/y", 9, other.endpoint))
    assert codes(below) == [Code.NOT_MINE]
    assert getattr(below.send[0].packet.body, "nodes") == (CHILD.endpoint,)  # noqa: B009  # of a union
    assert codes(send(node, CHILD, Join("a/x", 4, CHILD.endpoint))) == [Code.TAKEN]  # a former incarnation
    assert codes(send(node, DatagramPeer(endpoint(8)), DatagramPublish("a/x", b"", 1, 1))) == [Code.NOT_MINE]


def test_node_join_from_unproved_address_gets_cookie() -> None:
    """It gets a cookie within three times its bytes, and no child is prepared."""
    node = made()
    ready = send(node, CHILD, Join("a", 1, CHILD.endpoint), is_proved=False)
    assert codes(ready) == [Code.NOT_PROVED]
    assert ready.send[0].bytes_max == 300 and not node.statistics["children"]


def test_nodes_in_parent_loop_do_not_decide() -> None:
    """Each is the other's parent: neither has a lease to grant; JOIN is sent twice a second and refused."""
    tree = TreeSimulation(11)
    one, other = tree.add_node(1, "a", 2), tree.add_node(2, "a/x", 1)
    alone = tree.add_node(3, "b", 3)
    device = tree.add_device(100, 1)
    tree.publish(device, "a/x")
    tree.run_until(160)
    assert all(actor.node is not None and not actor.node.holds(tree.now) for actor in (one, other, alone))
    assert all(actor.node is not None and actor.node.counts["joins_refused"] > 20 for actor in (one, other, alone))
    assert tree.record.publications[b"0"].code != Code.DISTRIBUTED
    assert tree.record.control < 60 * 2 * 2 * 4 + 40  # three nodes and a device


def test_node_join_flood_is_limited() -> None:
    """50 are prepared, the others are answered busy; messages are distributed meanwhile."""
    names = tuple(f"p{number}" for number in range(1_000))
    settings = DatagramNodeSettings("", endpoint(1), {"": names}, incarnation=1, first_number=1)
    node = DatagramNode(settings, Rules(), Proofs(bytes(32)))
    send(node, DEVICE, DatagramSubscribe("#", 1))
    found = []
    for number, name in enumerate(names):
        peer = DatagramPeer(Endpoint(bytes((10, 1, number >> 8, number & 255)), 5))
        found += codes(
            node.handle(1.0, [Arrived(peer, "", Datagram(number + 1, Join(name, 1, peer.endpoint)), 60, True)])
        )
    assert found.count(Code.BUSY) == 950 and not found.count(Code.JOINED)  # none has all subscriptions yet
    assert node.counts["refused_busy"] == 950
    out = send(node, DatagramPeer(endpoint(8)), DatagramPublish("q", b"x", 1, 1))
    assert [sent.peer for sent in out.send if isinstance(sent.packet.body, DatagramPublish)] == [DEVICE]
    peer = DatagramPeer(Endpoint(bytes((10, 1, 3, 231)), 5))
    assert codes(send(node, peer, Join("p999", 1, peer.endpoint), 3.0)) == []  # is being prepared


def test_node_former_topic_number_is_refused() -> None:
    """Its topic number belongs to a former incarnation: resolve again."""
    before = made()
    (sent,) = send(before, DEVICE, PubConnect("a")).send
    number = getattr(sent.packet.body, "topic_number")  # noqa: B009  # of a union
    settings = DatagramNodeSettings("", endpoint(1), {}, incarnation=2, first_number=1)
    node = DatagramNode(settings, Rules(), Proofs(bytes(32)))
    send(node, DEVICE, PubConnect("b"))  # has the first number of this incarnation
    assert codes(send(node, DEVICE, DatagramPublish("", b"x", 1, 7, number))) == [Code.NOT_MINE]
    assert node.counts["messages_received"] == 0


def test_node_repeated_number_is_distributed_once() -> None:
    """A replay in clear is answered again, and not distributed."""
    node = made()
    send(node, DEVICE, DatagramSubscribe("a", 0))
    publisher = DatagramPeer(endpoint(8))
    sent = [send(node, publisher, DatagramPublish("a", b"x", 1, 7)) for _ in range(3)]
    assert [codes(each) for each in sent] == [[Code.DISTRIBUTED]] * 3
    assert sum(isinstance(each.packet.body, DatagramPublish) for ready in sent for each in ready.send) == 1
    assert node.counts["repeats_answered"] == 2


def test_node_oversized_cluster_message_is_dropped() -> None:
    """Found by fuzzing: it could not be sent, and after five tries all messages of a subscriber were given up."""
    node = made(attached=True)
    send(node, DEVICE, DatagramSubscribe("a", 1))
    out = node.handle(1.0, [ClusterMessage("a", bytes(DATAGRAM_BYTES_MAX), 1, 5)])
    assert (out.send, out.done, node.counts["messages_too_large"]) == ([], [5], 1)
    out = node.handle(1.1, [ClusterMessage("a", bytes(1_000), 1, 6)])
    assert [sent.peer for sent in out.send] == [DEVICE] and not out.done


def test_node_publish_too_large_with_topic_is_refused() -> None:
    """Subscribers receive the topic itself: with it the packet is too large, and the device gets the code."""
    node = made()
    topic = "a" * 300
    (sent,) = send(node, DEVICE, PubConnect(topic)).send
    number = getattr(sent.packet.body, "topic_number")  # noqa: B009  # of a union
    assert codes(send(node, DEVICE, DatagramPublish("", bytes(1_000), 1, 7, number))) == [Code.TOO_LARGE]
    assert codes(send(node, DEVICE, DatagramPublish("", bytes(100), 1, 8, number))) == [Code.DISTRIBUTED]
