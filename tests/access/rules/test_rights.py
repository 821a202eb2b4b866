"""Classes of rights: numbers, bits on routes, tables of connections, all invalid after their epoch."""

from collections.abc import Sequence

import pytest

from access.rules import rights
from access.rules.rights import NO_NUMBER, ConnectionRights, RightsClasses, RightsKey, RouteRights
from access.rules.rules import ALL_ACTIONS, PUBLISHING, Action, Grant, Subject, Tier, make_rule

OPEN = (make_rule(True, ALL_ACTIONS, "#"),)
PERSONAL = (make_rule(True, ALL_ACTIONS, "a/%u"), make_rule(True, ALL_ACTIONS, "b"))
ROLES = {"open": OPEN, "personal": PERSONAL, "closed": ()}


def source(key: RightsKey) -> Sequence[Tier]:
    return (*key.tiers, *(ROLES[name] for name in key.names if name in ROLES))


def connection(classes: RightsClasses, *names: str, user: str = "u", tiers: tuple[Tier, ...] = ()) -> ConnectionRights:
    return ConnectionRights(classes.join(RightsKey(names, tiers), 0.0), Subject("c", user))


def test_equal_rights_share_a_number() -> None:
    classes = RightsClasses(source)
    first, second, third = (connection(classes, name) for name in ("open", "open", "closed"))
    assert first.rights_class is second.rights_class
    assert {first.rights_class.number, third.rights_class.number} == {0, 1}
    assert connection(classes, "open", tiers=(PERSONAL,)).rights_class.number == 2


def test_a_decision_is_on_the_route_for_the_whole_class() -> None:
    """The second client of the class finds the bits; another class has its own."""
    classes, route = RightsClasses(source), RouteRights()
    one, other, closed = connection(classes, "open"), connection(classes, "open"), connection(classes, "closed")
    number, epoch = one.rights_class.number, classes.epoch
    assert one.judge_publish("t", route=route)
    assert route.verdict(number, epoch) is True
    assert route.verdict(closed.rights_class.number, epoch) is None
    assert not closed.judge_publish("t", route=route)
    assert route.verdict(closed.rights_class.number, epoch) is False
    assert other.judge_publish("t", route=route)


def test_a_personal_decision_is_never_on_the_route() -> None:
    """Two clients of a class, one topic, two results; a topic without personal rules is shared."""
    classes, route = RightsClasses(source), RouteRights()
    first, second = connection(classes, "personal", user="u"), connection(classes, "personal", user="v")
    for _ in range(2):
        assert first.judge_publish("a/u", route=route)
        assert not second.judge_publish("a/u", route=route)
    assert route.verdict(first.rights_class.number, classes.epoch) is None
    shared = RouteRights()
    assert first.judge_publish("b", route=shared)
    assert shared.verdict(first.rights_class.number, classes.epoch) is True


def test_a_hostile_name_does_not_go_by_the_bits_of_its_class() -> None:
    """A deny with a placeholder applies to all possible topics for one client, and to no others."""
    tiers = ((make_rule(True, ALL_ACTIONS, "#"), make_rule(False, ALL_ACTIONS, "%u/secret")),)
    classes, route = RightsClasses(source), RouteRights()
    honest, hostile = connection(classes, tiers=tiers), connection(classes, tiers=tiers, user="a/b")
    assert honest.judge_publish("t", route=route)
    assert route.verdict(honest.rights_class.number, classes.epoch) is True
    assert hostile.rights_class is honest.rights_class
    assert not hostile.judge_publish("t", route=route)
    assert honest.judge_publish("t", route=route)


def test_qos_and_retain_are_decided_apart() -> None:
    rules = (
        make_rule(True, PUBLISHING & ~Action.RETAIN, "a", 1),
        make_rule(True, PUBLISHING, "b"),
        make_rule(True, Action.RETAIN, "c"),
    )
    classes, route = RightsClasses(source), RouteRights()
    one = connection(classes, tiers=(rules,))
    may = {(qos, retain): one.judge_publish("a", qos, retain, route) for qos in range(3) for retain in (False, True)}
    assert [key for key, allowed in may.items() if allowed] == [(0, False), (1, False)]
    assert all(one.judge_publish("b", qos, retain, route) for qos in range(3) for retain in (False, True))
    assert not one.judge_publish("c", 0, True, route)
    assert route.verdict(one.rights_class.number, classes.epoch) is None
    assert one.may_will("b", 2, True)
    assert not one.may_will("a", 1, True)


def test_retain_does_not_go_by_the_bit_of_plain_messages() -> None:
    classes, route = RightsClasses(source), RouteRights()
    one = connection(classes, tiers=((make_rule(True, PUBLISHING & ~Action.RETAIN, "a"),),))
    assert one.judge_publish("a", route=route)
    assert route.verdict(one.rights_class.number, classes.epoch) is True
    assert not one.judge_publish("a", retain=True, route=route)


def test_bits_with_retain_are_there_where_they_are_asked_for() -> None:
    """A class decision is made without RETAIN, once; a connection's own decisions are complete, because they are
    cached.
    """
    tiers = ((make_rule(True, PUBLISHING, "kept"), make_rule(True, PUBLISHING & ~Action.RETAIN, "plain"), *PERSONAL),)
    one = connection(RightsClasses(source), tiers=tiers)
    assert one.verdicts("kept", retain=False) == (0b111, True)
    assert one.verdicts("kept") == (0b111111, True)
    assert one.verdicts("plain") == one.verdicts("plain", retain=False) == (0b111, True)
    assert one.verdicts("nothing") == one.verdicts("nothing", retain=False) == (0, True)
    assert one.verdicts("a/u") == one.verdicts("a/u", retain=False) == (0b111111, False)


def test_no_decision_outlives_a_step() -> None:
    """Bits, tables, grants and deliveries use the new rules from the next check on."""
    classes, route = RightsClasses(source, 7), RouteRights()
    one, other = connection(classes, "open"), connection(classes, "personal")
    assert one.judge_publish("t", route=route) and one.judge_publish("t") and one.may_receive("t")
    assert other.judge_publish("a/u", route=route)
    assert one.grant("t/#") is Grant.GRANTED
    classes.step(lambda _: (), 8)
    assert classes.policy_epoch == 8
    assert not one.judge_publish("t", route=route)
    assert not one.judge_publish("t") and not one.may_receive("t") and not other.judge_publish("a/u", route=route)
    assert one.grant("t/#") is Grant.REFUSED
    classes.step(source, 9)
    assert one.judge_publish("t", route=route) and one.grant("t/#") is Grant.GRANTED


def test_later_classes_decide_in_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 have a number; the 65th is correct too, and its table is bounded."""
    monkeypatch.setattr(rights, "TOPICS_PER_CONNECTION", 4)
    classes, route = RightsClasses(source), RouteRights()
    numbered = [connection(classes, "open", f"x{number}") for number in range(64)]
    assert sorted(one.rights_class.number for one in numbered) == list(range(64))
    late = connection(classes, "open", "late")
    assert late.rights_class.number == NO_NUMBER
    assert all(late.judge_publish(f"t{number}", route=route) for number in range(20))
    classes.leave(numbered[5].rights_class)
    assert classes.join(RightsKey(("open", "later")), 1.0).number == 5


def test_numbers_return_but_never_with_old_bits() -> None:
    """A class that reuses a number does not find the decisions of the former one."""
    classes, route = RightsClasses(source), RouteRights()
    every = [connection(classes, "open", f"x{number}") for number in range(64)]
    ended = every[9]
    assert ended.judge_publish("t", route=route)
    classes.leave(ended.rights_class)
    heir = ConnectionRights(classes.join(RightsKey(("closed",)), 100.0), Subject("c", "u"))
    assert heir.rights_class.number == 9
    assert not heir.judge_publish("t", route=route)
    classes.leave(every[10].rights_class)
    assert classes.join(RightsKey(("closed", "2")), 101.0).number == NO_NUMBER  # at most once per ten seconds
    assert classes.join(RightsKey(("closed", "3")), 111.0).number == 10


def test_classes_without_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "IDLE_CLASSES", 3)
    classes = RightsClasses(source)
    for number in range(200):
        classes.leave(classes.join(RightsKey((f"x{number}",)), 0.0))
    assert len(classes) == 3
    kept = classes.join(RightsKey(("x199",)), 0.0)
    assert kept.connections == 1 and len(classes) == 3


def test_a_step_gives_numbers_to_those_without() -> None:
    classes = RightsClasses(source)
    every = [connection(classes, f"x{number}") for number in range(65)]
    assert every[64].rights_class.number == NO_NUMBER
    classes.leave(every[3].rights_class)
    classes.join(RightsKey(("y",)), 50.0)
    classes.step(source, 1)
    numbers = [one.rights_class.number for one in every if one is not every[3]]
    assert len({number for number in numbers if number != NO_NUMBER}) >= 63


def test_rights_unknown_name_grants_nothing() -> None:
    classes = RightsClasses(source)
    assert not connection(classes, "nobody").judge_publish("t", route=RouteRights())
