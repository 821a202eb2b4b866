"""R12: retained messages as registers."""

from __future__ import annotations

import random

from stratamq.history.operations import Kind
from tests.stratamq.history.script import Script


def write(script: Script, payload: str, process: str = "w") -> int:
    return script.publish(process, "r", payload, retain=True)


def writing(script: Script, payload: str, process: str = "w") -> int:
    return script.publishing(process, "r", payload, retain=True)


def test_reads_of_the_last_value_and_of_none() -> None:
    script = Script()
    script.read("x", "r", "")
    write(script, "v1")
    script.read("x", "r", "v1")
    write(script, "v2")
    write(script, "")
    script.read("x", "r", "")
    assert script.found() == {}
    assert script.judge().reports["retained_register"].checked == 3


def test_a_stale_read_is_found() -> None:
    script = Script()
    write(script, "v1")
    write(script, "v2")
    script.read("x", "r", "v1")
    (finding,) = script.judge().findings
    assert finding.checker == "retained_register"
    assert "v1" in finding.message


def test_a_lost_value_is_found() -> None:
    script = Script()
    write(script, "v1")
    script.event(Kind.KILL, target="broker")
    script.read("x", "r", "")
    assert script.found() == {"retained_register": 1}


def test_a_read_during_a_write_may_see_either_but_not_go_back() -> None:
    script = Script()
    write(script, "v1")
    slow = writing(script, "v2")
    script.read("x", "r", "v1")
    script.read("y", "r", "v2")
    script.ok(slow)
    assert script.found() == {}
    script = Script()
    write(script, "v1")
    slow = writing(script, "v2")
    script.read("y", "r", "v2")
    script.read("x", "r", "v1")
    script.ok(slow)
    assert script.found() == {"retained_register": 1}


def test_an_unanswered_write_may_happen_late_or_never() -> None:
    script = Script()
    write(script, "v1")
    script.unknown(writing(script, "v2"))
    script.read("x", "r", "v1")
    write(script, "v3")
    script.read("x", "r", "v2")
    assert script.found() == {}
    script.read("x", "r", "v3")  # v2 came after v3 and cannot go away again
    assert script.found() == {"retained_register": 1}


def test_a_write_of_qos_1_that_was_sent_again_may_happen_again() -> None:
    """Simulation seed 10004: its first copy had been written and read when the edge died; then came another value."""
    script = Script()
    again = writing(script, "v1")
    script.read("x", "r", "v1")
    write(script, "v2")
    script.event(Kind.RESEND, "w", operation=again)
    script.ok(again)
    script.read("x", "r", "v1")
    assert script.found() == {}
    write(script, "v3")
    script.read("x", "r", "v1")  # but not once more
    assert script.found() == {"retained_register": 1}


def test_an_unanswered_clear_may_happen_late() -> None:
    script = Script()
    write(script, "v1")
    script.unknown(writing(script, ""))
    script.read("x", "r", "v1")
    script.read("x", "r", "")
    assert script.found() == {}


def test_a_refused_write_must_not_be_read() -> None:
    script = Script()
    script.fail(writing(script, "v1"), reason_code=0x97)
    script.read("x", "r", "v1")
    assert script.found() == {"retained_register": 1}


def test_concurrent_writes_settle_on_one_value() -> None:
    """Two nodes that keep different values show both in turn."""
    script = Script()
    one, two = writing(script, "v1", "w1"), writing(script, "v2", "w2")
    script.ok(one)
    script.ok(two)
    script.read("x", "r", "v1")
    assert script.found() == {}
    script.read("y", "r", "v2")
    assert script.found() == {"retained_register": 1}


def test_a_retained_value_older_than_a_live_one_is_found() -> None:
    script = Script()
    script.connect("c")
    script.subscribe("c", "#")
    write(script, "v1")
    write(script, "v2")
    script.receive("c", "r", "v1")
    script.receive("c", "r", "v2")
    script.receive("c", "r", "v2", retain=True)
    script.receive("c", "r", "v1", retain=True, dup=True)  # sent before, acknowledged too late
    assert script.found() == {}
    script.receive("c", "r", "v1", retain=True)
    assert script.found() == {"retained_register": 1}


def random_register(seed: int, faulty: bool) -> Script:
    """Return a history of 5 concurrent clients on an atomic register; a faulty one answers one read with old news."""
    rng = random.Random(seed)
    script = Script()
    value, old, stale_at = "", "", rng.randrange(60, 90) if faulty else -1
    busy: dict[int, tuple[int, str]] = {}
    for step in range(150):
        if step == stale_at:
            write(script, "settled")
            old, value = "settled", "newest"
            write(script, value)
            script.read("x", "r", value)
            script.read("x", "r", old)
        client = rng.randrange(5)
        if client not in busy:
            if rng.random() < 0.4:
                number = writing(script, f"v{step}", f"c{client}")
                busy[client] = (number, f"v{step}")
            else:
                busy[client] = (script.invoke(Kind.READ, f"c{client}", topic="r"), "")
            continue
        number, written = busy.pop(client)
        if not written:
            script.ok(number, payload=value)
        elif rng.random() < 0.2:
            if rng.random() < 0.5:
                value = written
            script.unknown(number)
        else:
            value = written
            script.ok(number)
    return script


def test_random_atomic_registers_are_linearizable_and_broken_ones_are_not() -> None:
    for seed in range(40):
        assert random_register(seed, faulty=False).found() == {}, f"seed={seed}"
    for seed in range(40):
        assert random_register(seed, faulty=True).found() == {"retained_register": 1}, f"seed={seed}"
