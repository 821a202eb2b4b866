"""Rate limits of one connection in the loop; sources of the bounds: ``rights/test_bounds.py``."""

import pytest

from conf.settings import ListenerSettings
from edge.listeners.listeners import EdgeListener
from edge.node.limits import ListenerPolicy
from tests.edge.edge_harness import Edge


def test_listener_rate_applies_to_its_clients_only() -> None:
    """Excess packets stay unread until the rate allows them."""
    settings = ListenerSettings(name="x", port=0, tls=False, allow_anonymous=True, publish_rate_max=10.0)
    listener = EdgeListener(settings)
    listener.socket.close()
    edge = Edge()
    paced, free = edge.accept(listener.policy), edge.accept()
    for session, name in ((paced, "paced"), (free, "free")):
        session.connect(name)
        session.publish("t", b"1")  # the topic's route is known after it
        for _ in range(30):
            session.publish("t", b"2")
    assert paced.client.conn.parked != 0 and free.client.conn.parked == 0
    for _ in range(5):
        edge.turn(1.0)
    assert paced.client.conn.parked == 0 and edge.core.hot.counters()["publish_in_qos0"] == 62


def test_filters_have_their_own_rate() -> None:
    """Each packet is answered; later ones stay unread, so none is refused."""
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


@pytest.mark.parametrize("limit", [{"publish_rate_address_max": 20.0}, {"byte_rate_address_max": 100.0}], ids=str)
def test_clients_of_one_address_share_a_rate(limit: dict[str, float]) -> None:
    """Reading pauses for all of them; no message is dropped, and other addresses are unaffected."""
    settings = ListenerSettings(name="x", port=0, tls=False, allow_anonymous=True, **limit)  # type: ignore[arg-type]
    listener = EdgeListener(settings)
    listener.socket.close()
    edge = Edge()
    sessions = []
    for number in range(12):
        session = edge.accept(listener.policy)
        session.client.seat = listener.admission.enter("192.0.2.1" if number < 10 else "192.0.2.2")
        session.connect(f"c{number}")
        sessions.append(session)
    for session in sessions:
        session.publish("t", b"1")
    for at in range(10):
        for session in sessions if at < 3 else sessions[:10]:
            session.publish("t", b"2")
    parked = [session.client.conn.parked != 0 for session in sessions]
    assert any(parked[:10]) and not any(parked[10:])
    before = edge.core.hot.counters()["publish_in_qos0"]
    assert before < 118
    seconds = 0
    while edge.core.hot.counters()["publish_in_qos0"] < 118:
        edge.turn(0.25)
        seconds += 1
        assert seconds < 200
    assert seconds >= 4


def test_filters_of_one_address_share_a_rate() -> None:
    """Reading pauses after the response; other addresses are unaffected, none is refused."""
    rate = 10.0
    settings = ListenerSettings(name="x", port=0, tls=False, allow_anonymous=True, subscribe_rate_address_max=rate)
    listener = EdgeListener(settings)
    listener.socket.close()
    edge = Edge()
    sessions = []
    for number in range(4):
        session = edge.accept(listener.policy)
        session.client.seat = listener.admission.enter("192.0.2.1" if number < 3 else "192.0.2.2")
        session.connect(f"c{number}")
        sessions.append(session)
    for session in sessions:
        session.subscribe(*(f"a/{at}" for at in range(8)))
        session.unsubscribe("a/0")
    parked = [session.client.conn.parked != 0 for session in sessions]
    assert any(parked[:3]) and not parked[3]
    turns = 0
    while sum(len(session.client.subscriptions) for session in sessions) != 28:
        edge.turn(0.25)
        turns += 1
        assert turns < 60
    assert turns >= 4, "27 filters at 10 a second, a second's worth in advance"


def test_reconnect_does_not_refill_the_rate() -> None:
    settings = ListenerSettings(
        name="x", port=0, tls=False, allow_anonymous=True, publish_rate_address_max=20.0, proxy_protocol="any"
    )
    intake = EdgeListener(settings).admission
    seat = intake.enter("192.0.2.1")
    purse = seat.purse
    seat.leave()
    assert intake.enter("192.0.2.1").purse is purse is not None
    assert intake.enter("127.0.0.1").purse is None and intake.enter("").purse is None
