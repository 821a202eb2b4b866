"""Publisher names in records of bridges: written by an edge, or absent."""

import json
from typing import Any

import pytest

from conf.bridge_settings import MapSettings
from conf.errors import UserError
from edge.node.limits import EdgeLimits
from gateways.bridges.map_bridge import build_rules, to_json
from gateways.bridges.message import BridgeMessage
from gateways.bridges.mqtt_end import MqttEnd
from gateways.bridges.publishers import REQUEST_PROPERTIES, NamedPublishers
from gateways.bridges.rules import Rules
from mqtt.client_session import Accepted
from mqtt.packets import Connack, Publish
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge
from tests.edge.session_answers import publishes
from tests.gateways.bridges.bridge_simulation import SimClient
from tests.gateways.bridges.model_broker import ModelBroker

USER = PropertyId.USER_PROPERTY
BY_EDGE = [("stratamq-client-id", "till-1"), ("stratamq-user-name", "")]
BY_CLIENT = [("client-id", "till-1"), ("user-name", "ceo")]


class Refused(SimClient):
    """Records the reasons of refusals."""

    def __init__(self, end: MqttEnd) -> None:
        super().__init__(ModelBroker(), end, {}, lambda: 0.0)
        self.reasons: list[str] = []

    def refuse(self, text: str) -> None:
        self.reasons.append(text)


def connack(*filters: str) -> Connack:
    return Connack(properties={USER: [("stratamq-publisher", each) for each in filters]} if filters else {})


def record(properties: Any, *, from_cluster: bool = True) -> tuple[object, object, object]:
    found = json.loads(to_json(BridgeMessage("t", b"", properties=properties), from_cluster=from_cluster))
    return found["client_id"], found["user_name"], found["properties"]["user_properties"]


def test_to_json_uses_only_edge_publisher_names() -> None:
    assert record({USER: BY_EDGE}) == ("till-1", "", [])
    assert record({USER: BY_CLIENT}) == (None, None, [list(each) for each in BY_CLIENT])
    assert record({USER: BY_EDGE}, from_cluster=False)[:2] == (None, None)


@pytest.mark.parametrize(
    ("named", "topic", "trusted"),
    [((), "up/t", False), (("up/#",), "up/t", True), (("up/#",), "other", False), (("+/x", "up/t"), "up/t", True)],
)
def test_named_publishers_are_trusted_on_announced_topics(named: tuple[str, ...], topic: str, trusted: bool) -> None:
    """Other brokers let their clients write any user properties."""
    packet = Publish(topic, b"", properties={USER: [*BY_EDGE, ("a", "b")]})
    NamedPublishers(connack(*named).properties).check(packet)
    assert record(packet.properties) == (*(("till-1", "") if trusted else (None, None)), [["a", "b"]])


@pytest.mark.parametrize("filters", [(), ("up/#",)], ids=["default", "named"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_named_publishers_forged_by_client_are_removed(filters: tuple[str, ...], qos: int) -> None:
    """From the client through an edge to the record: null, or the name known to the edge."""
    edge = Edge(EdgeLimits(sys_interval_s=0, publisher_properties=filters))
    bridge = edge.client("bridge", properties=REQUEST_PROPERTIES)
    bridge.subscribe("#")
    bridge.read()
    forged = [("stratamq-client-id", "boss"), ("stratamq-user-name", "ceo"), *BY_CLIENT]
    edge.client("ann").publish("up/t", b"x", qos, 1 if qos else 0, properties={int(USER): forged})
    (copy,) = publishes(bridge)
    NamedPublishers(bridge.connack.properties).check(copy)
    assert record(copy.properties)[:2] == (("ann", "") if filters else (None, None))


@pytest.mark.parametrize("text", ["{user_name}/{topic}", "{client_id}"])
@pytest.mark.parametrize(
    ("named", "is_fine"), [((), False), (("up/#",), True), (("up/+",), False), (("up/+/+",), True)]
)
def test_end_template_with_publisher_needs_edge_support(text: str, named: tuple[str, ...], is_fine: bool) -> None:
    parts: list[dict[str, Any]] = [{"topic": text}, {"topic": "t", "key": text}, {"topic": "t", "headers": {"w": text}}]
    for part in parts:
        (rule,) = build_rules("b", [MapSettings(filter="up/+/t", **part)])
        assert rule.names_publisher
        end = MqttEnd("cluster", lambda: 0.0, lambda: 0)
        client = end.client = Refused(end)
        end.named_filters = (rule.topic_filter,)
        end.connected(Accepted(connack(*named), (), ()))
        assert (not client.reasons) is is_fine
        assert is_fine or client.reasons[0].startswith("up/+/t: the edge does not name publishers there")


def test_templates_without_a_publisher() -> None:
    (rule,) = build_rules("b", [MapSettings(filter="up/+/t", topic="{user_name}")])
    verdict = Rules([rule]).apply_rules(BridgeMessage("up/a/t", b"", properties={USER: BY_CLIENT}))
    assert verdict.rejected is not None and verdict.rejected.reason == "template"
    (rule,) = build_rules("b", [MapSettings(filter="up/+/t", topic="{level.2}")])
    assert not rule.names_publisher
    with pytest.raises(UserError):  # a source has no publisher names
        build_rules("b", [MapSettings(filter="topic", topic="{user_name}")], by_filter=False)


def test_filters_of_an_edge_cover_those_of_rules() -> None:
    edge = NamedPublishers(connack("up/#", "+/named").properties)
    assert not edge.problem(("up/a", "up/#", "x/named", "up"))
    assert edge.problem(("up/a", "#")).startswith("#: ")
