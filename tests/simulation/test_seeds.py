"""A few random seeds of the whole cluster in both modes; ``make sim`` runs many more. Failing ones are added here."""

import pytest

from tests.simulation.faults import Fault
from tests.simulation.simulation import Mode, Options, run_seed

REGRESSIONS: list[tuple[int, Mode, float]] = [
    (2, "liveness", 12.0),  # a backup matched far behind: the window was counted from 0, and streaming stopped
    (13, "safety", 20.0),  # an answer to an older AddRoutes spoke for a later holder: a message was lost
    (14, "liveness", 20.0),  # a repeated OpenSession took over its own session and fired its will
    (23, "liveness", 20.0),  # an edge with a pending report of DISCONNECT 0x00 claimed nothing: the will fired
    (211, "safety", 8.0),  # the harness: a timer of a rounding clock was requested repeatedly
    (2013, "safety", 60.0),  # repeated CONNECTs to a new primary took over newer ones: wills twice
    (2023, "safety", 60.0),  # QoS 2 repeated through another edge reached an ephemeral subscriber twice
    (2027, "liveness", 60.0),  # DISCONNECT 0x00 was confirmed by the close before its partition knew
    (3014, "liveness", 60.0),  # messages held for one subscription were overtaken by another one's
    (4003, "safety", 60.0),  # a retained message reached subscribers before it was retained
    (5001, "safety", 60.0),  # QoS 0 passed several retained copies in a queue, and one was dropped
    (5006, "liveness", 60.0),  # the same, and the primary changed
    (4009, "safety", 60.0),  # retained copies older than received live ones
    (76028, "liveness", 60.0),  # the harness: an ephemeral session's backlog overflowed, as it may
    (3034, "safety", 60.0),  # an edge followed a former incarnation of a router: its map was not updated
]


SLOW = [700_000, 700_001]
HOSTILE = [(2007, "e"), (2039, "s"), (2023, "r")]


@pytest.mark.parametrize("seed", range(1_000, 1_010))
def test_random_seed(seed: int) -> None:
    mode: Mode = "liveness" if seed % 3 == 0 else "safety"
    result = run_seed(seed, Options(mode=mode, seconds=4.0))
    assert not result.failures, result.failures


@pytest.mark.parametrize("seed", [1001, 1008, 1011])
def test_operator_queries_during_faults(seed: int) -> None:
    """Lists, explanations and traces while nodes die."""
    result = run_seed(seed, Options(seconds=6.0, looks=True))
    assert not result.failures, result.failures
    assert result.asked["lists"] and result.asked["events of traces"]


@pytest.mark.parametrize("seed", [21, 23, 25])
def test_clients_above_receive_maximum(seed: int) -> None:
    """They repeat all unacknowledged messages at once, as paho does: no disconnect, and no duplicate delivery."""
    mode: Mode = "liveness" if seed % 3 == 0 else "safety"
    result = run_seed(seed, Options(mode=mode, seconds=4.0, works=("queue",), heedless=True))
    assert not result.failures, result.failures


@pytest.mark.parametrize("seed", SLOW)
def test_clients_that_acknowledge_slowly_receive_every_retained_message(seed: int) -> None:
    """No bound of live messages drops a retained one, with any number of clients that never acknowledge."""
    result = run_seed(seed, Options(seconds=4.0, slow=True))
    assert not result.failures, result.failures
    assert result.slow_reads


@pytest.mark.parametrize(("seed", "letter"), HOSTILE)
def test_hostile_node_has_no_effect(seed: int, letter: str) -> None:
    """A node with its tier's certificate sends messages outside its permissions: all checks pass, refusals are counted.

    Three more nodes have certificates and no role.
    """
    result = run_seed(seed, Options(seconds=4.0, hostile=True, log=True))
    assert not result.failures, result.failures
    assert any(f"{letter}9 starts as hostile incarnation" in line for line in result.log)
    assert result.forged >= 10 and result.refused > 0


def test_certificates_alone_give_no_access_with_users() -> None:
    """Nodes with only a certificate request credentials, map, policy and sessions."""
    result = run_seed(3_001, Options(seconds=3.0, hostile=True, policy=True, works=("queue",), log=True))
    assert not result.failures, result.failures
    for node in ("r8", "s8", "e8"):
        assert any(f"{node} starts as hostile incarnation" in line for line in result.log)
    assert result.forged >= 50 and result.refused >= 50


def test_hostile_node_draws_from_a_separate_random_stream() -> None:
    """Work, faults and constants of a seed are the same without it."""
    quiet, plain = (run_seed(1_001, Options(seconds=1.5, hostile=hostile)) for hostile in (True, False))
    assert quiet.faults == plain.faults and quiet.works == plain.works and quiet.knobs == plain.knobs


@pytest.mark.parametrize("seed", [1, 22])
def test_flipped_bits_of_one_node_lose_nothing(seed: int) -> None:
    """R3: a damaged disk is detected on read, quarantined, and rebuilt from another copy; clocks drift."""
    faults = (Fault(0.5, 0.8, "flip_bits", "s1", "", 8.0), Fault(1.5, 1.6, "kill", "s2"))
    options = Options(seconds=2.5, hardware=True, faults=faults, works=("queue",), log=True)
    result = run_seed(seed, options)
    assert not result.failures, result.failures
    assert any("its disk is damaged" in line for line in result.log)


@pytest.mark.parametrize(
    ("seed", "mode", "seconds"),
    [
        (100, "safety", 15.0),  # copies for a shared group were dropped, and acknowledged
        (105, "safety", 10.0),  # refused by its retained partition, delivered live
        (10030, "safety", 60.0),  # refused messages arrived again after later ones
        (10037, "liveness", 60.0),  # a dead edge's CONNECT was executed again
        (10152, "safety", 60.0),  # a dead edge's message, queued for a later map, was accepted after newer ones
        (20059, "safety", 60.0),  # a push queued without a lease left after later ones
    ],
)
@pytest.mark.slow
def test_seed_that_failed_with_faults_of_disks_and_clocks(seed: int, mode: Mode, seconds: float) -> None:
    result = run_seed(seed, Options(mode=mode, seconds=seconds, hardware=True))
    assert not result.failures, result.failures


@pytest.mark.parametrize(("seed", "mode", "seconds"), REGRESSIONS)
@pytest.mark.slow
def test_seed_that_failed(seed: int, mode: Mode, seconds: float) -> None:
    result = run_seed(seed, Options(mode=mode, seconds=seconds))
    assert not result.failures, result.failures


@pytest.mark.slow
def test_trace_is_independent_of_earlier_runs_in_the_process() -> None:
    """Regression: connections were iterated in the order of a set of objects (seed 10175)."""
    options = Options(mode="liveness", seconds=60.0)
    alone = run_seed(10175, options)
    run_seed(10174, Options(seconds=60.0))
    again = run_seed(10175, options)
    assert (again.digest, again.events, again.history) == (alone.digest, alone.events, alone.history)
