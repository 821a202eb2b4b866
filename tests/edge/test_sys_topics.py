"""Topics under $SYS at one edge: its own figures, and those that are routed."""

import pytest

from edge.loop.state import InboundPublish
from edge.node.limits import EdgeLimits
from edge.subscriptions.sys_scope import has_figures, is_routed
from tests.edge.edge_harness import Edge
from tests.edge.session_answers import DURABLE, publishes
from wire.messages.retained import RetainedMessage
from wire.messages.routes import AddRoutes, RemoveRoutes
from wire.messages.sessions import OpenSession, SessionOpened, SessionSubscription

STATE = "$SYS/broker/connection/plant/state"


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
def test_which_filters_are_routed_and_which_have_figures(topic_filter: str, routed: bool, figures: bool) -> None:
    """Below $SYS/broker/connection/ and $SYS/cluster/events/ topics are routed; all others under $SYS are an edge's."""
    assert (is_routed(topic_filter), has_figures(topic_filter)) == (routed, figures)


def test_filters_that_reach_routed_topics_are_registered_and_released() -> None:
    """Another edge's bridge states come here only if the owners of shards know of the filter."""
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
def test_retained_states_of_bridges_are_read_with_the_figures(topic_filter: str) -> None:
    """$SYS/# gets both kinds at SUBSCRIBE; a filter of the routed ones gets no figures."""
    edge = Edge(EdgeLimits(sys_interval_s=10))
    edge.retained = [RetainedMessage(STATE, b"1", 1, b"")]
    session = edge.client("s")
    session.subscribe(topic_filter, qos=1)
    copies = {copy.topic_name: copy.retain for copy in publishes(session)}
    assert copies[STATE]
    assert ("$SYS/broker/version" in copies) == (topic_filter == "$SYS/#")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_stored_session_gets_updates_of_the_figures_while_it_is_connected(resumed: bool) -> None:
    """Its partition names the filters under $SYS that it had before; UNSUBSCRIBE ends the updates."""
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


def test_a_forwarded_state_reaches_a_local_subscriber() -> None:
    """What another edge forwards under $SYS is matched like any topic."""
    edge = Edge()
    session = edge.client("s")
    session.subscribe("$SYS/broker/connection/#", qos=0)
    session.read()
    edge.core.hot.publish(edge.core.local(STATE.encode()), InboundPublish(STATE.encode(), b"0"))
    assert [(copy.topic_name, copy.payload) for copy in publishes(session)] == [(STATE, b"0")]


def test_topics_of_what_an_edge_does_not_store_do_not_exist() -> None:
    """A dashboard made for Mosquitto shows no value there, and not a wrong one."""
    edge = Edge(EdgeLimits(sys_interval_s=10))
    session = edge.client("s")
    edge.turn(10.1)
    session.subscribe("$SYS/broker/#", qos=0)
    names = {copy.topic_name.removeprefix("$SYS/broker/") for copy in publishes(session)}
    assert "clients/connected" in names
    stored = ("disconnected", "inactive", "expired", "stored", "store/", "retained messages")
    assert not [name for name in names if any(word in name for word in stored)]
