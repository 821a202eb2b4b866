"""R4 and R5: what SUBACK and UNSUBACK promise."""

from __future__ import annotations

import pytest

from stratamq.history.operations import Kind
from stratamq.history.subscriptions import HistoryTopicIndex, topic_matches
from tests.stratamq.history.script import Script


def ephemeral() -> Script:
    script = Script()
    script.connect("sub", session_expiry_interval_s=0)
    script.connect("pub")
    return script


def test_a_message_after_suback_must_reach_an_open_connection() -> None:
    """R4, for ephemeral sessions as well."""
    script = ephemeral()
    script.subscribe("sub", "a/#")
    script.publish("pub", "a/b", "m1")
    script.quiet()
    assert script.found() == {"subscribe_barrier": 1}
    script = ephemeral()
    script.subscribe("sub", "a/#")
    script.publish("pub", "a/b", "m1")
    script.receive("sub", "a/b", "m1")
    script.quiet()
    assert script.found() == {}


def test_a_later_message_proves_that_an_earlier_one_was_skipped() -> None:
    """SUBACK before the route was there: m1 missed, m2 delivered, and the subscriber left before the end."""
    script = ephemeral()
    script.subscribe("sub", "a")
    script.publish("pub", "a", "m1")
    script.publish("pub", "a", "m2")
    script.receive("sub", "a", "m2")
    script.unsubscribe("sub", "a")
    script.quiet()
    assert script.found() == {"subscribe_barrier": 1}


def test_an_overlapping_publish_may_be_skipped() -> None:
    script = ephemeral()
    subscribe = script.invoke(Kind.SUBSCRIBE, "sub", topic_filter="a", qos=1)
    early = script.publishing("pub", "a", "m1")
    script.ok(subscribe, qos=1)
    script.ok(early)
    script.publish("pub", "a", "m2")
    script.receive("sub", "a", "m2")
    script.quiet()
    assert script.found() == {}


def test_barrier_message_of_next_subscription_proves_no_gap() -> None:
    """m1 was still on its way when the client unsubscribed; m2 came through a subscription made later."""
    script = ephemeral()
    script.subscribe("sub", "a")
    script.publish("pub", "a", "m1")
    script.unsubscribe("sub", "a")
    script.subscribe("sub", "a")
    script.publish("pub", "a", "m2")
    script.receive("sub", "a", "m2")
    script.unsubscribe("sub", "a")
    script.quiet()
    assert script.found() == {}


def test_an_ephemeral_session_that_broke_has_no_claim() -> None:
    script = ephemeral()
    script.subscribe("sub", "a")
    script.publish("pub", "a", "m1")
    script.close("sub")
    script.quiet()
    assert script.found() == {}


def test_barrier_message_of_other_publisher_proves_no_gap() -> None:
    script = ephemeral()
    script.subscribe("sub", "a")
    script.connect("other")
    script.publish("pub", "a", "m1")
    script.publish("other", "a", "m2")
    script.receive("sub", "a", "m2")
    script.unsubscribe("sub", "a")
    script.quiet()
    assert script.found() == {}


def test_a_message_sent_after_unsuback_must_not_arrive() -> None:
    """R5."""
    script = ephemeral()
    script.subscribe("sub", "a")
    script.unsubscribe("sub", "a")
    script.publish("pub", "a", "m1")
    script.receive("sub", "a", "m1")
    (finding,) = script.judge().findings
    assert finding.checker == "unsubscribe_barrier"
    assert [record.kind for record in finding.proof[:2]] == [Kind.UNSUBSCRIBE, Kind.UNSUBSCRIBE]


def test_messages_in_flight_at_unsuback_may_arrive() -> None:
    script = ephemeral()
    script.subscribe("sub", "a")
    unsubscribe = script.invoke(Kind.UNSUBSCRIBE, "sub", topic_filter="a")
    script.publish("pub", "a", "m1")
    script.ok(unsubscribe)
    script.receive("sub", "a", "m1")
    assert script.found() == {}


def test_another_filter_or_a_new_subscribe_explains_the_message() -> None:
    script = ephemeral()
    script.subscribe("sub", "a")
    script.subscribe("sub", "+")
    script.unsubscribe("sub", "a")
    script.publish("pub", "a", "m1")
    script.receive("sub", "a", "m1")
    script.unsubscribe("sub", "+")
    late = script.publishing("pub", "a", "m2", qos=0)
    again = script.invoke(Kind.SUBSCRIBE, "sub", topic_filter="a", qos=1)
    script.receive("sub", "a", "m2", qos=0)
    script.ok(late)
    script.unknown(again)
    assert script.found() == {}


def test_unanswered_unsubscribe_keeps_subscription() -> None:
    script = ephemeral()
    script.subscribe("sub", "a")
    script.unknown(script.invoke(Kind.UNSUBSCRIBE, "sub", topic_filter="a"))
    script.publish("pub", "a", "m1")
    script.receive("sub", "a", "m1")
    script.quiet()
    assert script.found() == {}


def test_a_subscription_does_not_survive_a_clean_start() -> None:
    script = Script()
    script.connect("sub")
    script.subscribe("sub", "a")
    script.connect("pub")
    script.connect("sub", clean_start=True)
    script.publish("pub", "a", "m1")
    script.receive("sub", "a", "m1")
    assert script.found() == {"unsubscribe_barrier": 1}


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a", False),
        ("a", "a/b", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("+/+", "/a", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_filters(topic_filter: str, topic: str, expected: bool) -> None:
    """MQTT 5.0 section 4.7; the index agrees."""
    assert topic_matches(topic_filter, topic) is expected
    assert (topic in HistoryTopicIndex([topic, "other", "a/b/c/d"]).matching(topic_filter)) is expected
