"""R9, R10 and R11: one owner, Session Present, wills."""

from __future__ import annotations

from typing import Any

from stratamq.history.operations import Kind
from tests.stratamq.history.script import Script


def fight() -> Script:
    script = Script()
    script.connect("one", "c")
    script.connect("two", "c", present=True)
    return script


def test_the_old_connection_may_only_fail() -> None:
    script = fight()
    script.unknown(script.publishing("one", "a", "m1"))
    script.unknown(script.invoke(Kind.SUBSCRIBE, "one", topic_filter="a", qos=1))
    script.publish("two", "a", "m2")
    assert script.found() == {}
    assert script.judge().reports["single_owner"].checked == 2


def test_an_answer_on_the_old_connection_is_found() -> None:
    """R9: SUBACK, UNSUBACK, PUBACK for something sent after the new CONNACK."""
    script = fight()
    script.subscribe("one", "a")
    script.unsubscribe("one", "a")
    script.publish("one", "a", "m1")
    assert script.found() == {"single_owner": 3}


def test_an_effect_of_the_old_connection_is_found_without_an_answer() -> None:
    script = Script()
    script.connect("watch")
    script.subscribe("watch", "a")
    script.connect("one", "c")
    script.connect("two", "c", present=True)
    script.unknown(script.publishing("one", "a", "m1"))
    script.receive("watch", "a", "m1")
    assert script.found() == {"single_owner": 1}


def test_a_message_sent_after_the_takeover_must_not_reach_the_old_connection() -> None:
    script = Script()
    script.connect("pub")
    script.connect("one", "c")
    script.subscribe("one", "a")
    before = script.publishing("pub", "a", "m1")
    script.connect("two", "c", present=True)
    script.receive("one", "a", "m1")
    script.ok(before)
    assert script.found() == {}
    script.publish("pub", "a", "m2")
    script.receive("one", "a", "m2")
    assert script.found() == {"single_owner": 1}


def test_overlapping_connects_have_no_order() -> None:
    script = Script()
    one = script.connecting("one", "c")
    two = script.connecting("two", "c")
    script.ok(one, session_present=False)
    script.ok(two, session_present=True)
    script.subscribe("one", "a")
    assert script.found() == {}


def test_an_operation_begun_before_the_new_connack_may_succeed() -> None:
    script = Script()
    script.connect("one", "c")
    two = script.connecting("two", "c")
    script.subscribe("one", "a")
    script.ok(two, session_present=True)
    assert script.found() == {}


def test_session_present_follows_the_stored_session() -> None:
    script = Script()
    script.connect("c")
    script.close("c")
    script.connect("c", present=True)
    script.connect("c", present=False, clean_start=True)
    script.disconnect("c")
    script.connect("c", present=True, session_expiry_interval_s=0)
    script.disconnect("c")
    script.wait(10_000)
    script.connect("c", present=False)
    assert script.found() == {}
    assert script.judge().reports["session_present"].checked == 5


def test_a_lost_session_a_ghost_and_a_clean_start_with_session_are_found() -> None:
    """R10 in its three wrong answers."""
    script = Script()
    script.connect("c")
    script.close("c")
    script.connect("c", present=False)
    assert script.found() == {"session_present": 1}
    script.connect("ghost", present=True)
    assert script.found() == {"session_present": 2}
    script.connect("clean", present=True, clean_start=True)
    assert script.found() == {"session_present": 3}


def test_a_wrong_answer_is_reported_once() -> None:
    script = Script()
    script.connect("c")
    script.connect("c", present=False)
    script.connect("c", present=True)
    assert script.found() == {"session_present": 1}


def test_an_unanswered_connect_may_have_made_or_ended_the_session() -> None:
    script = Script()
    script.unknown(script.connecting("new"))
    script.connect("new", present=True)
    script.connect("old")
    script.unknown(script.connecting("old", clean_start=True, session_expiry_interval_s=0))
    script.connect("old", present=False)
    assert script.found() == {}


def test_an_unanswered_durable_connect_does_not_excuse_a_lost_session() -> None:
    script = Script()
    script.connect("c")
    script.unknown(script.connecting("c"))
    script.connect("c", present=False)
    assert script.found() == {"session_present": 1}


def test_an_expired_session_must_be_gone_and_an_unexpired_one_there() -> None:
    script = Script()
    script.connect("c", session_expiry_interval_s=10)
    script.close("c")
    script.wait(12_000)  # within the time that detection may take: either answer
    script.connect("c", present=True, session_expiry_interval_s=10)
    script.close("c")
    script.wait(30_000)
    script.connect("c", present=True, session_expiry_interval_s=10)
    script.close("c")
    script.wait(5_000)
    script.connect("c", present=False, session_expiry_interval_s=10)
    assert script.found() == {"session_present": 2}


def watched(delay_s: int = 0, target: str = "") -> Script:
    script = Script(detection_s=1)
    script.connect("watch")
    script.subscribe("watch", "will/#", qos=2)
    script.connect(
        "c", will_topic="will/c", will_payload="w1", will_qos=2, will_delay_interval_s=delay_s, target=target
    )
    return script


def test_one_will_after_an_abnormal_end() -> None:
    script = watched()
    script.close("c")
    script.receive("watch", "will/c", "w1", qos=2)
    script.quiet()
    assert script.found() == {}


def test_no_will_after_an_abnormal_end_is_found() -> None:
    """R11: also when the broker was killed with the connection."""
    script = watched()
    script.event(Kind.KILL, target="broker")
    script.close("c")
    script.quiet()
    assert script.found() == {"will_once": 1}


def test_two_wills_are_found() -> None:
    """Fired by the edge and by the storage node."""
    script = watched()
    script.close("c")
    script.receive("watch", "will/c", "w1", qos=2)
    script.receive("watch", "will/c", "w1", qos=2)
    script.quiet()
    assert script.found() == {"will_once": 1}


def test_a_redelivered_will_is_one_will() -> None:
    script = watched()
    script.close("c")
    script.receive("watch", "will/c", "w1", qos=1)
    script.receive("watch", "will/c", "w1", qos=1, dup=True)
    script.quiet()
    assert script.found() == {}


def test_no_will_after_disconnect() -> None:
    """Accepted: none. Sent but perhaps never read: either. DISCONNECT 0x04 asks for the will."""
    script = watched()
    script.disconnect("c")
    script.quiet()
    assert script.found() == {}
    script = watched()
    script.disconnect("c")
    script.receive("watch", "will/c", "w1", qos=2)
    assert script.found() == {"will_once": 1}
    script = watched()
    script.unknown(script.invoke(Kind.DISCONNECT, "c"))
    script.receive("watch", "will/c", "w1", qos=2)
    script.quiet()
    assert script.found() == {}
    script = watched()
    script.disconnect("c", reason_code=0x04)
    script.quiet()
    assert script.found() == {"will_once": 1}


def test_a_drain_may_close_a_connection_before_its_disconnect_is_read() -> None:
    """Both look the same to the client. Of another edge, or when the drain is long over, it cannot."""
    for target, kind, wait_ms, found in (
        ("e1", Kind.FAULT, 0, 0),
        ("e1", Kind.FAULT, 60_000, 0),
        ("e2", Kind.FAULT, 0, 1),
        ("e1", Kind.HEAL, 0, 0),
        ("e1", Kind.HEAL, 5_000, 1),
    ):
        script = watched(target="e1:2")
        script.event(kind, target=target, reason="drain")
        script.wait(wait_ms)
        script.disconnect("c")
        script.receive("watch", "will/c", "w1", qos=2)
        script.quiet()
        assert script.found() == ({"will_once": found} if found else {}), (target, kind, wait_ms)


def test_a_session_resumed_within_the_will_delay_keeps_it_silent() -> None:
    """MQTT 5.0 section 3.1.3.2.2."""
    script = watched(delay_s=5)
    script.close("c")
    script.connect("c", present=True)
    script.quiet()
    assert script.found() == {}
    script.receive("watch", "will/c", "w1", qos=2)
    assert script.found() == {"will_once": 1}


def test_delayed_will_without_reconnect_is_published() -> None:
    script = watched(delay_s=5)
    script.close("c")
    script.quiet()
    assert script.found() == {"will_once": 1}


def test_will_detection_starts_when_broker_serves_a_client() -> None:
    """Simulation seed 77078: every node was down for 27 s, and the client was back before the delay had run."""
    script = watched(delay_s=5)
    script.close("c")
    script.wait(30_000)
    script.connect("c", present=True)
    script.quiet()
    assert script.found() == {}
    script = watched(delay_s=5)
    script.close("c")
    script.publish("watch", "other", "served")
    script.wait(30_000)
    script.connect("c", present=True)
    script.quiet()
    assert script.found() == {"will_once": 1}


def test_a_connect_that_was_given_up_may_resume_the_session_within_the_will_delay() -> None:
    """Simulation seed 84031: its bytes reached their edge when the client had come back, and gone, at another one."""
    for waited_ms, found in ((0, {}), (2_000, {"will_once": 1})):
        script = Script(detection_s=1)
        script.connect("watch")
        script.subscribe("watch", "will/#", qos=2)
        script.unknown(script.connecting("c"))
        script.publish("watch", "other", "served")
        script.wait(waited_ms)
        script.connect("c", present=True, will_topic="will/c", will_payload="w1", will_qos=2, will_delay_interval_s=2)
        script.close("c")
        script.quiet()
        assert script.found() == found


def test_of_two_that_connect_at_once_either_may_have_been_the_later_one() -> None:
    will: dict[str, Any] = {"will_topic": "will/c", "will_payload": "w1", "will_qos": 2, "will_delay_interval_s": 2}
    for willed_first in (False, True):
        script = Script(detection_s=1)
        script.connect("watch")
        script.subscribe("watch", "will/#", qos=2)
        if willed_first:
            slow = script.connecting("c1", "c", **will)
            script.connect("c2", "c")
        else:
            slow = script.connecting("c2", "c")
            script.connect("c1", "c", **will)
        script.ok(slow, session_present=True)
        script.close("c1")
        script.quiet()
        assert script.found() == {}
        script.receive("watch", "will/c", "w1", qos=2)
        assert script.found() == {}


def test_the_will_of_an_open_or_refused_connection_stays_silent() -> None:
    script = watched()
    script.receive("watch", "will/c", "w1", qos=2)
    assert script.found() == {"will_once": 1}
    script = Script()
    script.connect("watch")
    script.subscribe("watch", "will/#", qos=2)
    script.fail(script.connecting("c", will_topic="will/c", will_payload="w1", will_qos=2), reason_code=0x88)
    script.quiet()
    assert script.found() == {}


def test_a_kill_during_disconnect_leaves_the_will_uncertain() -> None:
    script = watched()
    farewell = script.invoke(Kind.DISCONNECT, "c")
    script.event(Kind.KILL, target="broker")
    script.ok(farewell)
    script.receive("watch", "will/c", "w1", qos=2)
    script.quiet()
    assert script.found() == {}
