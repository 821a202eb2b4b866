"""R7 and R8: exactly once, in and out."""

from __future__ import annotations

from stratamq.history.operations import Kind
from tests.stratamq.history.script import Script


def subscribed(qos: int = 2) -> Script:
    script = Script()
    script.connect("sub")
    script.subscribe("sub", "a", qos=qos)
    script.connect("pub")
    return script


def test_one_hand_over_is_right() -> None:
    """A repeated packet identifier that the client had not released is not handed over again."""
    script = subscribed()
    script.publish("pub", "a", "m1", qos=2)
    script.receive("sub", "a", "m1", qos=2, packet_identifier=1)
    script.close("sub")
    script.connect("sub", present=True)
    script.receive("sub", "a", "m1", qos=2, packet_identifier=1, dup=True, handed_over=False)
    assert script.found() == {}


def test_a_second_hand_over_is_found_across_reconnects() -> None:
    """R8: PUBLISH after PUBREC was accepted, or under another packet identifier."""
    script = subscribed()
    script.publish("pub", "a", "m1", qos=2)
    script.receive("sub", "a", "m1", qos=2, packet_identifier=1)
    script.close("sub")
    script.connect("sub", present=True)
    script.receive("sub", "a", "m1", qos=2, packet_identifier=2, dup=True)
    assert script.found() == {"duplicate": 1}


def test_a_duplicate_counts_though_the_publish_is_unknown() -> None:
    script = subscribed()
    script.unknown(script.publishing("pub", "a", "m1", qos=2))
    script.receive("sub", "a", "m1", qos=2)
    script.receive("sub", "a", "m1", qos=2)
    assert script.found() == {"duplicate": 1}


def test_duplicate_scope_ends_at_clean_start() -> None:
    script = subscribed()
    script.publish("pub", "a", "m1", qos=2)
    script.receive("sub", "a", "m1", qos=2)
    script.connect("sub", clean_start=True)
    script.subscribe("sub", "a", qos=2)
    script.unknown(script.publishing("pub", "a", "m2", qos=2))
    assert script.found() == {}


def test_qos_1_may_repeat_on_redelivery_only() -> None:
    """R7, dup-in: published at QoS 2 and lowered to 1, two copies without DUP on one connection are two entries."""
    script = subscribed(qos=1)
    script.publish("pub", "a", "m1", qos=2)
    script.receive("sub", "a", "m1", qos=1)
    script.close("sub")
    script.connect("sub", present=True)
    script.receive("sub", "a", "m1", qos=1, dup=True)
    assert script.found() == {}
    script.publish("pub", "a", "m2", qos=2)
    script.receive("sub", "a", "m2", qos=1)
    script.receive("sub", "a", "m2", qos=1)
    assert script.found() == {"duplicate": 1}


def test_overlapping_subscriptions_may_each_bring_a_copy() -> None:
    """MQTT 5.0 section 3.3.4."""
    script = subscribed()
    script.subscribe("sub", "+", qos=2)
    script.publish("pub", "a", "m1", qos=2)
    script.receive("sub", "a", "m1", qos=2)
    script.receive("sub", "a", "m1", qos=2)
    assert script.found() == {}
    script.receive("sub", "a", "m1", qos=2)
    assert script.found() == {"duplicate": 1}


def test_a_retained_copy_is_not_a_duplicate() -> None:
    script = subscribed()
    script.publish("pub", "a", "m1", qos=2, retain=True)
    script.receive("sub", "a", "m1", qos=2)
    script.subscribe("sub", "a", qos=2)
    script.receive("sub", "a", "m1", qos=2, retain=True)
    assert script.found() == {}


def test_duplicate_ignores_qos_1_publishes() -> None:
    script = subscribed()
    number = script.publishing("pub", "a", "m1")
    script.event(Kind.RESEND, "pub", operation=number)
    script.ok(number)
    script.receive("sub", "a", "m1")
    script.receive("sub", "a", "m1")
    assert script.found() == {}
