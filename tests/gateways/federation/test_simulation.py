"""Tests random scenarios: links are cut, processes are killed, and each broker still gets each message once."""

import pytest

from tests.gateways.federation.federation_simulation import run_seed


@pytest.mark.parametrize("seed", range(8))
def test_each_interested_broker_gets_each_message_once(seed: int) -> None:
    """Exactly once at QoS 2, at least once at QoS 1, one core per filter, spools empty, retained equal."""
    assert run_seed(seed, count=5 + seed % 4) == []


@pytest.mark.parametrize(
    ("seed", "found"),
    [
        (3, "a retained message of QoS 0 that came while the broker was away was taken as known there"),
        (151, "a retained message of QoS 0 that was published while the agent was away never left its broker"),
        (
            2013,
            "a message that came back while a neighbour had it was let go by that neighbour's word of this very copy",
        ),
        (2025, "a client's newer retained message was taken for the broker's old one"),
        (2030, "words of a core that had ended, from a link that was cut, went round for ever"),
    ],
)
def test_seeds_that_once_failed(seed: int, found: str) -> None:
    """Scenarios that once failed."""
    assert run_seed(seed) == [], found


@pytest.mark.parametrize("seed", [9008, 9009, 9020])
def test_agents_whose_spools_are_full_do_not_wait_for_each_other(seed: int) -> None:
    """Scenarios in which two of them used to; a message with more hops has more capacity."""
    assert run_seed(seed, count=6) == []


@pytest.mark.parametrize("seed", [50_000, 50_002])
def test_brokers_of_older_versions(seed: int) -> None:
    """Some use MQTT 3.1.1, where filters move between connections."""
    assert run_seed(seed, count=5, is_mixed=True) == []


@pytest.mark.parametrize("seed", [60_000, 60_001])
def test_busy_agents(seed: int) -> None:
    """Iterations take up to 1.5 s, rarely 12 s, and process all accumulated events without stalling."""
    assert run_seed(seed, count=5, is_busy=True) == []


def test_seeds() -> None:
    """A fixed set of seeds as one test, for the mutants."""
    for seed in range(100, 104):
        assert run_seed(seed, count=6) == []
