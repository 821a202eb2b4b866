"""Who asks in CONNECT for the origins of its messages gets them; who must not be sent user properties gets none."""

from typing import Any

import pytest

from mqtt.packets import Pubrel
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session
from tests.edge.retained_partitions import RetainedPartitions

NAME = "stratamq-origin"
USER, PROBLEM = int(PropertyId.USER_PROPERTY), int(PropertyId.REQUEST_PROBLEM_INFORMATION)
SIZE, EXPIRY = int(PropertyId.MAXIMUM_PACKET_SIZE), int(PropertyId.SESSION_EXPIRY_INTERVAL)


def asking(edge: Edge, client_id: str = "p", **more: Any) -> Session:
    properties: dict[int, object] = {USER: [("other", "1"), (NAME, "1")]}
    return edge.client(client_id, properties=properties | more.pop("also", {}), **more)


def origins(session: Session) -> list[str]:
    """Return what each packet that was written says, "" of one without."""
    found = []
    for packet in session.read():
        pairs = dict(packet.properties.get(USER, []))
        assert pairs.keys() <= {NAME}
        found.append(pairs.get(NAME, ""))
    return found


def test_each_qos_and_retained_messages_have_one() -> None:
    """Of a stored session's QoS 2 the counter that its partition gave, of all others this edge's number."""
    edge = Edge()
    edge.client("s").subscribe("#", qos=2)
    first, stored = asking(edge), asking(edge, "stored", also={EXPIRY: 60})
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
def test_whoever_did_not_ask_or_takes_none_gets_none(properties: dict[int, object]) -> None:
    edge = Edge()
    client = edge.client("p", properties=properties)
    client.publish("t", qos=1, identifier=1)
    client.publish("t", qos=2, identifier=2)
    assert origins(client) == ["", ""]


@pytest.mark.parametrize("reason_code", [0, 0x97])
def test_a_retained_message_has_the_number_of_the_copy_that_stood_first(reason_code: int) -> None:
    edge = Edge()
    register = RetainedPartitions(edge)
    edge.client("s").subscribe("#", qos=1)
    client = asking(edge)
    client.publish("t", qos=1, identifier=1, retain=True)
    (stands,) = register.waiting
    stands(reason_code)
    edge.turn()
    assert origins(client) == ["e0/1/1"]
