"""The owner of a retained message is sent only to the partition that retains it."""

from typing import Any

import pytest

from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import encode_owner, encode_publish_ack
from wire.messages.frames import FrameKind

ANN = encode_owner("änn".encode(), 7)


def place(hot: Any) -> tuple[Broker, Node, Node, Node]:
    """Return a loop with the primaries of partitions 0 and 1, and another edge."""
    broker = Broker(hot)
    retains, other, edge = Node(broker, 3, "storage"), Node(broker, 4, "storage"), Node(broker, 5, "edge")
    broker.hot.set_primary(0, retains.peer)
    broker.hot.set_primary(1, other.peer)
    return broker, retains, other, edge


def owners(node: Node) -> list[tuple[bytes, bytes, int, tuple[int, ...]]]:
    return [(one.topic, one.owner, one.owner_made, one.partitions) for one in node.records()]


def test_owner_is_sent_only_to_the_retained_partition(hot: Any) -> None:
    """QoS 0 is sent to all destinations at once; records for edges and other partitions name no owner."""
    broker, retains, other, edge = place(hot)
    route = hot.state.Route(b"a/b", (), (edge.peer,), (0, 1))
    inbound = hot.state.InboundPublish(b"a/b", b"x", 0, True, b"", 5)
    broker.hot.publish(route, inbound, 0, owner=ANN)
    broker.hot.publish(route, inbound, 0)
    broker.turn()
    assert owners(retains) == [(b"a/b", "änn".encode(), 7, (0,)), (b"a/b", b"", 0, (0,))]
    assert owners(other) == [(b"a/b", b"", 0, (1,))] * 2
    assert owners(edge) == [(b"a/b", b"", 0, ())] * 2


@pytest.mark.parametrize("owner", [ANN, b"", encode_owner(b"u" * 65_535, (1 << 62) - 1)])
def test_owner_is_sent_to_the_next_primary(hot: Any, owner: bytes) -> None:
    """A message without an acknowledgement is sent to the next primary unchanged."""
    broker, retains, other, _ = place(hot)
    done: list[int] = []
    inbound = hot.state.InboundPublish(b"a/b", b"x", 1, True, b"", 5)
    broker.hot.publish(hot.state.Route(b"a/b"), inbound, 0, 0, 0, 0, done.append, owner=owner)
    broker.turn()
    first = owners(retains)
    broker.hot.retire_peer(retains.peer)
    assert broker.hot.replay_partition(0, other.peer) == 1
    broker.turn()
    assert owners(other) == first and first[0][1] == owner[2:-24]
    assert done == []


def test_refused_message_with_owner_is_found_by_topic(hot: Any) -> None:
    """Later messages on its topic are refused, as without an owner."""
    broker, retains, _, _ = place(hot)
    done: list[int] = []
    conn = broker.client(5)
    inbound = hot.state.InboundPublish(b"a/b", b"x", 1, True, b"", 5, conn=conn)
    broker.hot.publish(hot.state.Route(b"a/b"), inbound, 0, 0, 0, 0, done.append, owner=ANN)
    broker.turn()
    (record,) = retains.records()
    retains.send(FrameKind.PUBLISH_ACK, encode_publish_ack(record.tag, 0, 0x97))
    broker.turn()
    assert done == [0x97] and not conn.closed
