"""Figures under $SYS at one edge."""

from edge.node.limits import EdgeLimits
from tests.edge.edge_harness import Edge
from tests.edge.session_answers import publishes


def test_sys_is_delivered_at_subscribe_and_when_it_changes() -> None:
    """$SYS/# has this edge's figures; # never matches them [MQTT-4.7.2-1]."""
    edge = Edge(EdgeLimits(sys_interval_s=10))
    session, other = edge.client("s"), edge.client("o")
    session.subscribe("$SYS/#", qos=0)
    other.subscribe("#")
    topics = {copy.topic_name for copy in publishes(session)}
    assert {"$SYS/broker/version", "$SYS/broker/clients/connected"} <= topics
    edge.client("more")
    edge.turn(10.1)
    assert "$SYS/broker/clients/connected" in {copy.topic_name for copy in publishes(session)}
    assert publishes(other) == []
