"""Rates of one connection: the strictest of its edge's, its listener's and its user's."""

from typing import Any

import pytest

from access.identity.principal import Principal
from conf.settings import ListenerSettings
from edge.clients.rates import rates_of
from edge.listeners.listeners import Listener
from edge.node.limits import ListenerPolicy
from tests.edge.edge_harness import Edge


@pytest.mark.parametrize(
    ("edge_rate", "listener", "user", "rates"),
    [
        (0, {}, {}, (0, 0, 0)),
        (100, {}, {}, (100, 0, 0)),
        (100, {"publish_rate_max": 50.0}, {"publish_rate_max": 10}, (10, 0, 0)),
        (100, {"publish_rate_max": 500.0}, {"publish_rate_max": 1_000}, (100, 0, 0)),
        (0, {"byte_rate_max": 9.0}, {"byte_rate_max": 5}, (0, 5, 0)),
        (0, {"byte_rate_max": 9.0}, {"byte_rate_max": 0, "other": 1}, (0, 9, 0)),
        (0, {"subscribe_rate_max": 7.0}, {"subscribe_rate_max": 8}, (0, 0, 7)),
    ],
)
def test_the_strictest_holds(
    edge_rate: float, listener: dict[str, Any], user: dict[str, int], rates: tuple[float, float, float]
) -> None:
    """NIST: protect. No limit of a user widens what its listener gives; 0 is none."""
    client = Edge().accept(ListenerPolicy(**listener)).client
    client.principal = Principal("u", "password", "c", limits=user)
    assert rates_of(client, edge_rate) == rates


def test_a_listener_paces_its_clients_and_no_others() -> None:
    """The rest of what a client sends waits unread, and is read when its rate allows."""
    settings = ListenerSettings(name="x", port=0, tls=False, allow_anonymous=True, publish_rate_max=10.0)
    listener = Listener(settings)
    listener.socket.close()
    edge = Edge()
    paced, free = edge.accept(listener.policy), edge.accept()
    for session, name in ((paced, "paced"), (free, "free")):
        session.connect(name)
        session.publish("t", b"1")  # the topic's route is known behind it
        for _ in range(30):
            session.publish("t", b"2")
    assert paced.client.conn.parked != 0 and free.client.conn.parked == 0
    for _ in range(5):
        edge.turn(1.0)
    assert paced.client.conn.parked == 0 and edge.core.hot.counters()["publish_in_qos0"] == 62


def test_filters_have_a_rate_of_their_own() -> None:
    """Each packet is answered; what comes behind it waits unread, so nothing is refused."""
    edge = Edge()
    paced = edge.accept(ListenerPolicy("plain", True, subscribe_rate_max=10.0))
    paced.connect("paced")
    paced.read()
    for number in range(3):
        paced.subscribe(*(f"a/{number}/{at}" for at in range(10)), identifier=number + 1)
    assert len(paced.read()) == 2, "a second's worth in advance"
    waited = 0
    while len(paced.client.subscriptions) < 30:
        edge.turn(0.5)
        waited += 1
        assert waited < 20
    assert waited >= 2
    paced.unsubscribe(*(f"a/0/{at}" for at in range(10)), identifier=9)
    paced.publish("t", b"1")
    assert edge.core.hot.counters()["publish_in_qos0"] == 0
