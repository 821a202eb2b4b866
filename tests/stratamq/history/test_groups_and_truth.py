"""R13, R14 and R15: shared groups, true refusals, time without service."""

from __future__ import annotations

import pytest

from stratamq.history.checkers.unavailability import gaps, gaps_after_faults
from stratamq.history.operations import Kind
from tests.stratamq.history.script import Script


def group() -> Script:
    script = Script()
    for member in ("m1", "m2"):
        script.connect(member)
        script.subscribe(member, "$share/g/a", qos=2)
    script.connect("pub")
    return script


@pytest.mark.parametrize("qos", [1, 2])
def test_each_message_to_one_member(qos: int) -> None:
    script = group()
    script.publish("pub", "a", "x", qos=qos)
    script.receive("m1", "a", "x", qos=qos)
    script.quiet()
    assert script.found() == {}
    script.receive("m2", "a", "x", qos=qos)
    assert script.found() == {"shared_group": 1}


def test_a_message_to_no_member_is_found() -> None:
    script = group()
    script.publish("pub", "a", "x")
    script.quiet()
    assert script.found() == {"shared_group": 1}


def test_a_lost_member_excuses_a_second_copy_at_qos_1() -> None:
    """At QoS 2 a broken connection does not: the message waits for the same client [MQTT-4.8.2-4]."""
    for qos, expected in ((1, {}), (2, {"shared_group": 1})):
        script = group()
        script.publish("pub", "a", "x", qos=qos)
        script.receive("m1", "a", "x", qos=qos)
        script.close("m1")
        script.receive("m2", "a", "x", qos=qos)
        assert script.found() == expected


def test_an_ended_session_excuses_a_second_copy_at_qos_2() -> None:
    script = group()
    script.publish("pub", "a", "x", qos=2)
    script.receive("m1", "a", "x", qos=2)
    script.connect("m1", clean_start=True)
    script.receive("m2", "a", "x", qos=2)
    assert script.found() == {}


def test_a_resent_publish_may_reach_two_members_at_qos_1() -> None:
    script = group()
    number = script.publishing("pub", "a", "x")
    script.connect("pub", present=True)
    script.event(Kind.RESEND, "pub", operation=number)
    script.ok(number)
    script.receive("m1", "a", "x")
    script.receive("m2", "a", "x")
    script.quiet()
    assert script.found() == {}


def test_an_absent_member_makes_loss_undecided() -> None:
    script = group()
    script.publish("pub", "a", "x")
    script.close("m2")
    script.quiet()
    assert script.found() == {}
    assert "not online" in script.judge().reports["shared_group"].notes[0]


def test_a_refused_message_must_not_arrive() -> None:
    """R14; a refusal after a second sending is unknown."""
    script = Script()
    script.connect("sub")
    script.subscribe("sub", "#")
    script.connect("pub")
    script.fail(script.publishing("pub", "b", "m1"), reason_code=0x97)
    twice = script.publishing("pub", "a", "m2")
    script.event(Kind.RESEND, "pub", operation=twice)
    script.fail(twice, reason_code=0x97)
    script.receive("sub", "a", "m2")
    assert script.found() == {}
    script.receive("sub", "b", "m1")
    assert script.found() == {"aborted_reads": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "a", "payload": "never"},
        {"topic": "b", "payload": "m1"},
        {"topic": "a", "payload": "m1", "damaged": True},
    ],
)
def test_made_up_and_altered_messages_are_found(wrong: dict[str, object]) -> None:
    """R3."""
    script = Script()
    script.connect("sub")
    script.subscribe("sub", "#")
    script.connect("pub")
    script.publish("pub", "a", "m1")
    script.event(Kind.RECEIVE, "sub", **wrong)
    assert script.found() == {"aborted_reads": 1}


def test_gaps_run_through_failed_attempts_but_not_through_idle_time() -> None:
    script = Script()
    script.connect("pub")
    script.publish("pub", "a", "m1")
    script.wait(60_000)
    script.event(Kind.KILL, target="broker")
    script.unknown(script.publishing("pub", "a", "m2"))
    script.wait(500)
    script.unknown(script.publishing("pub", "a", "m3"))
    script.wait(500)
    script.publish("pub", "a", "m4")
    lengths = [round(gap.length_s, 3) for gap in gaps(script.history()) if gap.kind is Kind.PUBLISH]
    assert lengths == [0.001, 1.005]
    (fault,) = gaps_after_faults(script.history())
    assert (fault.fault.target, fault.kind, round(fault.length_s, 3)) == ("broker", Kind.PUBLISH, 1.005)


def test_pipelined_answers_are_no_gap() -> None:
    script = Script()
    script.connect("pub")
    numbers = [script.publishing("pub", "a", f"m{i}") for i in range(10)]
    for number in numbers:
        script.wait(100)
        script.ok(number)
    longest = max(gap.length_s for gap in gaps(script.history()) if gap.kind is Kind.PUBLISH)
    assert longest == pytest.approx(0.11)


def test_a_gap_above_the_stated_limit_is_found() -> None:
    """R15."""
    for limit_s, expected in ((2.0, {}), (0.5, {"unavailability": 1})):
        script = Script(unavailability_limit_s=limit_s)
        script.connect("pub")
        number = script.publishing("pub", "a", "m1")
        script.wait(1_000)
        script.ok(number)
        assert script.found() == expected


def test_a_client_that_never_gets_back_in_is_found() -> None:
    script = Script()
    script.connect("c")
    script.close("c")
    script.event(Kind.QUIET)
    script.unknown(script.connecting("c"))
    script.unknown(script.connecting("c"))
    script.event(Kind.DRAINED)
    assert script.found() == {"unavailability": 1}
