"""The ``acl`` of tokens and answers in EMQX's two forms."""

from typing import Any

import pytest

from access.rules.claims import RULES_MAX, read_acl
from access.rules.rules import Action, CompiledRules, Grant, Subject

WHO = Subject("c", "u", address="10.0.0.1")


def rule(permission: str = "allow", action: str = "publish", topic: str = "a/b", **more: object) -> dict[str, object]:
    return {"permission": permission, "action": action, "topic": topic, **more}


def policy(*rules: dict[str, object]) -> CompiledRules:
    return CompiledRules(read_acl(list(rules)))


def test_the_older_form() -> None:
    read = CompiledRules(read_acl({"pub": ["p/${username}/#"], "sub": ["s/%c"], "all": ["both"]}))
    assert read.decide(Action.PUBLISH, "p/u/x", WHO) and not read.decide(Action.PUBLISH, "p/v/x", WHO)
    assert read.grant("s/c", WHO) is Grant.GRANTED and read.grant("s/+", WHO) is Grant.PARTIAL
    assert read.decide(Action.PUBLISH, "both", WHO) and read.grant("both", WHO) is Grant.GRANTED
    assert read.grant("p/u/x", WHO) is Grant.REFUSED
    assert not read.decide(Action.PUBLISH, "s/c", WHO)


def test_the_first_rule_that_matches_decides() -> None:
    """A list is ordered; a deny after an allow has no effect."""
    read = policy(rule("allow", topic="a/b"), rule("deny", topic="a/#"), rule("allow", topic="#"))
    decided = {topic: read.decide(Action.PUBLISH, topic, WHO) for topic in ("a/b", "a/c", "c", "$SYS/a")}
    assert decided == {"a/b": True, "a/c": False, "c": True, "$SYS/a": False}


@pytest.mark.parametrize("qos", [[0], 1, [2], [0, 1], [1, 2], [0, 2], [0, 1, 2], None])
@pytest.mark.parametrize("permission", ["allow", "deny"])
def test_qos(qos: object, permission: str) -> None:
    """Exactly these; a deny leaves the rest to the next rule."""
    wanted = set(qos) if isinstance(qos, list) else {0, 1, 2} if qos is None else {qos}
    given: dict[str, Any] = {} if qos is None else {"qos": qos}
    read = policy(rule(permission, "all", **given), *([rule(action="all")] if permission == "deny" else []))
    allowed = wanted if permission == "allow" else {0, 1, 2} - wanted
    for one in range(3):
        assert read.decide(Action.PUBLISH, "a/b", WHO, one) is (one in allowed)
        assert read.decide(Action.SUBSCRIBE, "a/b", WHO, one) is (one in allowed)
        received = read.decide(Action.RECEIVE, "a/b", WHO, one)
        assert received is (permission == "allow" or qos not in (None, [0, 1, 2]))


def test_retain_is_never_wider() -> None:
    def may(*rules: dict[str, object]) -> tuple[bool, bool]:
        """Return whether messages without and with RETAIN pass."""
        read = policy(*rules)
        plain = read.decide(Action.PUBLISH, "a/b", WHO)
        return plain, plain and read.decide(Action.RETAIN, "a/b", WHO)

    assert may(rule()) == may(rule(retain="all")) == (True, True)
    assert may(rule(retain=False)) == (True, False)
    assert may(rule(retain=True)) == (False, False)  # narrower than EMQX, where retained messages pass
    assert may(rule(retain=True), rule(retain=False)) == (True, True)
    assert may(rule("deny", retain=True), rule()) == (True, False)
    assert may(rule("deny", retain=False), rule()) == (False, False)


def test_addresses() -> None:
    assert policy(rule(ipaddr="10.0.0.0/8")).decide(Action.PUBLISH, "a/b", WHO)
    assert not policy(rule(ipaddr="10.2.0.0/16")).decide(Action.PUBLISH, "a/b", WHO)


def test_several_topics() -> None:
    read = policy({"permission": "allow", "action": "publish", "topics": ["a", "b"]})
    assert [read.decide(Action.PUBLISH, topic, WHO) for topic in "abc"] == [True, True, False]


def test_an_empty_acl_allows_nothing() -> None:
    every: list[object] = [[], {}, {"pub": []}]
    for acl in every:
        assert not CompiledRules(read_acl(acl)).decide(Action.PUBLISH, "a", WHO)


BAD: dict[str, object] = {
    "text": "#",
    "nothing": None,
    "number": 2**63,
    "true": True,
    "list of texts": ["#"],
    "unknown word": [rule(topc="a")],
    "regular expression": [rule(username_re=".*")],
    "no permission": [{"action": "publish", "topic": "a"}],
    "unknown permission": [rule("Allow")],
    "permission of another type": [rule(["allow"])],  # type: ignore[arg-type]
    "unknown action": [rule(action="pubsub")],
    "action of another type": [rule(action={})],  # type: ignore[arg-type]
    "no topic": [{"permission": "allow", "action": "publish"}],
    "both topics": [rule(topics=["a"])],
    "topic of another type": [rule(topic=["a"])],  # type: ignore[arg-type]
    "topics of another type": [{"permission": "allow", "action": "publish", "topics": "a"}],
    "eq": [rule("deny", topic="eq a/#")],
    "half a placeholder": [rule(topic="a/x${clientid}")],
    "wrong filter": [rule(topic="a/#/b")],
    "NUL": [rule(topic="a\0")],
    "qos": [rule(qos=3)],
    "qos true": [rule(qos=True)],
    "qos text": [rule(qos="1")],
    "no qos": [rule(qos=[])],
    "qos without end": [rule(qos=[0] * 10_000)],
    "qos of floats": [rule(qos=[1.0])],
    "retain": [rule(retain="yes")],
    "ipaddr": [rule(ipaddr="everywhere")],
    "empty ipaddr": [rule(ipaddr="")],
    "ipaddr of another type": [rule(ipaddr=1)],
    "too many": [rule()] * (RULES_MAX + 1),
    "too many topics": [{"permission": "allow", "action": "publish", "topics": ["a"] * 40}] * 2,
    "too many of one": [{"permission": "allow", "action": "publish", "topics": ["a"] * 10_000}],
    "older, unknown": {"pub": ["a"], "publish": ["#"]},
    "older, text": {"pub": "#"},
    "older, numbers": {"sub": [1]},
    "older, too many": {"pub": ["a"] * 40, "sub": ["a"] * 40},
    "good and bad": [rule(topic="#"), {}],
}


@pytest.mark.parametrize("acl", BAD.values(), ids=BAD)
def test_a_wrong_acl_is_no_acl(acl: object) -> None:
    with pytest.raises(ValueError) as caught:
        read_acl(acl)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200
