"""Filters that make matching too expensive are refused in SUBACK; other clients are served."""

import itertools

import pytest

from edge.subscriptions.retained_reads import READS_MAX
from mqtt.packets import Publish
from mqtt.properties import PropertyId
from tests.edge.edge_harness import PARTITIONS, Edge, with_clients
from wire.messages.retained import ReadRetained, ReadRetainedAll, RetainedNone
from wire.messages.sessions import SessionSubscribed, SubscribeSession

HOSTILE = ["/".join(mix) + "/a" * 21 for mix in itertools.islice(itertools.product("a+", repeat=10), 1000)]
TOPIC = "/".join("a" * 31)


@pytest.mark.parametrize(("version", "refusal"), [(5, 0x97), (4, 0x80)])
def test_expensive_filters_of_ephemeral_session_are_refused(version: int, refusal: int) -> None:
    """0x97, in 3.1.1 0x80; counted, and a matching topic is delivered for the granted ones."""
    edge = Edge()
    session = edge.client("hostile", version)
    found: list[int] = []
    for at in range(0, 1000, 250):
        session.subscribe(*HOSTILE[at : at + 250], identifier=1 + at, qos=0)
        (suback,) = session.read()
        found += suback.reason_codes
    assert set(found) == {0, refusal}
    assert edge.core.counts["refused_filter_cost"] == found.count(refusal)
    other = edge.client("other")
    other.publish(TOPIC, b"x", 0)
    assert [packet.payload for packet in session.read() if isinstance(packet, Publish)] == [b"x"]
    other.subscribe("plant/+/state", qos=0)
    assert other.read()[0].reason_codes == [0]


def test_filter_cost_ends_with_the_connection() -> None:
    """The trie is as cheap as before, and the next session has the same budget."""
    edge = Edge()
    found = []
    for number in range(3):
        session = edge.client(f"hostile-{number}")
        session.subscribe(*HOSTILE[:300], qos=0)
        found.append(session.read()[0].reason_codes.count(0))
        session.drop()
    assert found == [found[0]] * 3


@pytest.mark.parametrize(("version", "refusal"), [(5, 0x97), (4, 0x80)])
def test_filters_refused_by_the_partition_are_not_added(version: int, refusal: int) -> None:
    """SUBACK has the partition's codes; only granted filters are held and read."""
    edge = Edge()
    properties: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 60} if version == 5 else {}
    session = edge.client("stored", version, properties, clean_start=False)
    edge.held = {SubscribeSession}
    session.subscribe("a", "b", "c", qos=1)
    (request,) = edge.take(SubscribeSession)
    edge.storage(SessionSubscribed(request.request, [1, 0x97, 1], [False] * 3))
    assert session.read()[0].reason_codes == [1, refusal, 1]
    assert set(session.client.subscriptions) == {"a", "c"}
    edge.turn()
    asked = [message.topic_filter for message in edge.seen if isinstance(message, ReadRetained)]
    assert asked == ["a", "c"]


def test_reads_of_one_subscribe_are_bounded() -> None:
    """Each is read once, and held messages are released after the last."""
    edge, session, publisher = with_clients()
    edge.held = {ReadRetainedAll}
    session.subscribe(*(f"+/x{number}" for number in range(100)), qos=0)
    publisher.publish("a/x99", b"live")
    found: list[str] = []
    while asked := edge.take(ReadRetainedAll):
        assert len(asked) <= READS_MAX
        found += [message.topic_filter for message in asked]
        assert not [packet for packet in session.read() if isinstance(packet, Publish)]
        for message in asked:
            edge.storage(RetainedNone(message.request, list(range(PARTITIONS))))
        edge.turn()
    assert sorted(found) == sorted(f"+/x{number}" for number in range(100))
    assert [packet.payload for packet in session.read()] == [b"live"]
    assert len(edge.core.held) == 0


@pytest.mark.parametrize("gone", [False, True])
def test_silent_nodes_delay_reads_without_loss(gone: bool) -> None:
    """Their partitions are requested one by one after a timeout, then the next filters; without the client, none."""
    edge = Edge()
    session = edge.client("s")
    edge.held = {ReadRetainedAll}
    session.subscribe(*(f"+/x{number}" for number in range(100)), qos=0)
    if gone:
        session.drop()
    found: list[str] = []
    while asked := edge.take(ReadRetainedAll):
        assert len(asked) <= READS_MAX
        found += [message.topic_filter for message in asked]
        edge.turn(11.0)
    assert len(found) == (READS_MAX if gone else 100)
    one_by_one = [message for message in edge.seen if isinstance(message, ReadRetained)]
    assert len(one_by_one) == (0 if gone else 100 * PARTITIONS)
    assert not edge.core.retained.waits
