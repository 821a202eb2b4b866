"""Seeds of the simulation of bridges; ``make sim`` runs thousands."""

from tests.gateways.bridges.bridge_simulation import BridgeSimulation, run_seed
from tests.gateways.bridges.model_broker import Message

SEEDS = 60


def test_seeds() -> None:
    """Cut and killed at any step: no loss, order holds, and only open messages arrive twice."""
    assert sum(run_seed(seed) for seed in range(SEEDS)) > SEEDS


def test_seeds_exactly_once() -> None:
    """With a spool that a kill leaves at the last sync, no message arrives twice, including dead letters."""
    assert sum(run_seed(seed, exactly_once=True) for seed in range(SEEDS)) > 3 * SEEDS


def test_bridge_reused_identifiers_are_separate_messages() -> None:
    """A message that reuses an identifier is a separate message, also in the next process."""
    for seed in range(10):
        simulation = BridgeSimulation(seed, "a/# out 2", exactly_once=True)
        simulation.subscribe()
        for _ in range(6):
            for broker in simulation.brokers.values():
                broker.restart_identifiers()
            for _ in range(3):
                simulation.publish_one()
            simulation.settle()
            simulation.kill()
        simulation.settle()
        simulation.check()


def test_exactly_once_bridge_lost_session_loses_no_message() -> None:
    """Also with restarted identifiers: rows of the former session do not affect the next one."""
    for seed in range(40):
        simulation = BridgeSimulation(seed, "a/# out 2", exactly_once=True)
        simulation.subscribe()
        for round_ in range(4):
            for _ in range(4):
                simulation.publish_one()
            for _ in range(60):
                simulation.step(calm=True)
            if round_ % 2 == seed % 2:
                simulation.note_break()
                side = "remote" if seed % 4 < 2 else "cluster"
                simulation.forget(side)
                if seed % 8 < 4:
                    simulation.kill()
                else:
                    simulation.clients[side].cut()
                simulation.subscribe()
        simulation.settle()
        simulation.check(once=False)


def test_bridge_line_in_both_directions_has_no_echo() -> None:
    """No Local on both sides, one connection each."""
    simulation = BridgeSimulation(1, "a/# both 1")
    simulation.subscribe()
    for number in range(5):
        simulation.brokers["cluster"].publish(Message("a/1", b"c%d" % number))
        simulation.brokers["remote"].publish(Message("a/1", b"r%d" % number))
    simulation.settle()
    assert [each.payload for each in simulation.brokers["remote"].taken] == [b"c%d" % number for number in range(5)]
    assert [each.payload for each in simulation.brokers["cluster"].taken] == [b"r%d" % number for number in range(5)]


def test_bridge_lost_session_resends_open_messages_in_order() -> None:
    """The broker has lost its state: unanswered messages are sent again."""
    for seed in range(20):
        simulation = BridgeSimulation(seed, "a/# out 1")
        simulation.subscribe()
        for number in range(12):
            simulation.published.append(Message("a/1", b"%d" % number))
            simulation.brokers["cluster"].publish(simulation.published[-1])
        for _ in range(40):
            simulation.step(calm=True)
        simulation.note_break()
        simulation.brokers["remote"].forget()
        simulation.clients["remote"].cut()
        simulation.settle()
        simulation.check()
