"""Closed connections leave no objects, even without the garbage collector, which runs rarely."""

import gc
from collections.abc import Iterator

import pytest

from edge.clients.client import Client
from edge.loop.state import InboundPublish, LoopConnection, OutboundWindow, PendingAck, Sub
from mqtt.packets import Connect, Disconnect, Puback, Publish, Pubrec, Pubrel, Will
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session
from tests.memory import without_collector
from wire.messages.routes import Destinations, GroupDestinations

DURABLE: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 100}
LEFT_S = 11.0  # longer than a socket is kept after DISCONNECT
KINDS = (Client, LoopConnection, InboundPublish, PendingAck, OutboundWindow, Sub)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    with without_collector():
        yield


def alive() -> dict[str, int]:
    """Return the number of live objects of each type that belongs to connections."""
    counts = dict.fromkeys(KINDS, 0)
    for found in gc.get_objects():
        if type(found) in counts:
            counts[type(found)] += 1
    return {kind.__name__: count for kind, count in counts.items()}


def settle(edge: Edge) -> None:
    """Release the harness's references, and complete pending DISCONNECTs."""
    edge.turn(LEFT_S)
    edge.renew()
    edge.core.hot.dirty_conns()
    edge.core.told.clear()
    edge.seen.clear()


def leave(session: Session, how: int) -> None:
    if how % 3 == 0:
        session.drop()
    elif how % 3 == 1:
        session.send(Disconnect(0, {}))
    else:
        session.send(b"\x00\x00")  # no packet has type 0
    session.edge.turn()


def talk(edge: Edge, turn: int, durable: bool) -> None:
    """One connection with subscriptions, a will, and messages both ways, acknowledged or not."""
    will = Will("will", b"w", 1, False, {}) if turn % 2 else None
    session = edge.client(f"c{turn % 7}", 5, DURABLE if durable else {}, will=will)
    session.subscribe("own/#", "$share/g/own/+", qos=2)
    session.publish("own/0", qos=0)
    session.publish("own/1", qos=1, identifier=1)
    session.publish("own/2", qos=2, identifier=2)
    for packet in session.read():
        if isinstance(packet, Publish) and packet.qos == 1 and turn % 2:
            session.send(Puback(packet.packet_identifier or 0, 0, {}))
        elif isinstance(packet, Pubrec):
            session.send(Pubrel(packet.packet_identifier, 0, {}))
    leave(session, turn)


@pytest.mark.parametrize("durable", [False, True])
def test_ended_connections_leave_no_objects(durable: bool) -> None:
    """As many objects after 1 500 connections as after the first hundred."""
    edge = Edge()
    edge.routes["own/1"] = Destinations(groups=[GroupDestinations("$share/g/own/+", edges=[("e0", 1)])])
    for turn in range(100):
        talk(edge, turn, durable)
    settle(edge)
    before = alive()
    for turn in range(1_500):
        talk(edge, turn, durable)
    settle(edge)
    assert alive() == before


def test_unopened_connections_leave_no_objects() -> None:
    """Refused, malformed, silent, or closed before the response of their partition."""
    edge = Edge()
    before = alive()
    for turn in range(2_000):
        session = edge.accept()
        if turn % 4 == 0:
            session.send(b"\x10\x02\x00\x09")
        elif turn % 4 == 1:
            session.version = 4
            session.send(Connect("", False, 60, 4))
        elif turn % 4 == 2:
            session.send(Disconnect(0, {}))
        session.drop()
    del session
    settle(edge)
    assert alive() == before
