"""Only clients that request origins in CONNECT, and accept user properties, receive them."""

from typing import Any

import pytest

from mqtt.packets import Pubrel
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session
from tests.edge.retained_partitions import RetainedPartitions

NAME = "stratamq-origin"
USER, PROBLEM = int(PropertyId.USER_PROPERTY), int(PropertyId.REQUEST_PROBLEM_INFORMATION)
SIZE, EXPIRY = int(PropertyId.MAXIMUM_PACKET_SIZE), int(PropertyId.SESSION_EXPIRY_INTERVAL)


def requesting_client(edge: Edge, client_id: str = "p", **more: Any) -> Session:
    properties: dict[int, object] = {USER: [("other", "1"), (NAME, "1")]}
    return edge.client(client_id, properties=properties | more.pop("also", {}), **more)


def origins(session: Session) -> list[str]:
    """Return the origin in each written packet, "" for none."""
    found = []
    for packet in session.read():
        pairs = dict(packet.properties.get(USER, []))
        assert pairs.keys() <= {NAME}
        found.append(pairs.get(NAME, ""))
    return found


def test_origin_is_reported_for_each_qos_and_retained_messages() -> None:
    """The counter of the partition for a durable session's QoS 2, else this edge's number."""
    edge = Edge()
    edge.client("s").subscribe("#", qos=2)
    first, stored = requesting_client(edge), requesting_client(edge, "stored", also={EXPIRY: 60})
    first.publish("t", qos=1, identifier=1)
    first.publish("t", qos=2, identifier=2)
    first.send(Pubrel(2))
    mine = origins(first)
    assert mine[2] == "" and all(text.startswith("e0/1/") for text in mine[:2]) and mine[0] != mine[1]
    stored.publish("t", qos=2, identifier=1)
    number = stored.client.session
    assert origins(stored) == [f"session/{number >> 48}-{number & (1 << 48) - 1}/1"]


@pytest.mark.parametrize(
    "properties",
    [
        {USER: [(NAME, "0")]},
        {USER: [("other", "1")]},
        {USER: [(NAME, "1")], PROBLEM: 0},
        {USER: [(NAME, "1")], SIZE: 30},
    ],
)
def test_origin_is_not_reported_to_clients_without_request_or_properties(properties: dict[int, object]) -> None:
    edge = Edge()
    client = edge.client("p", properties=properties)
    client.publish("t", qos=1, identifier=1)
    client.publish("t", qos=2, identifier=2)
    assert origins(client) == ["", ""]


@pytest.mark.parametrize("reason_code", [0, 0x97])
def test_retained_message_reports_origin_of_its_retained_copy(reason_code: int) -> None:
    edge = Edge()
    register = RetainedPartitions(edge)
    edge.client("s").subscribe("#", qos=1)
    client = requesting_client(edge)
    client.publish("t", qos=1, identifier=1, retain=True)
    (stands,) = register.waiting
    stands(reason_code)
    edge.turn()
    assert origins(client) == ["e0/1/1"]
