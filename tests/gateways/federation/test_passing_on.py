"""Tests that a neighbour that acknowledges messages without forwarding them is detected, reported and avoided."""

from __future__ import annotations

from typing import Any

from tests.gateways.federation.federation_simulation import FederationSimulation
from tests.gateways.federation.graphs import GRID, core_of, grid, line, make, subscribe

RING = (("a", "x"), ("x", "d"), ("a", "p"), ("p", "q"), ("q", "d"))  # the path through x is the shorter one


def neighbour(simulation: FederationSimulation, name: str, other: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in core_of(simulation, name).status()["neighbours"] if each["name"] == other
    )
    return found


def publish_for(simulation: FederationSimulation, name: str, seconds: float) -> list[bytes]:
    """Publish a message each half second."""
    found = []
    for _ in range(int(seconds * 2)):
        found.append(simulation.publish(name, "k/1"))
        simulation.run(0.5)
    return found


def lost(simulation: FederationSimulation, name: str, payloads: list[bytes]) -> int:
    got = simulation.delivered(name, "s")
    return sum(got[each] == 0 for each in payloads)


def withheld_ring(**settings: Any) -> FederationSimulation:
    """Return a ring in which x withholds messages from a's clients to d's."""
    simulation = make(RING, **settings)
    simulation.withholding.add("x")
    subscribe(simulation, "d", "k/#")
    simulation.run(8.0)
    return simulation


def test_an_agent_that_forwards_nothing_is_reported_and_avoided() -> None:
    """It takes three intervals, two per hop and one check; then the other path is used without further loss."""
    simulation = withheld_ring()
    payloads = publish_for(simulation, "a", 60.0)
    early, late = payloads[:80], payloads[84:]
    assert 50 <= lost(simulation, "d", early) <= 80 and not lost(simulation, "d", late)
    found = neighbour(simulation, "a", "x")
    assert found["passed_by"] == "not_passed_on" and found["not_passed_on"]["d"] >= 50
    assert core_of(simulation, "a").counts["not_passed_on"] == found["not_passed_on"]["d"]
    lines = [each for each in simulation.processes["a"].logs if "did not come on" in each]
    assert len(lines) == 1 and lines[0].startswith("x has kept ") and " for d " in lines[0]
    assert all(not core_of(simulation, each).counts["not_passed_on"] for each in "pqd")


def test_a_repeated_offender_is_avoided_for_longer() -> None:
    """Each retry loses messages; the second time it is avoided for a minute."""
    simulation = withheld_ring()
    took = []
    for _ in range(3):
        while not neighbour(simulation, "a", "x")["passed_by"]:
            publish_for(simulation, "a", 1.0)
        took.append(simulation.run_until(lambda: not neighbour(simulation, "a", "x")["passed_by"], 130.0))
    assert [round(each / 10) for each in took] == [3, 6, 12]
    assert len([each for each in simulation.processes["a"].logs if "did not come on" in each]) == 1


def test_the_only_path_is_kept() -> None:
    """It is counted and reported, but a suspicion does not partition a federation."""
    simulation = line(3)
    simulation.withholding.add("n2")
    subscribe(simulation, "n3", "k/#")
    simulation.run(8.0)
    publish_for(simulation, "n1", 60.0)
    found = neighbour(simulation, "n1", "n2")
    assert found["not_passed_on"]["n3"] >= 50 and not found["passed_by"] and found["up"]
    assert core_of(simulation, "n1").overlay.distance("n3") == 2


def test_the_nearest_agent_judges_first() -> None:
    """In a grid the agent next to the withholding one reports it; agents farther away see the path change."""
    simulation = grid()
    simulation.withholding.add("5")
    for name in "369":
        subscribe(simulation, name, "k/#")
    simulation.run(8.0)
    for _ in range(160):
        for name in "147":
            simulation.publish(name, "k/1")
        simulation.run(0.5)
    accused = {
        other["name"]
        for name in {each for link in GRID for each in link}
        for other in core_of(simulation, name).status()["neighbours"]
        if other["not_passed_on"]
    }
    assert accused == {"5"}


def test_partial_withholding_is_detected_when_idle() -> None:
    """Nine of ten are forwarded; the missing ones are counted when no more arrive."""
    simulation = make(RING)
    subscribe(simulation, "d", "k/#")
    simulation.run(8.0)
    for number in range(40):
        if number % 10 == 0:
            simulation.withholding.add("x")
        simulation.publish("a", "k/1")
        simulation.run(0.5)
        simulation.withholding.discard("x")
    simulation.run(50.0)
    assert neighbour(simulation, "a", "x")["not_passed_on"] == {"d": 4}


def test_cuts_and_unreachable_brokers_cause_no_suspicion() -> None:
    """Messages that wait for a path or for spool capacity are not withheld."""
    simulation = line(4, spool_bytes_max=2_000)
    subscribe(simulation, "n4", "k/#")
    simulation.run(8.0)
    simulation.processes["n4"].disconnect_host()
    publish_for(simulation, "n1", 60.0)
    simulation.processes["n4"].connect_host()
    simulation.run(10.0)
    simulation.part("n3", "n4")
    payloads = publish_for(simulation, "n1", 60.0)
    simulation.join("n3", "n4")
    publish_for(simulation, "n1", 30.0)
    simulation.run(30.0)
    assert not lost(simulation, "n4", payloads)
    assert all(not core_of(simulation, each).counts["not_passed_on"] for each in simulation.processes)


def test_a_restarted_process_has_a_clean_record() -> None:
    """The record of its previous process is not shown any more."""
    simulation = withheld_ring()
    publish_for(simulation, "a", 50.0)
    assert neighbour(simulation, "a", "x")["not_passed_on"]
    simulation.withholding.clear()
    simulation.kill("x")
    simulation.run(2.0)
    simulation.revive("x")
    simulation.run(5.0)
    assert not neighbour(simulation, "a", "x")["not_passed_on"]
