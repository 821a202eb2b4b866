"""Rates of one connection, as the loop paces them; whose bounds hold: ``rights/test_bounds.py``."""

from conf.settings import ListenerSettings
from edge.listeners.listeners import Listener
from edge.node.limits import ListenerPolicy
from tests.edge.edge_harness import Edge


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
