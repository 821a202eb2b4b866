"""edge.publisher_properties: messages of these topics have verified publisher names."""

from typing import Any

import pytest

from conf.errors import UserError
from conf.settings import EdgeSettings
from edge.limits_of_settings import edge_limits
from edge.node.limits import EdgeLimits
from mqtt.packets import Puback
from mqtt.properties import PropertyId, encode_properties
from tests.edge.edge_harness import Edge, Session
from tests.edge.retained_partitions import RetainedPartitions
from tests.edge.rights.ruled import Vouched, somebody
from tests.edge.session_answers import DURABLE, publishes, said
from wire.messages.sessions import RecordInbound
from wire.messages.wills import FireWill, SessionWill

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
def test_message_has_publisher_properties(topic: str, version: int, qos: int) -> None:
    """In both versions and every QoS, repeatedly on one connection; acknowledgements are unchanged."""
    edge, watcher = with_watcher()
    session = edge.client("ann", version)
    for number in range(1, 4):
        session.publish(topic, b"m%d" % number, qos, number if qos else 0)
    copies = publishes(watcher)
    assert [copy.payload for copy in copies] == [b"m1", b"m2", b"m3"]
    assert all(pairs(copy) == [("stratamq-client-id", "ann"), ("stratamq-user-name", "")] for copy in copies)
    assert len(session.read()) == (3 if qos else 0)


def test_forged_names_are_replaced_and_others_keep_their_order() -> None:
    edge, watcher = with_watcher()
    session = edge.client("ann")
    written = [
        ("a", "1"),
        ("stratamq-client-id", "bob"),
        ("b", "2"),
        ("stratamq-user-name", "root"),
        ("stratamq-client-id", "carol"),
        ("a", "3"),
    ]
    properties = {USER: written, int(PropertyId.CONTENT_TYPE): "t", int(PropertyId.MESSAGE_EXPIRY_INTERVAL): 60}
    for qos in (0, 1):
        session.publish("up/a", qos=qos, identifier=qos, properties=properties)
    for copy in publishes(watcher):
        named = [("stratamq-client-id", "ann"), ("stratamq-user-name", "")]
        assert pairs(copy) == [("a", "1"), ("b", "2"), ("a", "3"), *named]
        assert copy.properties[int(PropertyId.CONTENT_TYPE)] == "t"
        assert copy.properties[int(PropertyId.MESSAGE_EXPIRY_INTERVAL)] == 60


def test_other_topics_have_no_publisher_properties() -> None:
    """Forged names are removed there, also between named messages of the connection."""
    edge, watcher = with_watcher()
    session = edge.client("ann")
    written = [("client-id", "x"), ("stratamq-client-id", "bob"), ("stratamq-ref", "7"), ("stratamq-user-name", "ceo")]
    for qos in (0, 1):
        for number, topic in enumerate(("other", "up/a", "other", "up", "named")):
            properties = {USER: written, int(PropertyId.CONTENT_TYPE): "t"}
            session.publish(topic, qos=qos, identifier=qos * (number + 1), properties=properties)
        copies = publishes(watcher)
        kept = [("client-id", "x"), ("stratamq-ref", "7")]
        named = [*kept, ("stratamq-client-id", "ann"), ("stratamq-user-name", "")]
        assert [pairs(copy) for copy in copies] == [kept, named, kept, named, kept]
        assert all(copy.properties[int(PropertyId.CONTENT_TYPE)] == "t" for copy in copies)


@pytest.mark.parametrize("limits", [NAMED, EdgeLimits(sys_interval_s=0)], ids=["named", "default"])
def test_publisher_properties_cannot_be_forged(limits: EdgeLimits) -> None:
    """QoS 2, retained, of a durable publisher, by a topic alias, and a will."""
    edge, watcher = with_watcher(limits)
    stores = RetainedPartitions(edge)
    forged = {USER: [("stratamq-user-name", "ceo")]}
    session, stored = edge.client("ann"), edge.client("bob", properties=DURABLE)
    session.publish("a", b"1", 2, 1, properties=forged)
    session.publish("a", b"2", 1, 2, properties=forged, retain=True)
    stores.waiting.pop()(0)
    edge.turn()
    stored.publish("a", b"3", 2, 1, properties=forged)
    session.publish("a", b"4", properties={**forged, int(PropertyId.TOPIC_ALIAS): 1})
    session.publish("", b"5", properties={**forged, int(PropertyId.TOPIC_ALIAS): 1})
    block = encode_properties(dict(forged))[1:]
    edge.storage(FireWill(3, 1, 1, 17, SessionWill("a", b"6", 1, properties=block), "ann", "anna"))
    edge.turn()
    copies = publishes(watcher)
    assert sorted(copy.payload for copy in copies) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert all(pairs(copy) == [] for copy in copies)


def test_connack_lists_publisher_filters_on_request() -> None:
    """In CONNACK, which no other client can write."""
    edge, everything = Edge(NAMED), [("stratamq-publisher", "up/#"), ("stratamq-publisher", "+/named")]
    for value, told in (("1", everything), ("0", [])):
        session = edge.client("ann", properties={USER: [("stratamq-publisher", value)]})
        assert list(session.connack.properties.get(USER, [])) == told
    assert USER not in edge.client("bob").connack.properties
    small = {USER: [("stratamq-publisher", "1")], int(PropertyId.MAXIMUM_PACKET_SIZE): 40}
    assert USER not in edge.client("cat", properties=small).connack.properties  # [MQTT-3.2.2-20]


def test_publisher_user_is_the_verified_one() -> None:
    edge = Edge(NAMED, steps=[Vouched()])
    watcher, session = somebody(edge, "", "watcher"), somebody(edge, "ann-of-the-chain", "c")
    watcher.subscribe("#")
    watcher.read()
    session.publish("up/a")
    assert [pairs(copy) for copy in publishes(watcher)] == [
        [("stratamq-client-id", "c"), ("stratamq-user-name", "ann-of-the-chain")]
    ]


def test_retained_and_durable_messages_are_named_before_recording() -> None:
    edge, watcher = with_watcher()
    stores = RetainedPartitions(edge)
    session = edge.client("ann", 4)
    session.publish("up/kept", b"k", 1, 1, retain=True)
    stores.waiting.pop()(0)
    edge.turn()
    stored = edge.client("bob", properties=DURABLE)
    stored.publish("up/twice", b"t", 2, 1)
    assert any(isinstance(message, RecordInbound) for message in edge.seen)
    assert [pairs(copy)[0] for copy in publishes(watcher)] == [
        ("stratamq-client-id", "ann"),
        ("stratamq-client-id", "bob"),
    ]
    assert [packet.reason_code for packet in said(session, Puback)] == [0]


def test_will_has_its_clients_publisher_properties() -> None:
    edge, watcher = with_watcher()
    edge.storage(FireWill(3, 1, 1, 17, SessionWill("up/gone", b"bye", 1), "ann", "anna"))
    edge.turn()
    assert [pairs(copy) for copy in publishes(watcher)] == [
        [("stratamq-client-id", "ann"), ("stratamq-user-name", "anna")]
    ]


@pytest.mark.parametrize("wrong", ["a/#/b", "", "a+", "$share/g/a", "a\0"])
def test_invalid_publisher_filter_is_reported_at_start(wrong: str) -> None:
    with pytest.raises(UserError, match=r"edge\.publisher_properties: .* is no topic filter: ") as raised:
        edge_limits(EdgeSettings(publisher_properties=("ok/#", wrong)))
    assert raised.value.exit_code == 2
