"""Daily quota of a user at one edge: counted over its connections, refused with 0x97 until midnight UTC."""

from typing import Any

import pytest

from mqtt.codec import encode_packet
from mqtt.packets import Disconnect, Publish
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import Vouched, principal

DAY_S = 86_400.0
QUOTA = 1_000


class Users:
    """An edge with a quota for its users."""

    def __init__(self) -> None:
        self.vouched = Vouched()
        self.edge = Edge(steps=[self.vouched])

    def come(self, user: str, client_id: str, quota: int = QUOTA, version: int = 5) -> tuple[Session, int]:
        limits = {"daily_bytes_max": quota} if quota else {}
        self.vouched.known[user] = principal(user, client_id, limits=limits)
        session = self.edge.accept()
        session.connect(client_id, version, username=user, password=b"p")
        (connack,) = session.read()
        return session, int(connack.reason_code)


def send(session: Session, octets: int) -> list[Any]:
    """Publish one message of this length with its header, and return the responses."""
    session.publish("t", bytes(octets - 9), qos=1, identifier=1)
    return list(session.read())


def test_user_beyond_daily_quota_is_disconnected_until_midnight() -> None:
    """Received packets are processed; all connections of a user share its day."""
    users = Users()
    first, _ = users.come("ann", "a")
    other, _ = users.come("ann", "b")
    for session in (first, other):
        assert [packet.reason_code for packet in send(session, 400)] == [0x10]
    answers = send(first, 400)
    assert [packet.reason_code for packet in answers] == [0x10, 0x97]
    assert first.client.conn.closed and not other.client.conn.closed
    assert users.come("ann", "a")[1] == 0x97 and users.edge.core.counts["refused_daily_bytes"] == 2
    assert users.come("ann", "a", version=4)[1] == 3  # server unavailable: 3.1.1 has no better code
    assert users.come("bert", "c")[1] == 0
    assert [packet.reason_code for packet in send(other, 50)] == [0x10, 0x97]
    users.edge.turn(DAY_S)
    users.edge.renew()
    again, code = users.come("ann", "a")
    assert code == 0 and [packet.reason_code for packet in send(again, 400)] == [0x10]


def test_bytes_of_immediate_disconnect_count() -> None:
    """A PUBLISH and a DISCONNECT in one read."""
    users = Users()
    for _ in range(2):
        session, code = users.come("ann", "a")
        assert code == 0
        packets = encode_packet(Publish("t", bytes(700)), 5) + encode_packet(Disconnect(0, {}), 5)
        session.edge.core.hot.feed(session.client.conn, packets)
        session.edge.turn()
    assert users.come("ann", "a")[1] == 0x97


@pytest.mark.parametrize("user", ["", "ann"])
def test_bytes_without_quota_are_not_counted(user: str) -> None:
    """A limit of 0, none, and an anonymous client; the loop does not report their bytes."""
    users = Users()
    if user:
        session, _ = users.come(user, "a", 0)
    else:
        session = users.edge.accept()
        session.connect("a")
        session.read()
    told: list[int] = []
    users.edge.core.sent = lambda _, octets: told.append(octets)
    for _ in range(10):
        assert [packet.reason_code for packet in send(session, 400)] == [0x10]
    assert told == []
