"""edge.publisher_properties: on these topics a message names its publisher, whatever its client wrote."""

from typing import Any

import pytest

from conf.errors import UserError
from conf.settings import EdgeSettings
from edge.limits_of_settings import edge_limits
from edge.node.limits import EdgeLimits
from mqtt.packets import Puback
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session
from tests.edge.retained_partitions import RetainedPartitions
from tests.edge.rights.ruled import Vouched, somebody
from tests.edge.session_answers import DURABLE, publishes, said
from wire.messages.sessions import RecordInbound
from wire.messages.wills import FireWill, Will

NAMED = EdgeLimits(sys_interval_s=0, publisher_properties=("up/#", "+/named"))
USER = int(PropertyId.USER_PROPERTY)


def pairs(copy: Any) -> list[tuple[str, str]]:
    return list(copy.properties.get(USER, []))


def with_watcher(limits: EdgeLimits = NAMED) -> tuple[Edge, Session]:
    edge = Edge(limits)
    watcher = edge.client("watcher")
    watcher.subscribe("#", qos=2)
    watcher.read()
    return edge, watcher


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", ["up/a", "x/named"])
def test_a_message_names_its_publisher(topic: str, version: int, qos: int) -> None:
    """Of both versions and every QoS, repeatedly on one connection; the publisher is answered as ever."""
    edge, watcher = with_watcher()
    session = edge.client("ann", version)
    for number in range(1, 4):
        session.publish(topic, b"m%d" % number, qos, number if qos else 0)
    copies = publishes(watcher)
    assert [copy.payload for copy in copies] == [b"m1", b"m2", b"m3"]
    assert all(pairs(copy) == [("client-id", "ann"), ("user-name", "")] for copy in copies)
    assert len(session.read()) == (3 if qos else 0)


def test_forged_names_are_replaced_and_the_rest_is_kept_in_order() -> None:
    edge, watcher = with_watcher()
    session = edge.client("ann")
    written = [("a", "1"), ("client-id", "bob"), ("b", "2"), ("user-name", "root"), ("client-id", "carol"), ("a", "3")]
    properties = {USER: written, int(PropertyId.CONTENT_TYPE): "t", int(PropertyId.MESSAGE_EXPIRY_INTERVAL): 60}
    for qos in (0, 1):
        session.publish("up/a", qos=qos, identifier=qos, properties=properties)
    for copy in publishes(watcher):
        named = [("client-id", "ann"), ("user-name", "")]
        assert pairs(copy) == [("a", "1"), ("b", "2"), ("a", "3"), *named]
        assert copy.properties[int(PropertyId.CONTENT_TYPE)] == "t"
        assert copy.properties[int(PropertyId.MESSAGE_EXPIRY_INTERVAL)] == 60


def test_other_topics_are_as_they_were_written() -> None:
    """Also between named ones of the same connection."""
    edge, watcher = with_watcher()
    session = edge.client("ann")
    for topic in ("other", "up/a", "other", "up", "named"):
        session.publish(topic, properties={USER: [("client-id", "bob")]})
    assert [[value for _, value in pairs(copy)] for copy in publishes(watcher)] == [
        ["bob"], ["ann", ""], ["bob"], ["ann", ""], ["bob"]
    ]  # fmt: skip


def test_the_user_is_the_one_that_was_verified() -> None:
    edge = Edge(NAMED, steps=[Vouched()])
    watcher, session = somebody(edge, "", "watcher"), somebody(edge, "ann-of-the-chain", "c")
    watcher.subscribe("#")
    watcher.read()
    session.publish("up/a")
    assert [pairs(copy) for copy in publishes(watcher)] == [[("client-id", "c"), ("user-name", "ann-of-the-chain")]]


def test_retained_messages_and_those_of_stored_publishers_are_named_before_they_are_recorded() -> None:
    edge, watcher = with_watcher()
    stores = RetainedPartitions(edge)
    session = edge.client("ann", 4)
    session.publish("up/kept", b"k", 1, 1, retain=True)
    stores.waiting.pop()(0)
    edge.turn()
    stored = edge.client("bob", properties=DURABLE)
    stored.publish("up/twice", b"t", 2, 1)
    assert any(isinstance(message, RecordInbound) for message in edge.seen)
    assert [pairs(copy)[0] for copy in publishes(watcher)] == [("client-id", "ann"), ("client-id", "bob")]
    assert [packet.reason_code for packet in said(session, Puback)] == [0]


def test_a_will_names_the_client_that_left_it() -> None:
    edge, watcher = with_watcher()
    edge.storage(FireWill(3, 1, 1, 17, Will("up/gone", b"bye", 1), "ann", "anna"))
    edge.turn()
    assert [pairs(copy) for copy in publishes(watcher)] == [[("client-id", "ann"), ("user-name", "anna")]]


@pytest.mark.parametrize("wrong", ["a/#/b", "", "a+", "$share/g/a", "a\0"])
def test_a_filter_that_is_none_is_named_at_the_start(wrong: str) -> None:
    with pytest.raises(UserError, match=r"edge\.publisher_properties: .* is no topic filter: ") as raised:
        edge_limits(EdgeSettings(publisher_properties=("ok/#", wrong)))
    assert raised.value.exit_code == 2
