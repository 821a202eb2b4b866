"""Tests agents with a full spool; the broker sends unacknowledged messages again, and they are processed then."""

from __future__ import annotations

from tests.gateways.federation.graphs import line, subscribe

SPOOL_BYTES = 600  # two messages
MESSAGES = 6


def test_a_crash_after_a_filter_change_loses_nothing_that_waited() -> None:
    """Copies of the old filter wait in the broker's session when the agent is killed with the new filter active."""
    simulation = line(3, spool_bytes_max=SPOOL_BYTES)
    subscribe(simulation, "n3", "a/b")
    simulation.run(4.0)
    simulation.part("n2", "n3")
    simulation.kill("n3")
    sent = [simulation.publish("n2", "a/b") for _ in range(MESSAGES)]
    simulation.run(1.0)
    subscribe(simulation, "n1", "a/#")
    simulation.run(5.0)
    sent += [simulation.publish("n2", "a/b") for _ in range(MESSAGES)]
    simulation.run(1.0)
    simulation.kill("n2")
    simulation.run(1.0)
    for name in ("n2", "n3"):
        simulation.revive(name)
    simulation.join("n2", "n3")
    simulation.run(30.0)
    assert [payload for _, payload in simulation.processes["n3"].broker.received["s"]] == sent
    assert simulation.faults([("n1", "s", "a/#")], since=simulation.publications[sent[MESSAGES]].when) == []
    assert simulation.quiet_faults() == []
    core = simulation.processes["n2"].core
    assert core is not None and core.capture.filters() == ["a/#"]
    assert not core.capture.is_changing


def test_a_waiting_retained_message_is_not_known_after_a_crash() -> None:
    """Found by the simulation (seed 31350): its register was stored, so the resent message was dropped as known."""
    simulation = line(3, spool_bytes_max=SPOOL_BYTES)
    subscribe(simulation, "n3", "c")
    simulation.run(4.0)
    simulation.part("n2", "n3")
    simulation.kill("n3")
    sent = [simulation.publish("n2", "c") for _ in range(MESSAGES)]
    sent.append(simulation.publish("n2", "c", is_retained=True))
    simulation.run(1.0)
    simulation.kill("n2")
    sent.append(simulation.publish("n2", "c", is_retained=True))
    for name in ("n2", "n3"):
        simulation.revive(name)
    simulation.join("n2", "n3")
    simulation.run(30.0)
    assert [payload for _, payload in simulation.processes["n3"].broker.received["s"]] == sent
    assert simulation.quiet_faults() == []
    assert simulation.retained_faults(["c"], ["n2", "n3"]) == []
