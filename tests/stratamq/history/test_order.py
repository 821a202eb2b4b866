"""R6: first deliveries in send order."""

from __future__ import annotations

from stratamq.history.operations import Kind
from tests.stratamq.history.script import Script


def subscribed(*topic_filters: str) -> Script:
    script = Script()
    script.connect("sub")
    for topic_filter in topic_filters or ("#",):
        script.subscribe("sub", topic_filter)
    script.connect("pub")
    return script


def test_first_deliveries_in_order_with_redeliveries_between() -> None:
    script = subscribed()
    for payload in ("m1", "m2", "m3"):
        script.publish("pub", "a", payload)
    for payload in ("m1", "m2", "m1", "m2", "m3"):
        script.receive("sub", "a", payload)
    assert script.found() == {}


def test_an_inversion_is_found_across_reconnects_of_the_subscriber() -> None:
    script = subscribed()
    script.publish("pub", "a", "m1")
    script.publish("pub", "a", "m2")
    script.receive("sub", "a", "m2")
    script.close("sub")
    script.connect("sub", present=True)
    script.receive("sub", "a", "m1", dup=True)
    assert script.found() == {"order": 1}


def test_topics_qos_and_publishers_are_independent() -> None:
    script = subscribed()
    script.connect("other")
    script.publish("pub", "a", "m1")
    script.publish("pub", "b", "m2")
    script.publish("pub", "a", "m3", qos=0)
    script.publish("other", "a", "m4")
    for topic, payload in (("a", "m4"), ("a", "m3"), ("b", "m2"), ("a", "m1")):
        script.receive("sub", topic, payload)
    assert script.found() == {}


def test_an_unanswered_message_may_come_late_from_an_old_connection() -> None:
    """Given up by its publisher, it is ordered only with what was sent on the same connection."""
    script = subscribed()
    script.unknown(script.publishing("pub", "a", "m1"))
    script.connect("pub", clean_start=True)
    script.publish("pub", "a", "m2")
    script.receive("sub", "a", "m2")
    script.receive("sub", "a", "m1")
    assert script.found() == {}


def test_qos_0_is_ordered_on_its_own_connection() -> None:
    """Nobody acknowledges it: what an edge that is cut off still has comes when it is back."""
    script = subscribed()
    for payload in ("m1", "m2"):
        script.publish("pub", "a", payload, qos=0)
    script.connect("pub", clean_start=True)
    script.publish("pub", "a", "m3", qos=0)
    for payload in ("m3", "m1", "m2"):
        script.receive("sub", "a", payload)
    assert script.found() == {}
    script.publish("pub", "a", "m4", qos=0)
    script.publish("pub", "a", "m5", qos=0)
    script.receive("sub", "a", "m5")
    script.receive("sub", "a", "m4")
    assert script.found() == {"order": 1}


def test_an_unanswered_message_is_ordered_on_its_own_connection() -> None:
    script = subscribed()
    script.unknown(script.publishing("pub", "a", "m1"))
    script.unknown(script.publishing("pub", "a", "m2"))
    script.receive("sub", "a", "m2")
    script.receive("sub", "a", "m1")
    assert script.found() == {"order": 1}


def test_an_accepted_message_is_ordered_across_publisher_connections() -> None:
    script = subscribed()
    script.publish("pub", "a", "m1")
    script.close("pub")
    script.connect("pub", present=True)
    script.publish("pub", "a", "m2")
    script.receive("sub", "a", "m2")
    script.receive("sub", "a", "m1")
    assert script.found() == {"order": 1}


def test_order_ignores_retained_replay_and_shared_subscriptions() -> None:
    script = subscribed("a")
    script.publish("pub", "a", "m1", retain=True)
    script.publish("pub", "a", "m2", retain=True)
    script.receive("sub", "a", "m2")
    script.receive("sub", "a", "m1", retain=True)
    assert "order" not in script.found()
    script = subscribed("$share/g/a")
    script.publish("pub", "a", "m1")
    script.publish("pub", "a", "m2")
    script.receive("sub", "a", "m2")
    script.receive("sub", "a", "m1")
    assert script.found() == {}


def test_order_overlapping_connections_are_checked_separately() -> None:
    """What the old connection still had in its buffer may be read after the new one's first message."""
    script = Script()
    script.connect("one", "c")
    script.subscribe("one", "a")
    script.connect("pub")
    first = script.publishing("pub", "a", "m1")
    second = script.publishing("pub", "a", "m2")
    script.connect("two", "c", present=True)
    script.receive("two", "a", "m2")
    script.receive("one", "a", "m1")
    script.ok(first)
    script.ok(second)
    assert script.found() == {}
    script.publish("pub", "a", "m3")
    script.publish("pub", "a", "m4")
    script.receive("two", "a", "m4")
    script.receive("two", "a", "m3")
    assert script.found() == {"order": 1}


def test_order_repeat_after_subscribe_may_arrive_late() -> None:
    """Simulation seed 84170: its publisher's edge died, and it sent everything again, in order."""
    for resubscribed, found in ((True, {}), (False, {"order": 1})):
        script = subscribed("a")
        if resubscribed:
            script.unsubscribe("sub", "a")
        first = script.publishing("pub", "a", "m1")
        if resubscribed:
            script.subscribe("sub", "a")
        second = script.publishing("pub", "a", "m2")
        script.receive("sub", "a", "m2")
        script.close("pub")
        script.connect("pub", present=True)
        for operation in (first, second):
            script.event(Kind.RESEND, "pub", operation=operation)
        script.receive("sub", "a", "m1")
        script.receive("sub", "a", "m2")
        script.ok(first)
        script.ok(second)
        assert script.found() == found
