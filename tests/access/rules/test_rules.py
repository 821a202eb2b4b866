"""Decisions and grants compared with a reference, and names that try to widen a rule."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access.rules.filters import LEVELS_MAX
from access.rules.rules import (
    ALL_ACTIONS,
    PUBLISHING,
    SUBSCRIBING,
    AccessRule,
    Action,
    CompiledRules,
    Grant,
    Subject,
    Tier,
    check_cost,
    make_rule,
)
from mqtt.topics import matches
from tests.access.rules.reference import ALPHABET, FILTERS, NAMES, TIERS, TOPICS, WHO, decide

ACTION = st.sampled_from([Action.PUBLISH, Action.SUBSCRIBE, Action.RECEIVE, Action.RETAIN, Action.WILL])
EVERY_TOPIC = ["/".join(levels) for depth in (1, 2, 3) for levels in itertools.product(ALPHABET, repeat=depth)]
EVERY_TOPIC.remove("")


def allow(text: str, actions: Action = ALL_ACTIONS, **conditions: object) -> AccessRule:
    return make_rule(True, actions, text, **conditions)  # type: ignore[arg-type]


def deny(text: str, actions: Action = ALL_ACTIONS, **conditions: object) -> AccessRule:
    return make_rule(False, actions, text, **conditions)  # type: ignore[arg-type]


@settings(max_examples=600, deadline=None)
@given(TIERS, ACTION, TOPICS, WHO, st.integers(0, 2))
def test_decisions_equal_the_reference(
    tiers: tuple[Tier, ...], action: Action, topic: str, subject: Subject, qos: int
) -> None:
    """Check A4: default deny, deny wins, any user and client ID."""
    policy = CompiledRules(tiers)
    wanted = decide(tiers, action, topic, subject, qos)
    assert policy.decide(action, topic, subject, qos) == wanted
    if policy.has_levels(subject):
        assert policy.decide_for_all(action, topic, qos) in (None, wanted)


@settings(max_examples=300, deadline=None)
@given(TIERS, FILTERS, WHO, st.integers(0, 2))
def test_grants_never_let_pass_a_refused_topic(
    tiers: tuple[Tier, ...], topic_filter: str, subject: Subject, qos: int
) -> None:
    """Check A5: GRANTED is every topic of the filter, REFUSED none."""
    policy = CompiledRules(tiers)
    grant = policy.grant(topic_filter, subject, qos)
    assert policy.grant(topic_filter, subject, qos) == grant
    both = {
        decide(tiers, Action.SUBSCRIBE, topic, subject, qos) and decide(tiers, Action.RECEIVE, topic, subject, qos)
        for topic in EVERY_TOPIC
        if matches(topic_filter, topic)
    }
    if grant is Grant.GRANTED:
        assert False not in both
    if grant is Grant.REFUSED:
        assert True not in both


@settings(max_examples=300, deadline=None)
@given(NAMES, NAMES, TOPICS)
def test_a_name_widens_no_allow(user: str, client_id: str, topic: str) -> None:
    """Checks C1, C2: a permitted topic has the names literally at their levels."""
    policy = CompiledRules(((allow("a/%u/%c/#"), allow("%c")),))
    if policy.decide(Action.PUBLISH, topic, Subject(client_id, user)):
        assert topic == client_id or topic.split("/")[:3] == ["a", user, client_id]


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a\0", "", "+/#", "x+", "#x", "/"])
def test_a_hostile_name_matches_no_allow_and_every_deny(name: str) -> None:
    """Check A6: literal levels in parsed rules."""
    open_to_all = allow("#")
    for word, subject in {
        "%u": Subject("id", name),
        "${username}": Subject("id", name),
        "%c": Subject(name, "user"),
        "${clientid}": Subject(name, "user"),
        "${cert_common_name}": Subject("id", "user", name),
        "${client_attrs.x}": Subject("id", "user", attributes={"x": name}),
    }.items():
        for topic in ("a", "a/b", "a/+", "a/x/b/secret"):
            assert not CompiledRules(((allow(f"{word}/#"), allow(f"a/{word}/#")),)).decide(
                Action.PUBLISH, topic, subject
            )
        closed = CompiledRules(((open_to_all, deny(f"a/{word}/secret")),))
        assert not closed.decide(Action.PUBLISH, "a/x/b/secret", subject)
        assert not closed.decide(Action.RECEIVE, f"a/{name or 'x'}".replace("+", "p").replace("#", "h"), subject)
        assert closed.decide(Action.PUBLISH, "b/x/secret", subject)
        assert closed.grant("a/#", subject) is Grant.PARTIAL
        assert closed.grant("b/#", subject) is Grant.GRANTED


@pytest.mark.parametrize("name", [".*", "(a|b)", "[a-z]", "a.*", "^", "$", "\\", "%c", "${username}", "é", "a\u202eb"])
def test_signs_of_regular_expressions_are_letters(name: str) -> None:
    """Check C2: no name is a pattern."""
    policy = CompiledRules(((allow("u/%u/#"),),))
    subject = Subject("c", name)
    assert policy.decide(Action.PUBLISH, f"u/{name}/x", subject)
    assert not policy.decide(Action.PUBLISH, "u/a/x", subject)
    assert not policy.decide(Action.PUBLISH, "u/c/x", subject)


@pytest.mark.parametrize(
    ("rules", "topic", "wanted"),
    [
        ((allow("#"),), "$SYS/a", False),
        ((allow("+/a"),), "$SYS/a", False),
        ((allow("%u/a"),), "$SYS/a", False),
        ((allow("$SYS/#"),), "$SYS/a", True),
        ((allow("$SYS/%u"),), "$SYS/$SYS", True),
        ((allow("$SYS/#"), deny("#")), "$SYS/a", True),
        ((allow("$SYS/#"), deny("%u/a")), "$SYS/a", False),
        ((allow("$SYS/#"), deny("%c/a")), "$SYS/a", True),
    ],
)
def test_topics_of_the_broker(rules: Tier, topic: str, wanted: bool) -> None:
    """Check A8: only a rule that begins with $ matches them; a user named $SYS gains nothing."""
    subject = Subject("id", "$SYS")
    assert CompiledRules((rules,)).decide(Action.RECEIVE, topic, subject) is wanted
    assert CompiledRules((rules,)).grant("$SYS/#", subject) in (
        (Grant.GRANTED, Grant.PARTIAL) if wanted else (Grant.REFUSED,)
    )


def test_the_first_tier_that_decides() -> None:
    """A deny in a later tier than an allow has no effect; a deny in the same tier wins."""
    first, second = (allow("a/b"), deny("a/c")), (deny("a/b"), allow("a/#"))
    policy, subject = CompiledRules((first, second)), Subject("c", "u")
    decided = {topic: policy.decide(Action.PUBLISH, topic, subject) for topic in ("a/b", "a/c", "a/d", "b")}
    assert decided == {"a/b": True, "a/c": False, "a/d": True, "b": False}
    assert not CompiledRules(((allow("a"), deny("a")),)).decide(Action.PUBLISH, "a", subject)
    assert not CompiledRules(()).decide(Action.PUBLISH, "a", subject)


@pytest.mark.parametrize(
    ("topic_filter", "wanted"),
    [
        ("a/x", Grant.GRANTED),
        ("a/+", Grant.PARTIAL),  # a deny overlaps
        ("a/b/#", Grant.GRANTED),
        ("#", Grant.PARTIAL),
        ("b", Grant.REFUSED),
        ("a/secret", Grant.REFUSED),
        ("own/c/#", Grant.GRANTED),
        ("own/+/#", Grant.PARTIAL),
        ("own/d/#", Grant.REFUSED),
        ("$SYS/#", Grant.REFUSED),
        ("$share/g/a/x", Grant.GRANTED),
        ("$share//a", Grant.REFUSED),
        ("$share/g", Grant.REFUSED),
        ("a/#/b", Grant.REFUSED),
        ("", Grant.REFUSED),
        ("a/x\0", Grant.REFUSED),
    ],
)
def test_grants(topic_filter: str, wanted: Grant) -> None:
    policy = CompiledRules(((allow("a/#", SUBSCRIBING), deny("a/secret"), allow("own/%c/#"), allow("b", PUBLISHING)),))
    assert policy.grant(topic_filter, Subject("c", "u")) is wanted


def test_groups_need_share_where_rules_name_them() -> None:
    """A rule of another client that names groups restricts them as well."""
    plain = (allow("a/#"),)
    subject = Subject("c", "u")
    assert CompiledRules((plain,)).grant("$share/g/a/b", subject) is Grant.GRANTED
    assert CompiledRules((plain,), groups_named=True).grant("$share/g/a/b", subject) is Grant.REFUSED
    named = CompiledRules(((*plain, allow("g", Action.SHARE), allow("%u", Action.SHARE)),))
    granted = {group: named.grant(f"$share/{group}/a/b", subject) for group in ("g", "u", "h")}
    assert granted == {"g": Grant.GRANTED, "u": Grant.GRANTED, "h": Grant.REFUSED}
    assert named.grant("a/b", subject) is Grant.GRANTED
    assert not named.decide(Action.PUBLISH, "g", subject)


@pytest.mark.parametrize(
    ("address", "allowed", "denied"),
    [
        ("10.1.2.3", True, True),
        ("::ffff:10.1.2.3", True, True),
        ("192.0.2.1", False, False),
        ("::1", False, False),
        ("", False, True),  # for an unknown address no match is assumed
        ("10.1.2.3:99", False, True),
    ],
)
@pytest.mark.parametrize("network", ["10.0.0.0/8", "::ffff:10.0.0.0/104"])
def test_networks(network: str, address: str, allowed: bool, denied: bool) -> None:
    """Network and address each as IPv4, or as IPv6: both notations are equivalent."""
    subject = Subject("c", "u", address=address)
    assert CompiledRules(((allow("a", network=network),),)).decide(Action.PUBLISH, "a", subject) is allowed
    closed = CompiledRules(((allow("a"), deny("a", network=network)),))
    assert closed.decide(Action.PUBLISH, "a", subject) is not denied
    assert closed.decide_for_all(Action.PUBLISH, "a") is None


def test_listeners() -> None:
    """A rule of one listener does not apply at another."""
    policy = CompiledRules(((allow("a", listener="tls"), allow("b"), deny("b", listener="open")),))
    assert policy.decide(Action.PUBLISH, "a", Subject("c", "u", listener="tls"))
    assert not policy.decide(Action.PUBLISH, "a", Subject("c", "u", listener="open"))
    assert policy.decide(Action.PUBLISH, "b", Subject("c", "u", listener="tls"))
    assert not policy.decide(Action.PUBLISH, "b", Subject("c", "u", listener="open"))
    assert not policy.decide(Action.PUBLISH, "b", Subject("c", "u"))


@pytest.mark.parametrize("topic", ["", "+", "#", "a/+", "a/#"])
def test_a_filter_is_no_topic(topic: str) -> None:
    policy = CompiledRules(((allow("#"), allow("a/+")),))
    assert not policy.decide(Action.PUBLISH, topic, Subject("c", "u"))
    assert policy.decide_for_all(Action.PUBLISH, topic) is False


@pytest.mark.parametrize(
    "text",
    [
        *("", "a/#/b", "a+", "a/b#", "\0", "dev-%c/x", "%u%c", "a/${user}", "${clientid", "x${clientid}", "$share/g/a"),
        *("${client_attrs.}", "${client_attrs.a.b}", "a/" * LEVELS_MAX + "a", "a" * 65_536),
    ],
)
def test_a_wrong_filter_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        allow(text)
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize("network", ["10.0.0.0/33", "ten", "10.0.0.1/8", "a" * 1_000])
def test_a_wrong_network_is_no_rule(network: str) -> None:
    with pytest.raises(ValueError, match="no network"):
        allow("a", network=network)


def test_rules_that_make_decisions_expensive_are_refused() -> None:
    """A trie of "a" and "+" at each level would visit thousands of nodes."""
    check_cost(tuple(allow(f"plant/+/{number}/#") for number in range(10_000)))
    with pytest.raises(ValueError, match="use fewer"):
        check_cost(tuple(allow("/".join(levels)) for levels in itertools.product("a+", repeat=10)))


def test_grants_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers' filters do not grow the memory; grants of rules with names are not cached."""
    monkeypatch.setattr("access.rules.rules.GRANTS_KEPT", 4)
    policy = CompiledRules(((allow("a/#"), deny("a/7")),))
    for _ in range(2):
        granted = [policy.grant(f"a/{number}", Subject("c", "u")) for number in range(10)]
        assert granted.count(Grant.GRANTED) == 9 and granted[7] is Grant.REFUSED
    personal = CompiledRules(((allow("a/%u"),),))
    assert [personal.grant("a/u", Subject("c", user)) for user in "uv"] == [Grant.GRANTED, Grant.REFUSED]
