"""Filters that would make matching too expensive are refused in SUBACK, and the edge serves all others."""

import itertools

import pytest

from mqtt.packets import Publish
from tests.edge.edge_harness import Edge

HOSTILE = ["/".join(mix) + "/a" * 21 for mix in itertools.islice(itertools.product("a+", repeat=10), 1000)]
TOPIC = "/".join("a" * 31)


@pytest.mark.parametrize(("version", "refusal"), [(5, 0x97), (4, 0x80)])
def test_hostile_filters_of_an_ephemeral_session(version: int, refusal: int) -> None:
    """0x97, in 3.1.1 0x80; counted, and a topic that all of them meet is delivered by what was granted."""
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


def test_the_cost_ends_with_the_connection() -> None:
    """The trie is as cheap as before, and the next session gets as much as the first."""
    edge = Edge()
    found = []
    for number in range(3):
        session = edge.client(f"hostile-{number}")
        session.subscribe(*HOSTILE[:300], qos=0)
        found.append(session.read()[0].reason_codes.count(0))
        session.drop()
    assert found == [found[0]] * 3
