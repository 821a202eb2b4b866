"""Templates, conditions, functions and topic lines: results and errors."""

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
def test_template_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Template(text, "upload/+/#")


@pytest.mark.parametrize(("text", "topic_filter"), [("{level.3}", "a/+"), ("{rest}", "a/+"), ("{level.1}", "")])
def test_template_impossible_level_is_refused(text: str, topic_filter: str) -> None:
    with pytest.raises(ValueError):
        Template(text, topic_filter)


def rule(topic_filter: str, target: str, where: str = "", transform: Transform | None = None) -> BridgeRule:
    condition = Predicate(where, time.thread_time) if where else None
    return BridgeRule(topic_filter, Template(target, topic_filter), where=condition, transform=transform)


def test_rules_message_goes_to_each_target_once() -> None:
    rules = Rules([rule("upload/#", "all"), rule("upload/car/#", "cars"), rule("+/car/#", "all")])
    assert [record.target for record in rules.apply_rules(MESSAGE).records] == ["all", "cars"]
    assert rules.apply_rules(BridgeMessage("other", b"")).dropped == "unmatched"


def test_rules_missing_level_goes_to_dead_letter() -> None:
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
    """A message for which the condition fails goes to the dead letter."""
    pytest.importorskip("cel", reason="the extra rules is not installed (common-expression-language)")
    message = BridgeMessage(MESSAGE.topic, payload, 1, properties=MESSAGE.properties)
    verdict = Rules([rule("upload/#", "all", where)]).apply_rules(message)
    found = verdict.rejected.reason if verdict.rejected is not None else verdict.dropped
    assert found == outcome and len(verdict.records) == (outcome == "")


def test_rules_slow_condition_goes_to_dead_letter() -> None:
    pytest.importorskip("cel", reason="the extra rules is not installed (common-expression-language)")
    clock = iter((0.0, 0.0011))
    rules = Rules([BridgeRule("#", Template("x"), where=Predicate("true", lambda: next(clock)))])
    verdict = rules.apply_rules(BridgeMessage("a", b"{}"))
    assert verdict.rejected is not None and verdict.rejected.reason == "predicate_slow"


def test_functions() -> None:
    """Bytes are sent, None drops the message, other results go to the dead letter."""
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
def test_parse_topic_line_combines_filter_and_prefixes(text: str, local: str, remote: str) -> None:
    line = parse_topic_line(text)
    assert (line.local_filter, line.remote_filter) == (local, remote)


@pytest.mark.parametrize("text", INVALID)
def test_parse_topic_line_invalid_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_topic_line(text)


def test_mqtt_rules_first_matching_line_renames_topic() -> None:
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
    assert target(below, "a") == []  # a/# matches it, but it lacks the prefix a/


@pytest.mark.parametrize(("path", "dropped"), [("a,b", ""), ("a,me", "loop"), ("1,2,3,4,5,6,7,8", "path_too_long")])
def test_mqtt_rules_looped_message_is_dropped(path: str, dropped: str) -> None:
    message = BridgeMessage("x", b"", 1, properties={PropertyId.USER_PROPERTY: [("bridge-path", path)]})
    assert MqttRules([parse_topic_line("#")], "out", "me").apply_rules(message).dropped == dropped


LOOPS = [
    ("a/# both", "a/# both", True),
    ("a/# out", "# in", True),
    ("a/# out", "a/# out", False),
    ("a/# both", "b/# both", False),
    ("a/+ both", "a/b/c both", False),
    ("+/b both", "a/# both", True),
    ("a/# both 0 l/ r/", "a/# both", False),
]


@pytest.mark.parametrize(("one", "other", "loops"), LOOPS)
def test_find_loop_detects_overlapping_lines(one: str, other: str, loops: bool) -> None:
    assert bool(find_loop([parse_topic_line(one)], [parse_topic_line(other)])) is loops
