"""Rules at PUBLISH, SUBSCRIBE and CONNECT of an edge: what is not allowed is refused, whoever asks and however."""

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
    """Return the code that answers a PUBLISH; a QoS 2 message is finished."""
    session.publish(topic, qos=qos, identifier=next(IDENTIFIERS), **options)
    (answer,) = session.read()
    return int(answer.reason_code)


def subscribed(session: Session, *filters: str, **options: Any) -> list[int]:
    """Return the codes of SUBACK."""
    session.subscribe(*filters, **options)
    return list(next(packet for packet in session.read() if hasattr(packet, "reason_codes")).reason_codes)


def topics(session: Session) -> list[str]:
    """Return the topics of the messages that came."""
    return [packet.topic_name for packet in session.read() if hasattr(packet, "payload")]


@pytest.mark.parametrize("user", ["anna", ""])
def test_a_client_without_rules_may_do_nothing(user: str) -> None:
    edge = ruled(Sources())
    session = somebody(edge, user)
    assert session.connack.reason_code == 0
    assert published(session, "up/a") == NOT_AUTHORIZED
    assert subscribed(session, "up/a", "#", "$SYS/#", "$share/g/up/a") == [NOT_AUTHORIZED] * 4


def test_roles_at_publish_and_subscribe() -> None:
    edge = ruled(roles())
    session = somebody(edge, "anna")
    for qos in (1, 2):
        assert published(session, "up/a", qos) < 0x80
        assert published(session, "elsewhere", qos) == NOT_AUTHORIZED
        assert published(session, "down/secret/a", qos) == NOT_AUTHORIZED
    assert subscribed(session, "down/a", "up/a", "#", "down/secret/+") == [2, *[NOT_AUTHORIZED] * 3]
    assert edge.core.counts["refused_filter_rights"] == 3
    assert edge.core.hot.counters()["dropped_denied"] == 4


def test_what_a_deny_overlaps_is_refused_unless_parts_are_granted() -> None:
    assert subscribed(somebody(ruled(roles()), "anna"), "down/#") == [NOT_AUTHORIZED]
    assert subscribed(somebody(ruled(roles(overlap=True)), "anna"), "down/#", "$share/g/down/#") == [2, 2]


def test_what_no_rule_allows_stands_in_the_audit() -> None:
    """NIST: detect. Who asked for what: a publish, a filter, a will. One reason for all topics, so that the lines of
    one user at one address are counted together; what is allowed leaves none.
    """
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


def test_each_client_that_publishes_where_it_may_not_stands_in_the_audit() -> None:
    """NIST: detect. Also by a decision that another client of equal rules has caused, and for RETAIN or a QoS alone;
    once in a second of a connection, however much it sends.
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


def test_version_3_1_1_gets_its_own_codes() -> None:
    edge = ruled(roles())
    session = somebody(edge, "anna", version=4)
    assert subscribed(session, "up/a", "down/a") == [0x80, 2]
    reader = somebody(ruled(roles()), "bert")
    session.publish("down/a", qos=1, identifier=3)
    assert [type(packet).__name__ for packet in session.read()] == ["Puback"]  # it has no code: dropped, acknowledged
    assert topics(reader) == []


def test_a_user_name_that_nobody_verified_gives_nothing() -> None:
    edge = ruled(acl("topic read open\nuser anna\ntopic readwrite secret"))
    liar = edge.accept()
    liar.connect("anna", username="anna")
    liar.read()
    assert published(liar, "secret") == NOT_AUTHORIZED
    assert subscribed(liar, "secret", "open") == [NOT_AUTHORIZED, 2]
    assert published(somebody(edge, "anna"), "secret") < 0x80


def test_clients_with_equal_roles_share_a_decision_and_others_do_not() -> None:
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
def test_a_name_that_is_no_level_widens_nothing(name: str) -> None:
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


def test_qos_and_retain_are_judged_apart() -> None:
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


def test_groups_need_the_right_where_rules_name_groups() -> None:
    edge = ruled(roles(worker={"subscribe": ["down/a"], "share": ["crew"]}))
    session = come(edge, principal("anna", "c", roles=("worker",)))
    session.read()
    assert subscribed(session, "$share/crew/down/a", "$share/other/down/a", "down/a") == [2, NOT_AUTHORIZED, 2]
    assert subscribed(somebody(edge, "bert"), "$share/crew/down/a") == [NOT_AUTHORIZED]


def test_a_will_is_judged_at_connect() -> None:
    """NIST: protect."""
    edge = ruled(roles(device={"publish": ["up/#", "down/x"], "retain": False}))
    for topic, retain, code in (("up/a", False, 0), ("down/a", False, 0x87), ("up/a", True, 0x87)):
        session = somebody(edge, "anna", will=Will(topic, b"", 0, retain, {}))
        assert session.connack.reason_code == code
        session.drop()
    no_will = ruled(roles(device={"publish": ["up/#"], "will": False}))
    assert somebody(no_will, "anna", will=Will("up/a", b"", 0, False, {})).connack.reason_code == NOT_AUTHORIZED
    assert no_will.core.counts["refused_will"] == 1


def test_deliveries_of_a_part_are_judged_one_by_one() -> None:
    """An acl_file grants each SUBSCRIBE that may bring something, and filters what is read."""
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
def test_a_filter_that_is_granted_in_part_is_kept_as_it_was_asked_for(durable: bool) -> None:
    """NIST: protect. With ``on_overlap = "filter"`` no filter is rewritten: not in the session, at a partition, in a
    route; each delivery is judged in its place.
    """
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


def test_retained_messages_of_a_part_are_judged() -> None:
    edge = ruled(acl("user anna\ntopic read a/#\ntopic deny a/secret\nuser root\ntopic write #"))
    edge.retained = [RetainedMessage(topic, b"r", 0, owner="root") for topic in ("a/x", "a/secret", "b")]
    anna = somebody(edge, "anna")
    anna.subscribe("#")
    edge.turn()
    assert topics(anna) == ["a/x"]
    assert edge.core.counts["dropped_retained_rights"] == 2


def test_a_filter_that_is_not_granted_reaches_no_partition() -> None:
    edge = ruled(roles())
    session = somebody(edge, "anna", properties={17: 100})
    assert session.client.session
    assert subscribed(session, "up/a", "down/a") == [NOT_AUTHORIZED, 2]
    (asked,) = [message for message in edge.seen if isinstance(message, SubscribeSession)]
    assert [subscription.topic_filter for subscription in asked.subscriptions] == ["down/a"]


def test_without_rules_nothing_changes() -> None:
    session = Edge().client()
    assert session.client.rights is None
    assert published(session, "a") < 0x80
    assert subscribed(session, "#") == [2]


@pytest.mark.parametrize("durable", [False, True])
def test_a_filter_is_judged_again_before_suback(durable: bool) -> None:
    """Rules that change while routes are asked for hold for the answer, and what was granted is taken back."""
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


def test_new_rules_hold_for_the_next_message() -> None:
    edge = ruled(roles())
    session = somebody(edge, "anna")
    assert published(session, "up/a") < 0x80
    edge.core.replace_rules(book(roles(device={"subscribe": ["up/#"]})))
    assert published(session, "up/a") == NOT_AUTHORIZED
    edge.core.replace_rules(book(roles()))
    assert published(session, "up/a") < 0x80


@pytest.mark.parametrize(("tells", "version", "code"), [(True, 5, 0x87), (False, 5, 0x80), (True, 4, 0x80)])
def test_a_listener_may_keep_to_itself_why_a_filter_is_refused(tells: bool, version: int, code: int) -> None:
    edge = ruled(roles())
    policy = ListenerPolicy("plain", True, tell_refusals=tells)
    session = edge.accept(policy)
    session.connect("c", version)
    session.read()
    assert subscribed(session, "up/a") == [code]


@pytest.mark.parametrize("version", [4, 5])
def test_the_two_refusals_that_pahos_suite_asks_for(version: int) -> None:
    """As docs/conformance.md sets a cluster up for it: one topic gets 0x80, filters that cover it do not."""
    device: dict[str, object] = {"publish": ["#"], "subscribe": ["#"], "deny_subscribe": ["test/nosubscribe"]}
    edge = ruled(Sources(roles=roles(device=device).roles, anonymous=("device",), overlap=True))
    session = edge.accept(ListenerPolicy("plain", True, tell_refusals=False))
    session.connect("c", version)
    session.read()
    assert subscribed(session, "test/nosubscribe", "#", "test/+", "TopicA") == [0x80, 2, 2, 2]
