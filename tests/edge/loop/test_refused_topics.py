"""Messages behind a refused one are refused on its connection and topic, so that none overtakes it."""

from typing import Any

import pytest

from tests.clients.packets import ack, publish
from tests.edge.loop.harness import Broker, Node
from wire.messages.batches import encode_publish_ack
from wire.messages.frames import FrameKind

LEASE_NS = 2_000_000_000
PUBACK, PUBREC = 0x40, 0x50
NO_ROOM, CANNOT_WAIT, QUOTA_EXCEEDED = 0x89, 0x88, 0x97


class PartitionSite:
    """A partition with a primary that restarts, and a publisher with a durable session."""

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
        """Publish a message; return the records that the primary received."""
        self.broker.send(self.pub, publish(topic, b"%d" % number, qos, number if qos else 0, 5))
        return self.primary.records()

    def answer(self, *records: Any, code: int = NO_ROOM) -> None:
        acks = b"".join(encode_publish_ack(record.tag, 5, code) for record in records)
        self.primary.send(FrameKind.PUBLISH_ACK, acks)

    def restart(self) -> None:
        """Start the primary's next incarnation, without its former refusals."""
        self.primary = Node(self.broker, 3, "storage")
        self.broker.hot.replay_partition(5, self.primary.peer)
        self.broker.turn()

    def pass_leases(self, count: float) -> None:
        self.broker.now_ns += int(count * LEASE_NS)
        self.broker.turn()

    def keep_inbound(self) -> list[Any]:
        """Return a list of messages passed to the core from now on; the connection is resumed at once."""
        handed: list[Any] = []

        def inbound(conn: Any, publish: Any, route: Any) -> None:  # noqa: ARG001
            handed.append(publish)
            self.broker.hot.resume(conn)

        self.broker.handler.inbound = inbound  # type: ignore[method-assign]
        return handed

    @property
    def ended(self) -> bool:
        return self.broker.handler.errors == [(self.pub, QUOTA_EXCEEDED)]


def test_message_behind_a_refused_one_is_refused(hot: Any) -> None:
    """Simulation seeds 800034 and 800072: the restarted primary accepted it before the repeat of the refused one."""
    site = PartitionSite(hot)
    site.answer(*site.publish(1))
    site.restart()
    assert site.publish(2) == []
    assert site.broker.take(site.pub) == [ack(PUBACK, 1, 0x97), ack(PUBACK, 2, 0x97)]
    site.pass_leases(3.9)
    assert site.publish(3) == []
    site.pass_leases(0.6)
    assert [record.payload for record in site.publish(4)] == [b"4"]
    assert [record.payload for record in site.publish(5)] == [b"5"]
    counters = site.broker.hot.counters()
    assert (counters["refused_behind"], counters["dropped_denied"]) == (2, 0)


def test_message_behind_a_refused_one_is_not_replayed(hot: Any) -> None:
    """The former primary may have accepted it, so that no refusal may be sent: the connection ends."""
    site = PartitionSite(hot)
    first, _ = site.publish(1) + site.publish(2)
    site.answer(first)
    site.restart()
    assert site.ended and site.primary.records() == []
    assert site.broker.hot.counters()["outbox_bytes"] == 0


def test_other_topics_and_qos0_are_not_refused(hot: Any) -> None:
    site = PartitionSite(hot)
    site.answer(*site.publish(1))
    for number, topic, qos, sent in (
        (2, b"u", 1, 1),
        (0, b"t", 0, 1),
        (0, b"t", 0, 1),
        (3, b"t", 1, 0),
        (4, b"u", 1, 1),
    ):
        assert len(site.publish(number, topic, qos)) == sent, (number, topic, qos)
    data = publish(b"t", b"a", version=5) + publish(b"t", b"b", version=5) + publish(b"t", b"c", 1, 9, 5)
    site.broker.send(site.pub, data)
    assert [record.payload for record in site.primary.records()] == [b"a", b"b"]


def test_client_without_pause_is_disconnected(hot: Any) -> None:
    """The client may not have read the latest refusals yet."""
    site = PartitionSite(hot)
    site.answer(*site.publish(1))
    for number in range(2, 18):  # every quarter of a lease, for four leases
        site.pass_leases(0.25)
        assert site.publish(number) == [] and site.ended == (number == 17)


@pytest.mark.parametrize(("session", "version"), [(0, 5), (0, 4), (9, 4)])
def test_refused_topics_apply_only_to_durable_sessions(hot: Any, session: int, version: int) -> None:
    """A 3.1.1 client, which receives no failure, is disconnected at once."""
    site = PartitionSite(hot, session, version)
    data = publish(b"t", b"", 1, 1, version)
    site.broker.send(site.pub, data)
    site.answer(*site.primary.records())
    site.restart()
    if version == 4:
        assert site.ended
    else:
        assert len(site.publish(2)) == 1


def test_core_messages_behind_a_refused_one_are_refused(hot: Any) -> None:
    """Retained messages and QoS 2 of durable sessions: the core receives the refusal, and releases its record first."""
    site = PartitionSite(hot)
    site.answer(*site.publish(1))
    site.broker.take(site.pub)
    handed = site.keep_inbound()
    assert site.publish(2, qos=2) == []
    (inbound,) = handed
    codes: list[int] = []
    route = site.broker.hot.route(b"t")
    site.broker.hot.publish(route, inbound, -1, 1, 9, 1, codes.append)
    site.broker.turn()
    assert codes == [NO_ROOM] and site.primary.records() == []
    assert site.broker.take(site.pub) == [ack(PUBREC, 2, 0x97)]


def test_stored_retained_message_behind_a_refused_one_closes(hot: Any) -> None:
    """Its partition has it, so no client may receive a refusal."""
    site = PartitionSite(hot)
    (record,) = site.publish(1)
    handed = site.keep_inbound()
    site.publish(2, qos=2)
    (inbound,) = handed
    site.answer(record)
    route = site.broker.hot.route(b"t")
    site.broker.hot.publish(route, inbound, -1, 1, 9, 1, None, (77, 6))
    site.broker.turn()
    assert site.ended and site.primary.records() == []


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("session", [0, 9])
def test_uncertain_refusal_of_a_partition_sends_no_failure(hot: Any, session: int, version: int) -> None:
    """A former primary may have committed it: the connection ends without a refusal or acknowledgement."""
    site = PartitionSite(hot, session, version)
    data = publish(b"t", b"1", 1, 1, version) + publish(b"t", b"2", 1, 2, version)
    site.broker.send(site.pub, data)
    first, second = site.primary.records()
    site.answer(first, code=CANNOT_WAIT)
    site.answer(second, code=0)
    assert site.ended and site.broker.take(site.pub) == ([b"\xe0\x01\x97"] if version == 5 else [])


def test_refused_topics_above_limit_cover_all_topics(hot: Any) -> None:
    """Above the limit each topic of the connection counts as refused."""
    site = PartitionSite(hot)
    for number in range(1, 258):
        site.answer(*site.publish(number, b"t%d" % number))
    assert site.publish(300, b"u") == []
    site.pass_leases(4.5)
    assert len(site.publish(301, b"u")) == 1
