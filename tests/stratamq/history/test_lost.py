"""R1: what counts as lost, and what excuses the broker."""

from __future__ import annotations

from stratamq.history.operations import Kind
from tests.stratamq.history.script import Script


def subscribed() -> Script:
    script = Script()
    script.connect("sub")
    script.subscribe("sub", "a/+")
    script.connect("pub")
    return script


def test_a_delivered_message_is_not_lost() -> None:
    script = subscribed()
    script.publish("pub", "a/b", "m1")
    script.receive("sub", "a/b", "m1")
    script.quiet()
    assert script.found() == {}
    assert script.judge().reports["lost"].checked == 1


def test_an_accepted_message_that_never_arrives_is_lost_and_proved() -> None:
    """R1."""
    script = subscribed()
    script.publish("pub", "a/b", "m1")
    script.publish("pub", "a/b", "m2")
    script.receive("sub", "a/b", "m1")
    script.quiet()
    (finding,) = script.judge().reports["lost"].findings
    assert "m2" in finding.message
    assert [(r.kind, r.payload) for r in finding.proof][2:] == [(Kind.PUBLISH, "m2"), (Kind.PUBLISH, None)]


def test_a_message_without_an_answer_is_not_lost() -> None:
    """Unknown is never failure, whether a completion line was written or not."""
    script = subscribed()
    script.unknown(script.publishing("pub", "a/b", "m1"))
    script.publishing("pub", "a/b", "m2")
    script.fail(script.publishing("pub", "a/b", "m3"), reason_code=0x97)
    script.publish("pub", "a/b", "m4", qos=0)
    script.quiet()
    assert script.found() == {}


def test_a_publish_that_overlaps_the_subscribe_may_be_missed() -> None:
    """The PUBLISH left before SUBACK was read; one that left after it must arrive."""
    script = Script()
    script.connect("sub")
    script.connect("pub")
    subscribe = script.invoke(Kind.SUBSCRIBE, "sub", topic_filter="a", qos=1)
    early = script.publishing("pub", "a", "m1")
    script.ok(subscribe, qos=1)
    script.ok(early)
    script.quiet()
    assert script.found() == {}


def test_loss_across_reconnects_is_loss() -> None:
    script = subscribed()
    script.close("sub")
    script.publish("pub", "a/b", "m1")
    script.connect("sub", present=True)
    script.quiet()
    assert script.found() == {"lost": 1}


def test_lost_session_is_no_excuse_for_lost_messages() -> None:
    """The broker lost session and queue: both are findings, though the client subscribed again."""
    script = subscribed()
    script.close("sub")
    script.publish("pub", "a/b", "m1")
    script.event(Kind.KILL, target="broker")
    script.connect("sub", present=False)
    script.subscribe("sub", "a/+")
    script.quiet()
    assert script.found() == {"lost": 1, "session_present": 1}


def test_a_clean_start_or_an_unsubscribe_ends_the_claim() -> None:
    script = subscribed()
    script.publish("pub", "a/b", "m1")
    script.connect("sub", clean_start=True)
    script.subscribe("sub", "a/+")
    script.publish("pub", "a/c", "m2")
    script.unknown(script.invoke(Kind.UNSUBSCRIBE, "sub", topic_filter="a/+"))
    script.quiet()
    assert script.found() == {}


def test_the_same_filter_at_qos_0_ends_the_claim_until_it_is_raised_again() -> None:
    """A SUBSCRIBE replaces the subscription to the same filter [MQTT-3.8.4-3]."""
    script = subscribed()
    script.subscribe("sub", "a/+", qos=2)
    script.subscribe("sub", "a/+", qos=0)
    script.publish("pub", "a/b", "m1")
    script.quiet()
    assert script.found() == {}
    script.subscribe("sub", "a/+", qos=1)
    script.publish("pub", "a/b", "m2")
    script.quiet()
    assert script.found() == {"lost": 1}


def test_an_expired_session_ends_the_claim() -> None:
    script = Script()
    script.connect("sub", session_expiry_interval_s=1)
    script.subscribe("sub", "a")
    script.connect("pub")
    script.close("sub")
    script.publish("pub", "a", "m1")
    script.wait(60_000)
    script.connect("sub", session_expiry_interval_s=1)
    script.quiet()
    assert script.found() == {}


def test_counted_drops_are_set_off() -> None:
    """Queue bounds may drop, if the broker counts what it dropped."""
    script = subscribed()
    for number in range(3):
        script.publish("pub", "a/b", f"m{number}")
    script.event(Kind.DROPPED, client_id="sub", count=2, reason="queue full")
    script.quiet()
    assert script.found() == {"lost": 1}


def test_lost_without_quiet_phase_or_with_offline_client_reports_no_loss() -> None:
    script = subscribed()
    script.publish("pub", "a/b", "m1")
    assert script.found() == {}
    script.close("sub")
    script.quiet()
    assert script.found() == {}
    assert script.judge().reports["lost"].notes
