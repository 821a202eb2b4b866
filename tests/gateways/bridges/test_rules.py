"""Templates, conditions, functions and lines of topics: what a message becomes, and what is a mistake."""

import time

import pytest

from gateways.bridges.message import BridgeMessage
from gateways.bridges.mqtt_rules import MqttRules
from gateways.bridges.predicates import Predicate
from gateways.bridges.rules import BridgeRule, Rules, Transform
from gateways.bridges.templates import Template
from gateways.bridges.topic_lines import find_loop, parse_topic_line
from mqtt.properties import PropertyId

USERS = [("site", "north"), ("stratamq-client-id", "c1"), ("client-id", "x"), ("stratamq-user-name", "ann")]
MESSAGE = BridgeMessage("upload/car/7/t", b'{"t": 31}', 1, properties={PropertyId.USER_PROPERTY: USERS})

FILLED = [
    ("upload", "upload"),
    ("{topic}", "upload/car/7/t"),
    ("{level.2}", "car"),
    ("{level.4}-{qos}", "t-1"),
    ("{rest}", "7/t"),
    ("{property.site}{property.none}", "north"),
    ("{client_id}:{user_name}", "c1:ann"),
]
UNFILLED = ["{level.0}", "{level.x}", "{nothing}", "{topic", "topic}", "{}", "{property.}"]


@pytest.mark.parametrize(("text", "filled"), FILLED)
def test_templates(text: str, filled: str) -> None:
    assert Template(text, "upload/+/#").fill(MESSAGE) == filled


@pytest.mark.parametrize("text", UNFILLED)
def test_templates_that_are_mistakes(text: str) -> None:
    with pytest.raises(ValueError):
        Template(text, "upload/+/#")


@pytest.mark.parametrize(("text", "topic_filter"), [("{level.3}", "a/+"), ("{rest}", "a/+"), ("{level.1}", "")])
def test_levels_that_cannot_be_there(text: str, topic_filter: str) -> None:
    with pytest.raises(ValueError):
        Template(text, topic_filter)


def rule(topic_filter: str, target: str, where: str = "", transform: Transform | None = None) -> BridgeRule:
    condition = Predicate(where, time.thread_time) if where else None
    return BridgeRule(topic_filter, Template(target, topic_filter), where=condition, transform=transform)


def test_a_message_goes_to_each_target_once() -> None:
    rules = Rules([rule("upload/#", "all"), rule("upload/car/#", "cars"), rule("+/car/#", "all")])
    assert [record.target for record in rules.apply_rules(MESSAGE).records] == ["all", "cars"]
    assert rules.apply_rules(BridgeMessage("other", b"")).dropped == "unmatched"


def test_a_level_that_this_topic_has_not_is_for_the_dead_letter() -> None:
    verdict = Rules([rule("upload/#", "{level.5}")]).apply_rules(MESSAGE)
    assert verdict.rejected is not None and verdict.rejected.reason == "template" and not verdict.records


CONDITIONS = [
    ("payload.t > 30", b'{"t": 31}', ""),
    ("payload.t > 30", b'{"t": 30}', "filtered"),
    ("has(payload.t) && payload.t > 30", b"{}", "filtered"),
    ("topic.startsWith('upload') && qos == 1 && properties.site == 'north'", b"1", ""),
    ("payload.t > 30", b"{}", "predicate_failed"),
    ("payload.t > 30", b'{"t": "x"}', "predicate_failed"),
    ("payload.t", b'{"t": 1}', "predicate_failed"),
    ("payload.t > 30", b"\xff", "not_json"),
    ("payload.t > 30", b"[" * 100_000, "not_json"),
]


@pytest.mark.parametrize(("where", "payload", "outcome"), CONDITIONS)
def test_conditions(where: str, payload: bytes, outcome: str) -> None:
    """What cannot be judged is not let fall in silence."""
    pytest.importorskip("cel", reason="the extra rules is not installed (common-expression-language)")
    message = BridgeMessage(MESSAGE.topic, payload, 1, properties=MESSAGE.properties)
    verdict = Rules([rule("upload/#", "all", where)]).apply_rules(message)
    found = verdict.rejected.reason if verdict.rejected is not None else verdict.dropped
    assert found == outcome and len(verdict.records) == (outcome == "")


def test_a_condition_has_a_bound_on_its_time() -> None:
    pytest.importorskip("cel", reason="the extra rules is not installed (common-expression-language)")
    clock = iter((0.0, 0.0011))
    rules = Rules([BridgeRule("#", Template("x"), where=Predicate("true", lambda: next(clock)))])
    verdict = rules.apply_rules(BridgeMessage("a", b"{}"))
    assert verdict.rejected is not None and verdict.rejected.reason == "predicate_slow"


def test_functions() -> None:
    """Bytes go on, None falls, anything else is for the dead letter."""
    outcomes = {
        "upper": lambda _topic, payload: payload.upper(),
        "none": lambda *_: None,
        "text": lambda *_: "text",
        "fails": lambda *_: 1 / 0,
    }
    verdicts = {
        name: Rules([rule("#", "x", transform=each)]).apply_rules(BridgeMessage("a", b"b"))
        for name, each in outcomes.items()
    }
    assert verdicts["upper"].records[0].payload == b"B"
    assert verdicts["none"].dropped == "filtered" and verdicts["none"].dropped_by == ["#: the function returned None"]
    for name in ("text", "fails"):
        rejected = verdicts[name].rejected
        assert rejected is not None and rejected.reason == "transform"


# Lines of Mosquitto: mosquitto.conf(5), option topic

VALID = [
    ("pattern/# both 2 L/ R/", "L/pattern/#", "R/pattern/#"),
    ("pattern/# both 2 L/ ''", "L/pattern/#", "pattern/#"),
    ("pattern/# both 2 '' R/", "pattern/#", "R/pattern/#"),
    ("pattern/#", "pattern/#", "pattern/#"),
    ('"" both 2 local remote', "local", "remote"),
]
INVALID = [
    "'' both 2 local ''",
    "'' both 2 '' remote",
    "'' both 2",
    "",
    "a sideways",
    "a out 3",
    "a out 1 b c d",
    "a# out",
    "a out 1 b+ ''",
    "a 'out",
    "x/# out 1 $share/g/ ''",
]


@pytest.mark.parametrize(("text", "local", "remote"), VALID)
def test_the_combinations_of_filter_and_prefixes(text: str, local: str, remote: str) -> None:
    line = parse_topic_line(text)
    assert (line.local_filter, line.remote_filter) == (local, remote)


@pytest.mark.parametrize("text", INVALID)
def test_lines_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_topic_line(text)


def test_topics_are_renamed_by_the_first_line_that_matches() -> None:
    lines = [parse_topic_line(text) for text in ("t/# out 1 site/ ''", "# both 0 site/ all/", "'' out 2 one other")]
    out, back = MqttRules(lines, "out", "b"), MqttRules(lines, "in", "b", retained=False)

    def target(rules: MqttRules, topic: str) -> list[tuple[str, int, bool]]:
        records = rules.apply_rules(BridgeMessage(topic, b"", 2, True)).records
        return [(record.target, record.qos, record.retain) for record in records]

    assert target(out, "site/t/x") == [("t/x", 1, True)]
    assert target(out, "site/other") == [("all/other", 0, True)]
    assert target(out, "one") == [("other", 2, True)]
    assert target(out, "elsewhere") == []
    assert target(back, "all/x") == [("site/x", 0, False)]
    assert target(back, "other") == []
    below = MqttRules([parse_topic_line("# both 1 a/ b/")], "out", "b")
    assert target(below, "a/x") == [("b/x", 1, True)]
    assert target(below, "a") == []  # a/# takes it, and it has no prefix a/


@pytest.mark.parametrize(("path", "dropped"), [("a,b", ""), ("a,me", "loop"), ("1,2,3,4,5,6,7,8", "path_too_long")])
def test_a_message_that_came_round_goes_no_further(path: str, dropped: str) -> None:
    message = BridgeMessage("x", b"", 1, properties={PropertyId.USER_PROPERTY: [("bridge-path", path)]})
    assert MqttRules([parse_topic_line("#")], "out", "me").apply_rules(message).dropped == dropped


RINGS = [
    ("a/# both", "a/# both", True),
    ("a/# out", "# in", True),
    ("a/# out", "a/# out", False),
    ("a/# both", "b/# both", False),
    ("a/+ both", "a/b/c both", False),
    ("+/b both", "a/# both", True),
    ("a/# both 0 l/ r/", "a/# both", False),
]


@pytest.mark.parametrize(("one", "other", "ring"), RINGS)
def test_rings(one: str, other: str, ring: bool) -> None:
    assert bool(find_loop([parse_topic_line(one)], [parse_topic_line(other)])) is ring
