"""Effects within an edge's lease that R9 allows, checked with handwritten histories."""

import pytest

from tests.chaos.chaos_result import within_lease
from tests.stratamq.history.script import Script

LEASE_S = 2.0


def only_within_lease(script: Script) -> bool:
    findings = [found for found in script.judge().findings if found.checker == "single_owner"]
    assert findings
    return all(within_lease(finding, LEASE_S) for finding in findings)


@pytest.mark.parametrize(("sent_after_ms", "allowed"), [(100, True), (2_100, False)])
def test_message_sent_within_lease_may_be_delivered_later(sent_after_ms: int, allowed: bool) -> None:
    """Simulation seed 50041: an edge that storage could not reach accepted messages, and kept them meanwhile."""
    script = Script()
    script.connect("watch")
    script.subscribe("watch", "a")
    script.connect("one", "c")
    script.connect("two", "c", present=True)
    script.wait(sent_after_ms)
    publish = script.publishing("one", "a", "m1")
    script.wait(10_000)
    script.receive("watch", "a", "m1")
    script.unknown(publish)
    assert only_within_lease(script) is allowed


@pytest.mark.parametrize(("after_ms", "allowed"), [(100, True), (2_100, False)])
def test_answer_to_older_connection_after_lease_is_finding(after_ms: int, allowed: bool) -> None:
    """The older connection is alive as long as it is answered."""
    script = Script()
    script.connect("one", "c")
    script.connect("two", "c", present=True)
    publish = script.publishing("one", "a", "m1")
    script.wait(after_ms)
    script.ok(publish)
    assert only_within_lease(script) is allowed


@pytest.mark.parametrize(("after_ms", "allowed"), [(100, True), (2_100, False)])
def test_delivery_to_older_connection_after_lease_is_finding(after_ms: int, allowed: bool) -> None:
    script = Script()
    script.connect("pub")
    script.connect("one", "c")
    script.subscribe("one", "a")
    script.connect("two", "c", present=True)
    script.publish("pub", "a", "m1")
    script.wait(after_ms)
    script.receive("one", "a", "m1")
    assert only_within_lease(script) is allowed
