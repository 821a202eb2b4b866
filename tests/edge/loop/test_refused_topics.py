"""What follows a message that found no room: refused on its connection and topic, so that nothing overtakes it."""

from typing import Any

import pytest

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import encode_publish_ack
from wire.messages.frames import FrameKind

LEASE_NS = 2_000_000_000
PUBACK, PUBREC = 0x40, 0x50
NO_ROOM, CANNOT_WAIT, QUOTA_EXCEEDED = 0x89, 0x88, 0x97


class Disks:
    """A partition whose primary begins anew, and a publisher with a stored session."""

    def __init__(self, hot: Any, session: int = 9, version: int = 5) -> None:
        self.broker = Broker(hot)
        self.broker.hot.set_lease_length(LEASE_NS)
        self.primary = Node(self.broker, 3, "storage")
        self.broker.hot.set_primary(5, self.primary.peer)
        self.broker.route_to(partitions=(5,))
        self.broker.handler.session_options = {"session": session, "owner_epoch": 1}
        self.pub = self.broker.client(version)
        self.broker.handler.session_options = {}

    def publish(self, number: int, topic: bytes = b"t", qos: int = 1) -> list[Any]:
        """Publish a message; return what the primary got of it."""
        self.broker.send(self.pub, publish(topic, b"%d" % number, qos, number if qos else 0, 5))
        return self.primary.records()

    def answer(self, *records: Any, code: int = NO_ROOM) -> None:
        acks = b"".join(encode_publish_ack(record.tag, 5, code) for record in records)
        self.primary.send(FrameKind.PUBLISH_ACK, acks)

    def begin_anew(self) -> None:
        """The primary's next life, which remembers nothing of what the former one refused."""
        self.primary = Node(self.broker, 3, "storage")
        self.broker.hot.replay_partition(5, self.primary.peer)
        self.broker.turn()

    def pass_leases(self, count: float) -> None:
        self.broker.now_ns += int(count * LEASE_NS)
        self.broker.turn()

    def keep_inbound(self) -> list[Any]:
        """Return the list of what the loop hands over from now on; the connection goes on at once."""
        handed: list[Any] = []

        def inbound(conn: Any, publish: Any, route: Any) -> None:  # noqa: ARG001
            handed.append(publish)
            self.broker.hot.resume(conn)

        self.broker.handler.inbound = inbound  # type: ignore[method-assign]
        return handed

    @property
    def ended(self) -> bool:
        return self.broker.handler.errors == [(self.pub, QUOTA_EXCEEDED)]


def test_what_comes_behind_a_refused_message_is_refused(hot: Any) -> None:
    """Simulation seeds 800034 and 800072: the primary began anew, and took it before the refused one came again."""
    disks = Disks(hot)
    disks.answer(*disks.publish(1))
    disks.begin_anew()
    assert disks.publish(2) == []
    assert disks.broker.take(disks.pub) == [ack(PUBACK, 1, 0x97), ack(PUBACK, 2, 0x97)]
    disks.pass_leases(3.9)
    assert disks.publish(3) == []
    disks.pass_leases(0.6)
    assert [record.payload for record in disks.publish(4)] == [b"4"]
    assert [record.payload for record in disks.publish(5)] == [b"5"]
    figures = disks.broker.hot.counters()
    assert (figures["refused_behind"], figures["dropped_denied"]) == (2, 0)


def test_what_was_sent_behind_it_is_not_sent_to_the_next_primary(hot: Any) -> None:
    """The former one may have taken it, so that no refusal may be told: the connection ends."""
    disks = Disks(hot)
    first, _ = disks.publish(1) + disks.publish(2)
    disks.answer(first)
    disks.begin_anew()
    assert disks.ended and disks.primary.records() == []
    assert disks.broker.hot.counters()["outbox_bytes"] == 0


def test_other_topics_and_qos_0_go_on(hot: Any) -> None:
    disks = Disks(hot)
    disks.answer(*disks.publish(1))
    for number, topic, qos, sent in (
        (2, b"u", 1, 1),
        (0, b"t", 0, 1),
        (0, b"t", 0, 1),
        (3, b"t", 1, 0),
        (4, b"u", 1, 1),
    ):
        assert len(disks.publish(number, topic, qos)) == sent, (number, topic, qos)
    data = publish(b"t", b"a", version=5) + publish(b"t", b"b", version=5) + publish(b"t", b"c", 1, 9, 5)
    disks.broker.send(disks.pub, data)
    assert [record.payload for record in disks.primary.records()] == [b"a", b"b"]


def test_a_client_that_makes_no_pause_begins_anew(hot: Any) -> None:
    """The refusals that were written last may not be read yet."""
    disks = Disks(hot)
    disks.answer(*disks.publish(1))
    for number in range(2, 18):  # every quarter of a lease, four leases long
        disks.pass_leases(0.25)
        assert disks.publish(number) == [] and disks.ended == (number == 17)


@pytest.mark.parametrize(("session", "version"), [(0, 5), (0, 4), (9, 4)])
def test_only_a_client_that_goes_on_with_its_session_sends_again(hot: Any, session: int, version: int) -> None:
    """A 3.1.1 client, which can be told nothing, ends at once."""
    disks = Disks(hot, session, version)
    data = publish(b"t", b"", 1, 1, version)
    disks.broker.send(disks.pub, data)
    disks.answer(*disks.primary.records())
    disks.begin_anew()
    if version == 4:
        assert disks.ended
    else:
        assert len(disks.publish(2)) == 1


def test_what_the_core_sends_is_refused_as_well(hot: Any) -> None:
    """Retained messages and QoS 2 of stored sessions: the core is told, and lets its record go first."""
    disks = Disks(hot)
    disks.answer(*disks.publish(1))
    disks.broker.take(disks.pub)
    handed = disks.keep_inbound()
    assert disks.publish(2, qos=2) == []
    (inbound,) = handed
    told: list[int] = []
    route = disks.broker.hot.route(b"t")
    disks.broker.hot.publish(route, inbound, -1, 1, 9, 1, told.append)
    disks.broker.turn()
    assert told == [NO_ROOM] and disks.primary.records() == []
    assert disks.broker.take(disks.pub) == [ack(PUBREC, 2, 0x97)]


def test_a_retained_message_that_stands_ends_its_connection(hot: Any) -> None:
    """Its partition has it, so nobody may be told that it was refused."""
    disks = Disks(hot)
    (record,) = disks.publish(1)
    handed = disks.keep_inbound()
    disks.publish(2, qos=2)
    (inbound,) = handed
    disks.answer(record)
    route = disks.broker.hot.route(b"t")
    disks.broker.hot.publish(route, inbound, -1, 1, 9, 1, None, (77, 6))
    disks.broker.turn()
    assert disks.ended and disks.primary.records() == []


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("session", [0, 9])
def test_nobody_is_told_of_a_refusal_by_a_partition_that_could_not_look(hot: Any, session: int, version: int) -> None:
    """A former primary may have committed it: the connection ends, and nothing of it is refused or acknowledged."""
    disks = Disks(hot, session, version)
    data = publish(b"t", b"1", 1, 1, version) + publish(b"t", b"2", 1, 2, version)
    disks.broker.send(disks.pub, data)
    first, second = disks.primary.records()
    disks.answer(first, code=CANNOT_WAIT)
    disks.answer(second, code=0)
    assert disks.ended and disks.broker.take(disks.pub) == ([b"\xe0\x01\x97"] if version == 5 else [])


def test_topics_are_counted(hot: Any) -> None:
    """Beyond the bound each topic of the connection counts as refused."""
    disks = Disks(hot)
    for number in range(1, 258):
        disks.answer(*disks.publish(number, b"t%d" % number))
    assert disks.publish(300, b"u") == []
    disks.pass_leases(4.5)
    assert len(disks.publish(301, b"u")) == 1
