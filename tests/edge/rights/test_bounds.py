"""Bounds of one client: the strictest of edge, listener, user and roles is announced, and refuses with its code."""

from typing import Any

import msgspec
import pytest

from access.operators.arguments import RolePut, UserAdd
from conf.limit_names import LIMIT_NAMES
from conf.settings import ListenerSettings
from edge.listeners.listeners import EdgeListener
from edge.loop.state import InboundPublish
from edge.node.limits import EdgeLimits, ListenerPolicy
from edge.publishing.sending import OutgoingMessage
from edge.rights.bounds import bounds_of_listener, stricter
from mqtt.packets import Will
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge
from tests.edge.rights.ruled import book, come, principal, roles, ruled, somebody
from wire.messages.batches import encode_owner
from wire.messages.connects import decode_connects, encode_record
from wire.messages.control import join_controls
from wire.messages.sessions import OpenSession

EVERYTHING: dict[str, object] = {"publish": ["#"], "subscribe": ["#"]}


def limited(**limits: int) -> Edge:
    """Return an edge with limits in a role of its users."""
    return ruled(roles(device={**EVERYTHING, "limits": limits}))


@pytest.mark.parametrize(
    ("edge_rate", "listener", "user", "rates"),
    [
        (0, {}, {}, (0, 0, 0)),
        (100, {}, {}, (100, 0, 0)),
        (100, {"publish_rate_max": 50.0}, {"publish_rate_max": 10}, (10, 0, 0)),
        (100, {"publish_rate_max": 500.0}, {"publish_rate_max": 1_000}, (100, 0, 0)),
        (0, {"byte_rate_max": 9.0}, {"byte_rate_max": 5}, (0, 5, 0)),
        (0, {"byte_rate_max": 9.0}, {"byte_rate_max": 0}, (0, 9, 0)),
        (0, {"subscribe_rate_max": 7.0}, {"subscribe_rate_max": 8}, (0, 0, 7)),
    ],
)
def test_strictest_limit_applies(
    edge_rate: float, listener: dict[str, Any], user: dict[str, int], rates: tuple[float, float, float]
) -> None:
    """No limit of a user widens its listener's; 0 is none."""
    of_listener = bounds_of_listener(EdgeLimits(publish_rate_max=edge_rate), ListenerPolicy(**listener))
    assert stricter(of_listener, [user])[:3] == rates


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_each_limit_applies_for_listener_user_and_role(name: str) -> None:
    """The CLI verbs accept each of them, and reject unknown ones."""
    settings = ListenerSettings.model_validate({"name": "x", "port": 0, "tls": False, name: 7})
    listener = EdgeListener(settings)
    listener.socket.close()
    assert getattr(bounds_of_listener(EdgeLimits(), listener.policy), name) == 7
    edge = ruled(roles(some={"limits": {name: 7}}, more={"limits": {name: 6}}))
    client = edge.accept(ListenerPolicy("plain")).client
    for given in ({"limits": {name: 6}}, {"roles": ("some", "more")}, {"roles": ("more",), "limits": {name: 9}}):
        client.principal = principal("u", **given)
        assert getattr(edge.core.rights.bounds_of(client), name) == 6
    verbs: tuple[tuple[Any, dict[str, Any]], ...] = ((UserAdd, {"user": "u"}), (RolePut, {"role": "r", "rules": []}))
    for verb, arguments in verbs:
        assert msgspec.convert({**arguments, "limits": {name: 7}}, verb).limits == {name: 7}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**arguments, "limits": {"speed": 7}}, verb)


def test_role_with_unknown_limit_gives_no_rules() -> None:
    with pytest.raises(ValueError, match="limits"):
        roles(device={"limits": {"speed": 7}})


def test_connack_announces_limits() -> None:
    """Receive Maximum, Maximum Packet Size and Server Keep Alive; the window of its session is equal."""
    edge = limited(inflight_max=3, packet_bytes_max=2_000, keep_alive_max_s=40)
    edge.held.add(OpenSession)
    session = come(edge, principal("anna"), keep_alive_s=100)
    (opening,) = [message for _, message in edge.core.told if isinstance(message, OpenSession)]
    assert opening.receive_maximum == 3
    edge.held.clear()
    edge.turn()
    (connack,) = session.read()
    told = connack.properties
    assert (told[PropertyId.RECEIVE_MAXIMUM], told[PropertyId.MAXIMUM_PACKET_SIZE]) == (3, 2_000)
    assert told[PropertyId.SERVER_KEEP_ALIVE] == 40
    other = somebody(edge, "", "anonymous")
    assert other.connack.properties[PropertyId.RECEIVE_MAXIMUM] == EdgeLimits().receive_maximum
    session.publish("t", bytes(2_001), qos=1, identifier=1)
    assert [packet.reason_code for packet in session.read()] == [0x95]


def test_outbound_window_is_limited() -> None:
    edge = limited(inflight_max=2)
    session, writer = somebody(edge, "anna"), somebody(edge, "writer")
    session.subscribe("t", qos=1)
    session.read()
    for number in range(5):
        writer.publish("t", qos=1, identifier=number + 1)
    assert len([packet for packet in session.read() if hasattr(packet, "payload")]) == 2


@pytest.mark.parametrize("deep_first", [True, False])
def test_topic_levels_are_limited(deep_first: bool) -> None:
    """0x90 at PUBLISH and for a will, 0x8F at SUBSCRIBE; verdicts of a shared class do not apply."""
    table = roles(device=EVERYTHING, flat={"limits": {"topic_levels_max": 2}})
    edge = ruled(table)
    free = somebody(edge, "free")
    flat = come(edge, principal("anna", roles=("flat",)))
    flat.read()
    if deep_first:
        free.publish("a/b/c", qos=1, identifier=1)
        free.read()
    for topic, code in (("a/b", 0x10), ("a/b/c", 0x90), ("a/b", 0x10), ("a/b/c", 0x90)):
        flat.publish(topic, qos=1, identifier=1)
        assert [packet.reason_code for packet in flat.read()] == [code], topic
    counted = edge.core.hot.counters()
    assert (counted["dropped_too_deep"], counted["dropped_denied"]) == (2, 0)
    free.publish("a/b/c", qos=1, identifier=2)
    assert [packet.reason_code for packet in free.read()] == [0x10]
    flat.subscribe("a/b", "a/+/#")
    assert next(packet for packet in flat.read() if hasattr(packet, "reason_codes")).reason_codes == [2, 0x8F]
    will = come(edge, principal("bob", "bob", roles=("flat",)), will=Will("a/b/c", b""))
    assert [packet.reason_code for packet in will.read()] == [0x90]
    assert edge.core.counts["refused_topic_levels"] == 2
    flat.subscribe("a" * 1_025, "$share/g/a/b", "$share/g/a/b/c")
    assert next(packet for packet in flat.read() if hasattr(packet, "reason_codes")).reason_codes == [0x8F, 2, 0x8F]
    assert (edge.core.counts["refused_topic_levels"], edge.core.counts["refused_topic_bytes"]) == (3, 1)


def test_filters_beyond_the_limit_are_refused_one_by_one() -> None:
    edge = limited(filters_max=2)
    session = somebody(edge, "anna")
    session.subscribe("a", "b", "c", qos=0)
    assert next(packet for packet in session.read() if hasattr(packet, "reason_codes")).reason_codes == [0, 0, 0x97]
    assert edge.core.counts["refused_filters_max"] == 1


def test_partition_limits_are_sent_with_connect_will_and_publish() -> None:
    """Limits of roles too; without limits only the partition's own bounds apply."""

    unused: Any = None

    def told(edge: Edge) -> tuple[OpenSession, bytes]:
        edge.held.add(OpenSession)
        session = come(edge, principal("anna"), will=Will("gone", b"x", 1, True))
        (opening,) = [message for _, message in edge.core.told if isinstance(message, OpenSession)]
        edge.held.clear()
        edge.turn()
        message = InboundPublish(b"t", b"m", 1, True, conn=session.client.conn)
        return opening, OutgoingMessage(unused, message).owner

    names = (
        "sessions_user_max",
        "queue_messages_max",
        "queue_bytes_max",
        "retained_user_max",
        "retained_bytes_user_max",
    )
    huge = ((1 << 62) - 1,) * 5
    for most in ((3, 4, 5, 6, 7), (0, 0, 0, 0, 0), huge):
        limits = dict(zip(names, most, strict=True)) if any(most) else {}
        opening, owner = told(limited(**limits))
        will = opening.will
        assert will is not None and (will.retained_max, will.retained_bytes_max) == most[3:]
        assert (opening.sessions_max, opening.queue_messages_max, opening.queue_bytes_max) == most[:3]
        assert owner == encode_owner(b"anna", 0, *most[3:])
        (decoded,) = decode_connects(join_controls([encode_record(opening)]))
        assert decoded == opening


def test_connections_of_a_user_are_limited() -> None:
    """A takeover of its own connection is allowed, so a half-open socket locks out no client."""
    edge = limited(connections_user_max=2)

    def code(user: str, client_id: str) -> int:
        session = come(edge, principal(user, client_id))
        return next(int(packet.reason_code) for packet in session.read())

    assert [code("anna", "a"), code("anna", "b"), code("anna", "c"), code("bob", "d")] == [0, 0, 0x97, 0]
    assert code("anna", "a") == 0
    assert edge.core.counts["refused_user_connections"] == 1
    for client in edge.core.clients.all():
        if client.client_id == "b":
            edge.core.clients.disconnect(client, 0x98)
    edge.turn(3.0)
    edge.renew()
    assert code("anna", "c") == 0


@pytest.mark.parametrize(("version", "code"), [(5, 0x9F), (4, 3)])
def test_connect_rate_of_a_user_is_limited(version: int, code: int) -> None:
    """A burst of one second, across client IDs; other users are unaffected."""
    edge = limited(connect_rate_user_max=2)
    answers = [somebody(edge, "anna", f"a{number}", version).connack.reason_code for number in range(4)]
    assert answers == [0, 0, code, code]
    assert somebody(edge, "bob", "b", version).connack.reason_code == 0
    edge.turn(0.5)
    assert somebody(edge, "anna", "a4", version).connack.reason_code == 0
    assert somebody(edge, "anna", "a5", version).connack.reason_code == code
    assert edge.core.counts["refused_user_connects"] == 3


def test_limits_follow_an_open_client_except_announced_ones() -> None:
    """No client is disconnected for a new limit."""
    edge = limited(inflight_max=10, filters_max=5)
    anna = somebody(edge, "anna")
    anna.subscribe("a/b", "c")
    anna.read()
    narrow = {"inflight_max": 9, "filters_max": 2, "topic_levels_max": 1, "subscribe_rate_max": 4}
    edge.core.replace_rules(book(roles(device={**EVERYTHING, "limits": narrow})))
    edge.turn()
    assert not anna.client.conn.closed and set(anna.client.subscriptions) == {"a/b", "c"}
    assert (anna.client.known_bounds.inflight_max, anna.client.known_bounds.filters_max) == (10, 2)
    anna.subscribe("d")
    assert [list(packet.reason_codes) for packet in anna.read()] == [[0x97]]
    anna.publish("a/b", qos=1, identifier=1)
    assert [packet.reason_code for packet in anna.read() if hasattr(packet, "reason_code")] == [0x90]
    edge.core.replace_rules(book(roles(device={**EVERYTHING, "limits": {}})))
    edge.turn(1.0)
    anna.publish("a/b", b"x" * 200, qos=1, identifier=1)
    assert [packet.reason_code for packet in anna.read() if hasattr(packet, "reason_code")] == [0], "wider holds too"
    assert somebody(edge, "bert").connack.properties[PropertyId.RECEIVE_MAXIMUM] == 20


def test_later_quota_counts_later_bytes() -> None:
    edge = limited()
    anna = somebody(edge, "anna")
    anna.publish("a", b"x" * 500)
    edge.core.replace_rules(book(roles(device={**EVERYTHING, "limits": {"daily_bytes_max": 300}})))
    edge.turn()
    anna.publish("a", b"x" * 200)
    assert not anna.client.conn.closed
    anna.publish("a", b"x" * 200)
    assert anna.client.conn.closed


def test_connections_before_a_limit_count() -> None:
    edge = limited()
    before = [somebody(edge, "anna", name) for name in ("a", "b")]
    edge.core.replace_rules(book(roles(device={**EVERYTHING, "limits": {"connections_user_max": 2}})))
    edge.turn()
    assert not any(session.client.conn.closed for session in before)
    assert somebody(edge, "anna", "c").connack.reason_code == 0x97
    assert somebody(edge, "anna", "a").connack.reason_code == 0
