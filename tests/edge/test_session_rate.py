"""Rate of new durable sessions per address: bursts, refunds, exempt networks, and the bound of the table."""

import socket

import pytest

from edge.clients.session_rate import ADDRESSES_MAX, SessionRate, metered_address
from edge.listeners.listeners import peer_of
from edge.node.limits import EdgeLimits, ListenerPolicy
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge
from tests.edge.rights.ruled import Vouched, book, principal, roles
from wire.messages.sessions import OpenSession, SessionOpened


def test_burst_then_rate() -> None:
    """Tokens refill with time, up to the burst; addresses are independent."""
    rate = SessionRate(2.0, 3)
    assert [rate.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert rate.take("b", 0.0)
    assert [rate.take("a", 0.5) for _ in range(2)] == [True, False]
    assert [rate.take("a", 100.0) for _ in range(4)] == [True, True, True, False]
    rate.give_back("a", 100.0)
    assert [rate.take("a", 100.0) for _ in range(2)] == [True, False]
    rate.give_back("unknown", 100.0)
    assert len(rate) == 2


def test_table_is_bounded() -> None:
    """The least recently used address is removed."""
    rate = SessionRate(1.0, 1)
    for number in range(ADDRESSES_MAX + 10):
        assert rate.take(str(number), 0.0)
    assert len(rate) == ADDRESSES_MAX
    assert not rate.take(str(ADDRESSES_MAX), 0.0)


@pytest.mark.parametrize(
    ("address", "metered"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("::ffff:127.0.0.1", None),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.8.9.1", None),
        ("::1", None),
        ("", ""),
    ],
)
def test_bucket_of_an_address(address: str, metered: str | None) -> None:
    """IPv6 by /64; an IPv4-mapped address is IPv4; only the networks of PROXY senders are exempt."""
    client = Edge().accept().client
    client.policy = ListenerPolicy(unmetered=("127.0.0.0/8", "::1/128"))
    client.address = (address, 1)
    assert metered_address(client, lambda _: "") == metered
    client.policy = ListenerPolicy()
    assert metered_address(client, lambda _: "") is not None


def test_address_of_the_socket() -> None:
    """Without a PROXY header it is the peer's."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        assert peer_of(accepted.fileno()) == "127.0.0.1"
        assert accepted.getpeername()  # the socket is still open
        assert peer_of(-1) == ""


def stored(edge: Edge, name: str, version: int = 5, address: str = "203.0.113.7") -> int:
    """Connect with a durable session and return CONNACK's code, as the partition with this permission."""
    session = edge.accept()
    session.client.address = (address, 1)
    properties: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 60} if version == 5 else {}
    session.connect(name, version, properties, clean_start=False)
    (connack,) = session.read()
    return int(connack.reason_code)


def may_create(edge: Edge) -> list[bool]:
    return [message.may_create for message in edge.seen if isinstance(message, OpenSession)]


def test_partition_gets_the_permission_to_create() -> None:
    """A resumed session costs no token; ephemeral ones take none; other addresses are unaffected."""
    edge = Edge(EdgeLimits(sys_interval_s=0, session_rate=1.0, session_burst=2))
    for _ in range(3):
        stored(edge, "a")
    stored(edge, "b")
    stored(edge, "c")
    edge.client("ephemeral")
    stored(edge, "d", address="203.0.113.8")
    stored(edge, "e", address="127.0.0.1")
    assert may_create(edge) == [True] * 4 + [False, True, True, True]
    edge.turn(1.0)
    stored(edge, "f")
    stored(edge, "g")
    assert may_create(edge)[-2:] == [True, False]


def test_user_rate_spans_its_addresses() -> None:
    """Also behind a trusted proxy with an exempt address; another user has its own."""
    rules = book(roles(device={"publish": ["#"], "subscribe": ["#"]}))
    edge = Edge(EdgeLimits(sys_interval_s=0, session_rate=1.0, session_burst=2), rules=rules, steps=[Vouched()])

    def come_to_stay(user: str, number: int) -> None:
        session = edge.accept()
        session.client.address = ("127.0.0.1" if number % 2 else f"203.0.113.{number}", 1)
        step = edge.chains.steps[0]
        assert isinstance(step, Vouched)
        step.known[user] = principal(user, f"{user}-{number}")
        expiry: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 60}
        session.connect(f"{user}-{number}", 5, expiry, username=user, password=b"p", clean_start=False)

    for number in range(4):
        come_to_stay("ann", number)
    come_to_stay("bob", 5)
    assert may_create(edge) == [True, True, False, False, True]
    edge.turn(1.0)
    come_to_stay("ann", 6)
    assert may_create(edge)[-1]


@pytest.mark.parametrize(("version", "code"), [(5, 0x97), (4, 3)])
def test_refusal_costs_no_token(version: int, code: int) -> None:
    """0x97 in CONNACK, 3 in 3.1.1."""
    edge = Edge(EdgeLimits(sys_interval_s=0, session_rate=0.001, session_burst=1))
    edge.held = {OpenSession}
    for _ in range(3):
        session = edge.accept()
        session.client.address = ("203.0.113.7", 1)
        properties: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 60} if version == 5 else {}
        session.connect("a", version, properties, clean_start=False)
        (request,) = edge.take(OpenSession)
        assert request.may_create
        edge.storage(SessionOpened(request.request, request.partition, 1, 0x97))
        (connack,) = session.read()
        assert connack.reason_code == code
