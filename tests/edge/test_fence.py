"""An edge without a lease serves its clients until ``fence_close_s`` after the END of its lease, and no longer.

Schedules C2, C3 and C8 of docs/revocation.md: removal of permissions at an isolated edge relies on it.
"""

import pytest

from tests.edge.edge_harness import Edge, Session
from tests.edge.edge_limits import limits
from wire.messages.nodes import HeartbeatReply

HOUR_S = 3600.0


def serving(lease_s: float = 2.0) -> tuple[Edge, Session, Session]:
    """Return an edge with a lease, its subscriber and its publisher of QoS 0; the lease is not renewed."""
    edge = Edge(limits(fence_close_s=10.0))
    subscriber, publisher = edge.client("s"), edge.client("p")
    subscriber.subscribe("a", qos=0)
    subscriber.read()
    edge.core.lease.lease_until = edge.now + lease_s
    edge.turn()
    return edge, subscriber, publisher


def payloads(session: Session) -> list[bytes]:
    """Return the payloads written to a subscriber."""
    return [packet.payload for packet in session.read() if hasattr(packet, "payload")]


def test_c3_suspended_edge_serves_no_client_after_resume() -> None:
    """C3: its process is suspended within the lease; an hour later it first reads a PUBLISH."""
    edge, subscriber, publisher = serving()
    edge.now += HOUR_S
    publisher.publish("a", b"late")
    assert subscriber.closed and publisher.closed
    assert payloads(subscriber) == []


def test_c8_iteration_suspended_before_flush_writes_nothing() -> None:
    """C8: the PUBLISH was read and fanned out in time, and the process is suspended before the flush."""
    edge, subscriber, publisher = serving()
    hot = edge.core.hot
    hot.begin_turn(edge.ns)
    hot.feed(publisher.client.conn, b"\x30\x05\x00\x01a\x00m")
    edge.now += HOUR_S
    hot.end_turn(edge.ns)
    assert subscriber.closed
    assert payloads(subscriber) == []


@pytest.mark.parametrize("noticed_s", [2.1, 9.0, 11.9])
def test_fence_time_counts_from_the_end_of_the_lease(noticed_s: float) -> None:
    edge, subscriber, publisher = serving()
    edge.turn(noticed_s)
    publisher.publish("a", b"in time")
    assert payloads(subscriber) == [b"in time"]
    edge.turn(12.01 - noticed_s)
    assert subscriber.closed and publisher.closed


def test_fence_deadline_wakes_the_edge() -> None:
    """Otherwise a silent client would keep its deliveries until another event."""
    edge, subscriber, _ = serving()
    until = edge.core.lease.lease_until
    edge.turn(2.5)
    assert edge.core.next_deadline() <= until + 10.0
    edge.now = until + 10.0
    edge.turn()
    assert subscriber.closed


def test_lease_requested_before_suspension_does_not_help() -> None:
    """A lease counts from the request, so it has expired as well."""
    edge, subscriber, publisher = serving()
    asked = edge.now
    edge.now += HOUR_S
    edge.router(HeartbeatReply(1, asked, 2.0, 1, "r0"))
    publisher.publish("a", b"late")
    assert subscriber.closed and payloads(subscriber) == []


def test_new_lease_before_the_deadline_keeps_clients() -> None:
    """Isolated for some seconds, and connected again before the deadline."""
    edge, subscriber, publisher = serving()
    edge.turn(5.0)
    edge.renew(lease_s=4.0)
    edge.turn(3.9)
    edge.renew(lease_s=4.0)
    edge.turn(3.9)
    publisher.publish("a", b"still here")
    assert payloads(subscriber) == [b"still here"]


def test_left_incarnation_serves_no_client() -> None:
    """``Leave`` proves to the leader that this incarnation decides no more: there is no delay."""
    edge, subscriber, publisher = serving()
    edge.core.lease.leave(edge.now)
    edge.core.node.wake()  # a full iteration
    publisher.publish("a", b"late")
    edge.turn()
    assert subscriber.closed and publisher.closed


def test_later_clients_are_served_with_the_next_lease() -> None:
    """The deadline applied to earlier clients."""
    edge, subscriber, _ = serving()
    edge.turn(HOUR_S)
    assert subscriber.closed
    edge.turn()
    late = edge.accept()
    late.connect("late")
    assert not late.closed and late.read() == []
    edge.renew()
    assert [packet.reason_code for packet in late.read()] == [0]
