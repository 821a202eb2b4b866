"""Random stories of federations: links are cut, processes die, and each broker still gets each message once."""

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
def test_seeds_that_found_something(seed: int, found: str) -> None:
    """Stories that failed once."""
    assert run_seed(seed) == [], found


@pytest.mark.parametrize("seed", [9008, 9009, 9020])
def test_agents_whose_spools_are_full_do_not_wait_for_each_other(seed: int) -> None:
    """Stories in which two of them did, for ever: a message that made more hops has more room."""
    assert run_seed(seed, count=6) == []


@pytest.mark.parametrize("seed", [50_000, 50_002])
def test_brokers_of_older_versions(seed: int) -> None:
    """Some are spoken to by MQTT 3.1.1: filters are changed from connection to connection."""
    assert run_seed(seed, count=5, is_mixed=True) == []


@pytest.mark.parametrize("seed", [60_000, 60_001])
def test_busy_agents(seed: int) -> None:
    """Turns take up to 1.5 s, now and then 12 s, and have all at once that came meanwhile: nothing stands still."""
    assert run_seed(seed, count=5, is_busy=True) == []


def test_seeds() -> None:
    """The same, as one test for rules that are taken away."""
    for seed in range(100, 104):
        assert run_seed(seed, count=6) == []
