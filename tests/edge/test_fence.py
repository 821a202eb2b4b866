"""An edge without a lease serves its own clients until ``fence_close_s`` behind the END of its lease, and no longer.

Schedules C2, C3 and C8 of docs/revocation.md: whoever waits for the rights of a silent edge to end counts on it.
"""

import pytest

from tests.edge.edge_harness import Edge, Session
from tests.edge.edge_limits import limits
from wire.messages.nodes import HeartbeatReply

HOUR_S = 3600.0


def serving(lease_s: float = 2.0) -> tuple[Edge, Session, Session]:
    """Return an edge under a lease, its subscriber and its publisher of QoS 0; nobody renews the lease."""
    edge = Edge(limits(fence_close_s=10.0))
    subscriber, publisher = edge.client("s"), edge.client("p")
    subscriber.subscribe("a", qos=0)
    subscriber.read()
    edge.core.lease.lease_until = edge.now + lease_s
    edge.turn()
    return edge, subscriber, publisher


def payloads(session: Session) -> list[bytes]:
    """Return what a subscriber was written."""
    return [packet.payload for packet in session.read() if hasattr(packet, "payload")]


def test_c3_a_stopped_edge_serves_nobody_when_it_goes_on() -> None:
    """C3: its process stops within the lease; an hour later the first bytes that it reads are a PUBLISH."""
    edge, subscriber, publisher = serving()
    edge.now += HOUR_S
    publisher.publish("a", b"late")
    assert subscriber.closed and publisher.closed
    assert payloads(subscriber) == []


def test_c8_a_turn_that_stops_in_its_middle_writes_nothing_behind_it() -> None:
    """C8: the PUBLISH was read and fanned out in time, and the process stops before the flush."""
    edge, subscriber, publisher = serving()
    hot = edge.core.hot
    hot.begin_turn(edge.ns)
    hot.feed(publisher.client.conn, b"\x30\x05\x00\x01a\x00m")
    edge.now += HOUR_S
    hot.end_turn(edge.ns)
    assert subscriber.closed
    assert payloads(subscriber) == []


@pytest.mark.parametrize("noticed_s", [2.1, 9.0, 11.9])
def test_the_time_counts_from_the_end_of_the_lease_whenever_that_is_noticed(noticed_s: float) -> None:
    edge, subscriber, publisher = serving()
    edge.turn(noticed_s)
    publisher.publish("a", b"in time")
    assert payloads(subscriber) == [b"in time"]
    edge.turn(12.01 - noticed_s)
    assert subscriber.closed and publisher.closed


def test_the_edge_wants_a_turn_when_its_time_is_over() -> None:
    """A client that says nothing would keep its deliveries until somebody else woke the edge."""
    edge, subscriber, _ = serving()
    until = edge.core.lease.lease_until
    edge.turn(2.5)
    assert edge.core.next_deadline() <= until + 10.0
    edge.now = until + 10.0
    edge.turn()
    assert subscriber.closed


def test_a_grant_that_was_asked_for_before_the_stop_does_not_help() -> None:
    """Its lease counts from the question, so it is over as well."""
    edge, subscriber, publisher = serving()
    asked = edge.now
    edge.now += HOUR_S
    edge.router(HeartbeatReply(1, asked, 2.0, 1, "r0"))
    publisher.publish("a", b"late")
    assert subscriber.closed and payloads(subscriber) == []


def test_a_grant_behind_the_end_of_the_lease_keeps_the_clients() -> None:
    """Cut off for some seconds, and let in again before the time is over."""
    edge, subscriber, publisher = serving()
    edge.turn(5.0)
    edge.renew(lease_s=4.0)
    edge.turn(3.9)
    edge.renew(lease_s=4.0)
    edge.turn(3.9)
    publisher.publish("a", b"still here")
    assert payloads(subscriber) == [b"still here"]


def test_an_incarnation_that_left_serves_nobody() -> None:
    """``Leave`` proves to the leader that nothing is decided here any more: no time is waited for."""
    edge, subscriber, publisher = serving()
    edge.core.lease.leave(edge.now)
    edge.core.node.wake()  # an edge leaves in a turn that looks at all parts
    publisher.publish("a", b"late")
    edge.turn()
    assert subscriber.closed and publisher.closed


def test_clients_that_come_later_are_served_under_the_next_lease() -> None:
    """The time that is over is that of the clients of then."""
    edge, subscriber, _ = serving()
    edge.turn(HOUR_S)
    assert subscriber.closed
    edge.turn()
    late = edge.accept()
    late.connect("late")
    assert not late.closed and late.read() == []
    edge.renew()
    assert [packet.reason_code for packet in late.read()] == [0]
