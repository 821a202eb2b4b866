"""Rules at PUBLISH, SUBSCRIBE and CONNECT of an edge."""

import itertools
from typing import Any

import pytest

from access.operators.audit_chain import AuditRecord
from edge.node.limits import ListenerPolicy
from edge.rights.sources import Sources
from mqtt.packets import Will
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import acl, book, come, principal, roles, ruled, somebody
from wire.messages.retained import RetainedMessage
from wire.messages.routes import AddRoutes
from wire.messages.sessions import SubscribeSession, UnsubscribeSession

NOT_AUTHORIZED = 0x87
IDENTIFIERS = itertools.count(1)


def published(session: Session, topic: str, qos: int = 1, **options: Any) -> int:
    """Return the reason code of a PUBLISH; a QoS 2 message is completed."""
    session.publish(topic, qos=qos, identifier=next(IDENTIFIERS), **options)
    (answer,) = session.read()
    return int(answer.reason_code)


def subscribed(session: Session, *filters: str, **options: Any) -> list[int]:
    """Return the codes of SUBACK."""
    session.subscribe(*filters, **options)
    return list(next(packet for packet in session.read() if hasattr(packet, "reason_codes")).reason_codes)


def topics(session: Session) -> list[str]:
    """Return the topics of received messages."""
    return [packet.topic_name for packet in session.read() if hasattr(packet, "payload")]


@pytest.mark.parametrize("user", ["anna", ""])
def test_client_without_rules_may_do_nothing(user: str) -> None:
    edge = ruled(Sources())
    session = somebody(edge, user)
    assert session.connack.reason_code == 0
    assert published(session, "up/a") == NOT_AUTHORIZED
    assert subscribed(session, "up/a", "#", "$SYS/#", "$share/g/up/a") == [NOT_AUTHORIZED] * 4


def test_roles_authorize_publish_and_subscribe() -> None:
    edge = ruled(roles())
    session = somebody(edge, "anna")
    for qos in (1, 2):
        assert published(session, "up/a", qos) < 0x80
        assert published(session, "elsewhere", qos) == NOT_AUTHORIZED
        assert published(session, "down/secret/a", qos) == NOT_AUTHORIZED
    assert subscribed(session, "down/a", "up/a", "#", "down/secret/+") == [2, *[NOT_AUTHORIZED] * 3]
    assert edge.core.counts["refused_filter_rights"] == 3
    assert edge.core.hot.counters()["dropped_denied"] == 4


def test_partly_denied_filter_is_refused_by_default() -> None:
    assert subscribed(somebody(ruled(roles()), "anna"), "down/#") == [NOT_AUTHORIZED]
    assert subscribed(somebody(ruled(roles(overlap=True)), "anna"), "down/#", "$share/g/down/#") == [2, 2]


def test_refusals_are_audited() -> None:
    """A publish, a filter, a will. One reason for all topics, so that records of one user and address are merged."""
    edge = ruled(roles())
    noted: list[AuditRecord] = []
    edge.core.node.audit = noted.append
    anna = somebody(edge, "anna")
    for _ in range(2):
        assert published(anna, "up/a") < 0x80 and published(anna, "elsewhere/x") == NOT_AUTHORIZED
    assert subscribed(anna, "down/a", "#") == [2, NOT_AUTHORIZED]
    bert = somebody(edge, "bert", will=Will("down/gone", b"", 0, False, {}))
    assert bert.connack.reason_code == NOT_AUTHORIZED
    found = [(one.kind, one.outcome, one.actor, one.client_id, one.arguments["topic"]) for one in noted]
    assert found == [
        ("publish", "refused", "anna", "anna", "elsewhere/x"),
        ("subscribe", "refused", "anna", "anna", "#"),
        ("will", "refused", "bert", "bert", "down/gone"),
    ]
    assert {one.reason for one in noted} == {"not authorized"}


def test_each_refused_publisher_is_audited() -> None:
    """Also by the cached verdict of its class, and for RETAIN or QoS alone; at most once a second for each
    connection.
    """
    edge = ruled(roles(device={"publish": ["up/#"], "retain": False}))
    noted: list[AuditRecord] = []
    edge.core.node.audit = noted.append
    sessions = [somebody(edge, user) for user in ("anna", "bert", "carl")]
    for session in sessions:
        assert published(session, "elsewhere") == NOT_AUTHORIZED
        session.publish("elsewhere", qos=0)
    assert [(one.actor, one.arguments["topic"]) for one in noted] == [
        (user, "elsewhere") for user in ("anna", "bert", "carl")
    ]
    noted.clear()
    edge.turn(1.0)
    sessions[1].publish("elsewhere", qos=0)
    assert published(sessions[2], "up/a") < 0x80 and published(sessions[2], "up/a", retain=True) == NOT_AUTHORIZED
    assert [(one.actor, one.arguments["topic"]) for one in noted] == [("bert", "elsewhere"), ("carl", "up/a")]


def test_refusal_codes_of_version_3_1_1() -> None:
    edge = ruled(roles())
    session = somebody(edge, "anna", version=4)
    assert subscribed(session, "up/a", "down/a") == [0x80, 2]
    reader = somebody(ruled(roles()), "bert")
    session.publish("down/a", qos=1, identifier=3)
    assert [type(packet).__name__ for packet in session.read()] == ["Puback"]  # without a code: dropped
    assert topics(reader) == []


def test_unverified_user_name_gives_no_permission() -> None:
    edge = ruled(acl("topic read open\nuser anna\ntopic readwrite secret"))
    liar = edge.accept()
    liar.connect("anna", username="anna")
    liar.read()
    assert published(liar, "secret") == NOT_AUTHORIZED
    assert subscribed(liar, "secret", "open") == [NOT_AUTHORIZED, 2]
    assert published(somebody(edge, "anna"), "secret") < 0x80


def test_equal_roles_share_verdicts() -> None:
    edge = ruled(
        acl("user anna\ntopic write a\nuser bert\ntopic write b\npattern write own/%c\npattern write own/%u/x")
    )
    anna, bert, again = somebody(edge, "anna"), somebody(edge, "bert"), somebody(edge, "anna", "anna2")
    for _ in range(2):
        for session, user, may in ((anna, "anna", "a"), (bert, "bert", "b"), (again, "anna", "a")):
            for topic in ("a", "b", "own/anna", "own/bert", "own/anna2", "own/anna/x", "own/bert/x"):
                wanted = {may, f"own/{session.client.client_id}", f"own/{user}/x"}
                assert (published(session, topic) < 0x80) == (topic in wanted), (session.client.client_id, topic)


@pytest.mark.parametrize("name", ["+", "#", "a/b", "$SYS", "anna/+", "a\0b"])
def test_name_that_is_no_level_widens_no_permission(name: str) -> None:
    edge = ruled(acl("pattern readwrite own/%c/#\npattern readwrite %u/#"))
    if "\0" in name:
        session = edge.accept()
        session.client.client_id, session.client.principal = name, principal(name, name)
        edge.core.rights.admit(session.client, edge.now)
        rights = session.client.rights
        assert rights is not None
        assert not rights.judge_publish("own/a/b")
        return
    session = come(edge, principal(name, name))
    session.read()
    other = "own/x/y" if name == "$SYS" else f"own/{name}/y".replace("+", "x").replace("#", "x")
    for topic in ("own/x/y", "own/a/b/c", other, "a/b/c", "anna/x/y"):
        assert published(session, topic) == NOT_AUTHORIZED
    filters = ("$SYS/#",) if name == "$SYS" else ("own/#", "#", "own/+/x", "+/x", "$SYS/#")
    assert subscribed(session, *filters) == [NOT_AUTHORIZED] * len(filters)


def test_qos_and_retain_are_authorized_separately() -> None:
    edge = ruled(
        roles(device={"publish": ["up/#"], "subscribe": ["up/#"], "qos_max": 1, "retain": False}),
    )
    session = somebody(edge, "anna")
    for _ in range(2):
        assert published(session, "up/a", 1) < 0x80
        assert published(session, "up/a", 1, retain=True) == NOT_AUTHORIZED
        assert published(session, "up/a", 2) == NOT_AUTHORIZED
        assert published(session, "up/a", 2, retain=True) == NOT_AUTHORIZED
    assert subscribed(session, "up/a", qos=2) == [NOT_AUTHORIZED]
    assert subscribed(session, "up/a", qos=1) == [1]


def test_shared_subscriptions_need_permission_if_rules_name_them() -> None:
    edge = ruled(roles(worker={"subscribe": ["down/a"], "share": ["crew"]}))
    session = come(edge, principal("anna", "c", roles=("worker",)))
    session.read()
    assert subscribed(session, "$share/crew/down/a", "$share/other/down/a", "down/a") == [2, NOT_AUTHORIZED, 2]
    assert subscribed(somebody(edge, "bert"), "$share/crew/down/a") == [NOT_AUTHORIZED]


def test_will_is_authorized_at_connect() -> None:
    edge = ruled(roles(device={"publish": ["up/#", "down/x"], "retain": False}))
    for topic, retain, code in (("up/a", False, 0), ("down/a", False, 0x87), ("up/a", True, 0x87)):
        session = somebody(edge, "anna", will=Will(topic, b"", 0, retain, {}))
        assert session.connack.reason_code == code
        session.drop()
    no_will = ruled(roles(device={"publish": ["up/#"], "will": False}))
    assert somebody(no_will, "anna", will=Will("up/a", b"", 0, False, {})).connack.reason_code == NOT_AUTHORIZED
    assert no_will.core.counts["refused_will"] == 1


def test_partly_granted_filter_authorizes_each_delivery() -> None:
    """An acl_file grants any filter with an allowed topic, as in Mosquitto."""
    edge = ruled(acl("topic write #\nuser anna\ntopic read a/#\ntopic deny a/secret\nuser bert\ntopic read #"))
    anna, bert, writer = somebody(edge, "anna"), somebody(edge, "bert"), somebody(edge, "")
    edge.routes = {}
    assert subscribed(anna, "#", "a/+", "a/x") == [2, 2, 2]
    assert subscribed(bert, "#") == [2]
    for topic in ("a/x", "a/secret", "b", "a/x/y"):
        writer.publish(topic)
    edge.turn()
    assert topics(anna) == ["a/x", "a/x/y"]
    assert topics(bert) == ["a/x", "a/secret", "b", "a/x/y"]


@pytest.mark.parametrize("durable", [False, True])
def test_partly_granted_filter_is_stored_unchanged(durable: bool) -> None:
    """With ``on_overlap = "filter"`` neither session, partition nor route has a rewritten filter."""
    device: dict[str, object] = {"publish": ["#"], "subscribe": ["down/#"], "deny_subscribe": ["down/secret/#"]}
    edge = ruled(roles(overlap=True, device=device))
    anna = somebody(edge, "anna", properties={17: 100} if durable else {})
    asked = ["#", "down/#", "+/+/b", "down/+/a", "down/a"]
    assert subscribed(anna, *asked) == [2] * len(asked)
    assert list(anna.client.subscriptions) == asked
    assert anna.client.partial == set(asked) - {"down/a"}
    if durable:
        (sent,) = [message for message in edge.seen if isinstance(message, SubscribeSession)]
        assert [subscription.topic_filter for subscription in sent.subscriptions] == asked
        return
    added = [route.topic_filter for message in edge.seen if isinstance(message, AddRoutes) for route in message.routes]
    assert set(added) == set(asked)
    writer = somebody(edge, "bert")
    for topic in ("down/b", "down/secret/a", "down/secret/b", "up/x"):
        assert published(writer, topic) < 0x80
    edge.turn()
    assert topics(anna) == ["down/b"]


def test_retained_messages_of_partly_granted_filter_are_authorized() -> None:
    edge = ruled(acl("user anna\ntopic read a/#\ntopic deny a/secret\nuser root\ntopic write #"))
    edge.retained = [RetainedMessage(topic, b"r", 0, owner="root") for topic in ("a/x", "a/secret", "b")]
    anna = somebody(edge, "anna")
    anna.subscribe("#")
    edge.turn()
    assert topics(anna) == ["a/x"]
    assert edge.core.counts["dropped_retained_rights"] == 2


def test_refused_filter_reaches_no_partition() -> None:
    edge = ruled(roles())
    session = somebody(edge, "anna", properties={17: 100})
    assert session.client.session
    assert subscribed(session, "up/a", "down/a") == [NOT_AUTHORIZED, 2]
    (asked,) = [message for message in edge.seen if isinstance(message, SubscribeSession)]
    assert [subscription.topic_filter for subscription in asked.subscriptions] == ["down/a"]


def test_edge_without_rules_authorizes_all() -> None:
    session = Edge().client()
    assert session.client.rights is None
    assert published(session, "a") < 0x80
    assert subscribed(session, "#") == [2]


@pytest.mark.parametrize("durable", [False, True])
def test_filter_is_authorized_again_before_suback(durable: bool) -> None:
    """Rules that change during the route registration apply, and revoke the grant."""
    edge = ruled(roles())
    session = somebody(edge, "anna", properties={17: 100} if durable else {})
    edge.held = {AddRoutes, SubscribeSession}
    session.subscribe("down/a", "down/b")
    assert session.read() == []
    edge.core.replace_rules(book(roles(device={"subscribe": ["down/b"]})))
    edge.held = set()
    edge.turn()
    assert [packet.reason_codes for packet in session.read()] == [[NOT_AUTHORIZED, 2]]
    assert set(session.client.subscriptions) == {"down/b"}
    if durable:
        (dropped,) = [message for message in edge.seen if isinstance(message, UnsubscribeSession)]
        assert dropped.topic_filters == ["down/a"]
    assert edge.core.counts["revoked_filters"] == 1


def test_new_rules_apply_to_the_next_message() -> None:
    edge = ruled(roles())
    session = somebody(edge, "anna")
    assert published(session, "up/a") < 0x80
    edge.core.replace_rules(book(roles(device={"subscribe": ["up/#"]})))
    assert published(session, "up/a") == NOT_AUTHORIZED
    edge.core.replace_rules(book(roles()))
    assert published(session, "up/a") < 0x80


@pytest.mark.parametrize(("tells", "version", "code"), [(True, 5, 0x87), (False, 5, 0x80), (True, 4, 0x80)])
def test_listener_may_hide_the_refusal_reason(tells: bool, version: int, code: int) -> None:
    edge = ruled(roles())
    policy = ListenerPolicy("plain", True, tell_refusals=tells)
    session = edge.accept(policy)
    session.connect("c", version)
    session.read()
    assert subscribed(session, "up/a") == [code]


@pytest.mark.parametrize("version", [4, 5])
def test_refusals_of_the_paho_conformance_suite(version: int) -> None:
    """Set up as in docs/conformance.md: one topic gets 0x80, covering filters do not."""
    device: dict[str, object] = {"publish": ["#"], "subscribe": ["#"], "deny_subscribe": ["test/nosubscribe"]}
    edge = ruled(Sources(roles=roles(device=device).roles, anonymous=("device",), overlap=True))
    session = edge.accept(ListenerPolicy("plain", True, tell_refusals=False))
    session.connect("c", version)
    session.read()
    assert subscribed(session, "test/nosubscribe", "#", "test/+", "TopicA") == [0x80, 2, 2, 2]
