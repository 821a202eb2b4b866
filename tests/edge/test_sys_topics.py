"""Topics under $SYS at one edge: its own metrics, and routed ones."""

import pytest

from edge.loop.state import InboundPublish
from edge.node.limits import EdgeLimits
from edge.subscriptions.sys_scope import is_routed, matches_metrics
from tests.edge.edge_harness import Edge
from tests.edge.session_answers import DURABLE, publishes
from wire.messages.retained import RetainedMessage
from wire.messages.routes import AddRoutes, RemoveRoutes
from wire.messages.sessions import OpenSession, SessionOpened, SessionSubscription

STATE = "$SYS/broker/connection/plant/state"


def test_sys_is_delivered_at_subscribe_and_when_it_changes() -> None:
    """$SYS/# has this edge's metrics; # never matches them [MQTT-4.7.2-1]."""
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


@pytest.mark.parametrize(
    ("topic_filter", "routed", "figures"),
    [
        ("a/#", True, False),
        ("#", True, False),
        ("$other/#", True, False),
        ("$SYS/#", True, True),
        ("$SYS/+/+/#", True, True),
        ("$SYS/+/+/+", True, True),
        ("$SYS/broker/#", True, True),
        ("$SYS/broker/connection/+/state", True, False),
        ("$SYS/cluster/events/#", True, False),
        ("$SYS/cluster/events/connected", True, False),
        ("$SYS/broker/connection", False, False),
        ("$SYS/cluster/+", False, True),
        ("$SYS/broker/uptime", False, True),
        ("$SYS/cluster/ring/version", False, True),
        ("$SYS/+", False, True),
        ("$SYS", False, True),
    ],
)
def test_routed_filters_and_metric_filters(topic_filter: str, routed: bool, figures: bool) -> None:
    """Topics below $SYS/broker/connection/ and $SYS/cluster/events/ are routed; all others under $SYS are an edge's."""
    assert (is_routed(topic_filter), matches_metrics(topic_filter)) == (routed, figures)


def test_filters_of_routed_topics_are_registered_and_released() -> None:
    """Another edge's bridge states arrive only if the shard owners know the filter."""
    edge = Edge()
    session = edge.client("s")
    session.subscribe("$SYS/broker/uptime", "$SYS/#", STATE)
    added = {entry.topic_filter for message in edge.seen if isinstance(message, AddRoutes) for entry in message.routes}
    assert added == {"$SYS/#", STATE}
    session.unsubscribe("$SYS/broker/uptime", "$SYS/#", STATE)
    edge.turn(5)
    removed = {
        entry.topic_filter for message in edge.seen if isinstance(message, RemoveRoutes) for entry in message.routes
    }
    assert removed == {"$SYS/#", STATE}


@pytest.mark.parametrize("topic_filter", [STATE, "$SYS/broker/connection/#", "$SYS/#"])
def test_retained_bridge_states_are_read_with_the_metrics(topic_filter: str) -> None:
    """$SYS/# gets both kinds at SUBSCRIBE; a filter of the routed ones gets no metrics."""
    edge = Edge(EdgeLimits(sys_interval_s=10))
    edge.retained = [RetainedMessage(STATE, b"1", 1, b"")]
    session = edge.client("s")
    session.subscribe(topic_filter, qos=1)
    copies = {copy.topic_name: copy.retain for copy in publishes(session)}
    assert copies[STATE]
    assert ("$SYS/broker/version" in copies) == (topic_filter == "$SYS/#")


@pytest.mark.parametrize("resumed", [False, True])
def test_durable_session_gets_metric_updates_while_connected(resumed: bool) -> None:
    """Its partition returns its earlier $SYS filters; UNSUBSCRIBE ends the updates."""
    edge = Edge(EdgeLimits(sys_interval_s=10))
    if resumed:
        edge.held = {OpenSession}
        session = edge.accept()
        session.connect("s", properties=DURABLE)
        (asked,) = edge.take(OpenSession)
        edge.held = set()
        known = [SessionSubscription("$SYS/broker/#"), SessionSubscription("$SYS/broker/connection/+/state")]
        opened = SessionOpened(asked.request, asked.partition, 1, 0, 9, 5, True, sys_filters=known)
        edge.storage(opened)
        edge.turn()
    else:
        session = edge.client("s", properties=DURABLE)
        session.subscribe("$SYS/#", "$SYS/broker/#", qos=0)
    session.read()
    edge.client("more")
    edge.turn(10.1)
    copies = [copy.topic_name for copy in publishes(session)]
    assert copies.count("$SYS/broker/clients/connected") == 1
    session.unsubscribe("$SYS/#", "$SYS/broker/#")
    session.read()
    edge.client("another")
    edge.turn(10.1)
    assert publishes(session) == []
    session.subscribe("$SYS/#", qos=0)
    session.drop()
    edge.client("third")
    edge.turn(10.1)


def test_forwarded_state_reaches_local_subscriber() -> None:
    """A forwarded message under $SYS is matched like any topic."""
    edge = Edge()
    session = edge.client("s")
    session.subscribe("$SYS/broker/connection/#", qos=0)
    session.read()
    edge.core.hot.publish(edge.core.local(STATE.encode()), InboundPublish(STATE.encode(), b"0"))
    assert [(copy.topic_name, copy.payload) for copy in publishes(session)] == [(STATE, b"0")]


def test_sys_topics_of_stored_data_do_not_exist() -> None:
    """A dashboard for Mosquitto shows no value there, instead of a wrong one."""
    edge = Edge(EdgeLimits(sys_interval_s=10))
    session = edge.client("s")
    edge.turn(10.1)
    session.subscribe("$SYS/broker/#", qos=0)
    names = {copy.topic_name.removeprefix("$SYS/broker/") for copy in publishes(session)}
    assert "clients/connected" in names
    stored = ("disconnected", "inactive", "expired", "stored", "store/", "retained messages")
    assert not [name for name in names if any(word in name for word in stored)]
